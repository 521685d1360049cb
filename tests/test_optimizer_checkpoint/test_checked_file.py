"""Files that know their size and checksum."""

import errno
import os

import pytest
import torch
from comparison import assert_same
from safetensors.torch import load_file, save_file

from colossalai_patch.optimizer_checkpoint import checked_file
from colossalai_patch.optimizer_checkpoint.background import by_alignment
from colossalai_patch.optimizer_checkpoint.checked_file import CheckedFile, finish_file, write_safetensors

STATE = {"small": torch.arange(5), "large": torch.arange(10**6, dtype=torch.float64)}


def test_torch_writes_to_it_what_it_writes_to_a_path(tmp_path):
    record = CheckedFile(tmp_path / "shard", lambda file: torch.save(STATE, file)).finish()
    assert_same(torch.load(tmp_path / "shard", weights_only=True), STATE)
    assert finish_file(tmp_path / "shard") == record


def test_the_reason_of_a_failed_write_is_told_where_torch_would_hide_it(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    whole = CheckedFile(tmp_path / "shard", lambda file: torch.save(STATE, file)).finish()
    monkeypatch.setattr(checked_file.os, "write", refuse)
    with pytest.raises(OSError, match="No space left on device") as raised:
        CheckedFile(tmp_path / "shard", lambda file: torch.save(STATE, file))
    assert raised.value.size == whole.size


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(checked_file.os, "write", lambda descriptor, data: write(descriptor, data[:100_000]))
    CheckedFile(tmp_path / "shard", lambda file: file.write(bytes(range(256)) * 10_000)).finish()
    assert (tmp_path / "shard").read_bytes() == bytes(range(256)) * 10_000


def test_a_safetensors_file_is_what_safetensors_writes(tmp_path):
    tensors = by_alignment(
        {
            "bytes": torch.arange(3, dtype=torch.uint8),
            "scalar": torch.tensor(7.0),
            "empty": torch.zeros(0, 4),
            "half": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
            "flags": torch.tensor([True, False]),
            "large": STATE["large"],
        }
    )
    save_file(tensors, tmp_path / "theirs")
    theirs = (tmp_path / "theirs").read_bytes()
    header = theirs[8 : 8 + int.from_bytes(theirs[:8], "little")]
    in_its_order = sorted(tensors, key=lambda name: header.index(f'"{name}"'.encode()))
    record = write_safetensors(tmp_path / "ours", header, [tensors[name] for name in in_its_order])
    assert (tmp_path / "ours").read_bytes() == theirs
    assert finish_file(tmp_path / "ours") == record
    assert_same(dict(sorted(load_file(tmp_path / "ours").items())), dict(sorted(tensors.items())))


def test_no_tensor_starts_between_two_of_its_items():
    names = by_alignment({"odd": torch.zeros(3, dtype=torch.uint8), "float": torch.zeros(2)})
    assert list(names) == ["float", "odd"]
