"""Plain files of torch.save are read without torch's unpickler, to the same content; others are torch's to read."""

import re
import struct
import zipfile
from collections import OrderedDict

import pytest
import torch
from comparison import assert_same
from flipped_bits import read_otherwise

from colossalai_patch.optimizer_checkpoint import CheckpointError, load_torch_file
from colossalai_patch.optimizer_checkpoint.content import copied_value
from colossalai_patch.optimizer_checkpoint.files import map_file
from colossalai_patch.optimizer_checkpoint.torch_archive import map_archive, unpickle_archive
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

DTYPES = [
    torch.bfloat16,
    torch.bool,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
]
SHARED = torch.arange(12.0)
PLAIN = {
    **{str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES},
    "a scalar": torch.tensor(1.0),
    "an empty tensor": torch.empty(0, 3),
    "strides": torch.arange(6.0).reshape(2, 3).t(),
    "an offset": SHARED[3:7],
    "a shared storage": [SHARED, SHARED[2:], SHARED.view(3, 4)],
    "an expanded tensor": torch.ones(1).expand(4),
    "bytes": b"\0\xff",
    "values": {"a": None, "b": (1, 2.5, "x"), "c": [True, 2**70], "d": OrderedDict(e="f")},
}
NOT_PLAIN = {
    "complex": torch.zeros(2, dtype=torch.complex64),
    "float8": torch.zeros(2).to(torch.float8_e4m3fn),
    "a parameter": torch.nn.Parameter(torch.ones(2)),
    "a gradient": torch.ones(2, requires_grad=True),
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a dtype": torch.float32,
    "a size": torch.Size([2]),
}


def save(value, folder):
    path = folder / "file.bin"
    torch.save({"value": value}, path)
    return path


def mapped(path):
    return map_torch_file(map_file(path))[0]


@pytest.mark.parametrize("name", PLAIN)
def test_what_is_plain_is_read_as_torch_reads_it(tmp_path, name):
    path = save(PLAIN[name], tmp_path)
    assert_same(unpickle_archive(map_archive(map_file(path))), torch.load(path, weights_only=True))


def test_strides_and_what_is_shared_are_as_torch_gives_them(tmp_path):
    path = save([SHARED, SHARED.view(3, 4).t()], tmp_path)
    first, second = unpickle_archive(map_archive(map_file(path)))["value"]
    assert second.stride() == (1, 4)
    first[1] = -1.0
    assert second[1, 0] == -1.0


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_torch(tmp_path, name):
    path = save(NOT_PLAIN[name], tmp_path)
    with pytest.raises(Exception, match=r"^"):
        unpickle_archive(map_archive(map_file(path)))
    assert_same(mapped(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize(
    "value", [torch.ones(2).storage(), torch.FloatStorage, OrderedDict], ids=lambda v: str(type(v))
)
def test_what_a_tensor_is_made_of_is_left_to_torch_where_it_is_a_value(tmp_path, value):
    path = save((1, [value]), tmp_path)
    (_, [ours]), (_, [theirs]) = mapped(path)["value"], torch.load(path, weights_only=True)["value"]
    assert type(ours) is type(theirs)


def rewrite(path, change, more=()):
    """Write the records of a file anew, with what ``change`` makes of each name and content, None leaving it out."""
    with zipfile.ZipFile(path) as file:
        records = {name: file.read(name) for name in file.namelist()}
        folder = file.namelist()[0].partition("/")[0]
    records |= {f"{folder}/{name}": b"" for name in more}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, content in records.items():
            changed = change(name.partition("/")[2], content)
            if changed is not None:
                file.writestr(aligned(name, file.fp.tell()), changed)


def aligned(name, offset):
    """A record whose content begins at a multiple of 64 bytes, as torch's do."""
    record = zipfile.ZipInfo(name)
    padding = -(offset + 30 + len(name) + 4) % 64
    record.extra = struct.pack("<HH", 0x4246, padding) + bytes(padding)
    return record


@pytest.mark.parametrize(
    "name", [".data/serialization_id", ".format_version", ".storage_alignment", "byteorder", "version"]
)
@pytest.mark.parametrize("content", [b"", b"\xd0\x00", b"64", b" 3\n"])
def test_with_any_record_beside_the_content_a_file_loads_if_it_does_natively(tmp_path, name, content):
    path = save(torch.arange(64.0), tmp_path)
    rewrite(path, lambda written, old: content if written == name else old)
    try:
        expected = torch.load(path, weights_only=True)
    except Exception:
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            mapped(path)
    else:
        assert_same(mapped(path), expected)


@pytest.mark.slow
def test_with_any_bit_flipped_a_file_loads_as_natively_or_is_refused(tmp_path):
    path = save([torch.arange(3.0), torch.arange(3, dtype=torch.int32), (1, 2.5, None, True)], tmp_path)
    assert read_otherwise(path, mapped, lambda path: torch.load(path, map_location="cpu", weights_only=True)) == []


def test_a_tensor_that_is_not_whole_is_refused(tmp_path):
    path = save(torch.arange(64.0), tmp_path)
    rewrite(path, lambda name, content: content[:-4] if name == "data/0" else content)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged: a tensor has 252 bytes"):
        mapped(path)


def test_what_is_written_anew_unchanged_is_plain(tmp_path):
    path = save(torch.arange(64.0), tmp_path)
    rewrite(path, lambda name, content: content)
    assert_same(unpickle_archive(map_archive(map_file(path))), torch.load(path, weights_only=True))


def test_a_torchscript_archive_is_refused(tmp_path):
    path = save(torch.arange(64.0), tmp_path)
    rewrite(path, lambda name, content: content, ["constants.pkl"])
    with pytest.raises(Exception, match=r"^"):
        torch.load(path, weights_only=True)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is a TorchScript archive"):
        mapped(path)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is a TorchScript archive"):
        load_torch_file(path)


@pytest.mark.parametrize("value", [torch.arange(64.0), torch.nn.Parameter(torch.arange(64.0))], ids=["plain", "not"])
@pytest.mark.parametrize(
    "change",
    [
        lambda name, content: None if name == "data/0" else content,
        lambda name, content: None if name == "data.pkl" else content,
        lambda name, content: None if name == "version" else content,
        lambda name, content: content[:-8] if name == "data.pkl" else content,
        lambda name, content: b"medium" if name == "byteorder" else content,
    ],
    ids=["no storage", "no pickle", "no version", "a short pickle", "a byte order"],
)
def test_a_file_that_torch_refuses_is_refused(tmp_path, change, value):
    path = save(value, tmp_path)
    rewrite(path, change)
    with pytest.raises(Exception, match=r"^"):
        torch.load(path, weights_only=True)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        load_torch_file(path)
    with pytest.raises(CheckpointError, match=re.escape(str(path))):
        mapped(path)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.arange(1e5).reshape(4, -1),
        torch.arange(1e5).reshape(4, -1).t(),
        torch.arange(1e5).to(torch.complex64).conj(),
        torch.ones(1).expand(4),
        torch.empty(0, 3),
        torch.tensor(1.0),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.eye(2).to_sparse(),
        torch.zeros(2).to(torch.float8_e4m3fn),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_a_copy_has_the_values_of_the_tensor_in_memory_of_its_own(tensor):
    copied = copied_value(tensor)
    assert type(copied) is type(tensor)
    assert copied.dtype == tensor.dtype
    assert str(copied) == str(tensor)
    if tensor.layout is torch.strided and tensor.numel():
        assert copied.data_ptr() != tensor.data_ptr()
