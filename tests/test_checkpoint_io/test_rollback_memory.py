"""A trained optimizer is rolled back in its own memory, and is untouched as long as the checkpoint is in doubt."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from checkpoints import save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same, assert_same_optimizer
from roll_back_under_a_limit import make_optimizer as make_large_optimizer

from colossalai_patch.optimizer_checkpoint import load as loading
from colossalai_patch.optimizer_checkpoint import shard as shards
from colossalai_patch.optimizer_checkpoint.errors import StateReleasedError

SCRIPT = Path(__file__).with_name("roll_back_under_a_limit.py")
NUMBERS = 2**16


def make_optimizer(value, parameters=3):
    """As an AdamW with ``value`` in its states, made by no step, so that nothing else refers to them."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(NUMBERS)) for _ in range(parameters)], lr=value)
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(value)),
            "exp_avg": torch.full((NUMBERS,), float(value + number)),
            "exp_avg_sq": torch.full((NUMBERS,), float(value * 2 + number)),
        }
    return optimizer


def load(optimizer, folder):
    GeneralCheckpointIO().load_optimizer(optimizer, folder)


def moments(optimizer):
    return [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


def addresses(optimizer):
    return [tensor.data_ptr() for tensor in moments(optimizer)]


@pytest.fixture
def _in_place(monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_RELEASE_OLD_STATE", "1")


@pytest.mark.usefixtures("_in_place")
@pytest.mark.parametrize("save", [save_bin, save_safetensors])
def test_the_memory_of_the_old_state_is_used_again(tmp_path, save):
    source, optimizer = make_optimizer(2), make_optimizer(5)
    save(source, tmp_path)
    before = addresses(optimizer)
    load(optimizer, tmp_path)
    assert addresses(optimizer) == before
    assert all(map(torch.equal, moments(optimizer), moments(source)))


KEPT = {
    "a tensor": lambda optimizer: moments(optimizer),
    "a view": lambda optimizer: [tensor[1:] for tensor in moments(optimizer)],
    "an array": lambda optimizer: [torch.from_numpy(tensor.numpy()) for tensor in moments(optimizer)],
    "a storage": lambda optimizer: [tensor.untyped_storage() for tensor in moments(optimizer)],
    "a state": lambda optimizer: list(optimizer.state.values()),
    "all states": lambda optimizer: optimizer.state,
    "a state dict": lambda optimizer: optimizer.state_dict(),
}


def seen(kept):
    """The numbers in what was kept, copied."""
    if isinstance(kept, (torch.Tensor, torch.UntypedStorage)):
        return kept.clone()
    if isinstance(kept, dict):
        return [seen(value) for value in kept.values()]
    return [seen(value) for value in kept] if isinstance(kept, list) else kept


def numbers(kept):
    """All of them as tensors, one after the other."""
    if isinstance(kept, list):
        return [tensor for value in kept for tensor in numbers(value)]
    if isinstance(kept, torch.UntypedStorage):
        return [torch.tensor(kept.tolist())]
    return [kept] if isinstance(kept, torch.Tensor) else []


@pytest.mark.usefixtures("_in_place")
@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_what_a_script_keeps_does_not_change(tmp_path, keep):
    source, optimizer = make_optimizer(2), make_optimizer(5)
    save_bin(source, tmp_path)
    kept = keep(optimizer)
    before = numbers(seen(kept))
    load(optimizer, tmp_path)
    assert before
    assert all(map(torch.equal, numbers(seen(kept)), before))
    assert_same(optimizer.state_dict(), source.state_dict())


def failing_at(shard_number, map_shard, error):
    """``map_shard``, but the first reading of one shard, and what is still to be read of it, fail once each."""
    failures = [error]

    def mapped(shard, take):
        if shard.path.stem.endswith(f"{shard_number:05d}") and failures:
            raise failures.pop()
        return map_shard(shard, take)

    return mapped


ALLOCATIONS = {
    "Python": MemoryError(),
    "mmap": OSError(12, "Cannot allocate memory"),
    "torch": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes"),
    "a device": torch.cuda.OutOfMemoryError("CUDA out of memory."),
}


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("error", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_an_allocation_that_fails_on_the_way_has_the_load_go_on_in_place(tmp_path, monkeypatch, number, error):
    source, optimizer = make_optimizer(2), make_optimizer(5)
    save_bin(source, tmp_path)
    before = addresses(optimizer)
    monkeypatch.setattr(
        "colossalai_patch.optimizer_checkpoint.checkpoint.map_shard", failing_at(number, shards.map_shard, error)
    )
    load(optimizer, tmp_path)
    assert_same(optimizer.state_dict(), source.state_dict())
    assert sorted(addresses(optimizer)) == sorted(before)


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("error", ALLOCATIONS.values(), ids=ALLOCATIONS)
def test_it_is_passed_on_with_the_sizes_where_the_old_state_must_stay(tmp_path, monkeypatch, number, error):
    monkeypatch.setenv("COLOSSALAI_PATCH_RELEASE_OLD_STATE", "0")
    optimizer = make_optimizer(5)
    save_bin(make_optimizer(2), tmp_path)
    monkeypatch.setattr(
        "colossalai_patch.optimizer_checkpoint.checkpoint.map_shard",
        failing_at(number, shards.map_shard, type(error)(*error.args)),
    )
    with pytest.raises(type(error), match=r"takes \d+ MB beside the old one's \d+ MB"):
        load(optimizer, tmp_path)
    assert_same_optimizer(optimizer, make_optimizer(5))


def test_what_does_not_fit_is_loaded_in_place_with_a_line_in_the_log(tmp_path, monkeypatch, caplog):
    source, optimizer = make_optimizer(2), make_optimizer(5)
    save_bin(source, tmp_path)
    monkeypatch.setattr(loading, "shortage", lambda optimizer, size: "1 MB, where 0 MB are free")
    load(optimizer, tmp_path)
    assert_same(optimizer.state_dict(), source.state_dict())
    assert caplog.text.count("in place of the optimizer's old state, since the new one takes 1 MB") == 1


@pytest.mark.usefixtures("_in_place")
def test_a_failure_after_the_verification_says_what_is_left(tmp_path, monkeypatch):
    source, optimizer = make_optimizer(2), make_optimizer(5)
    save_bin(source, tmp_path)
    monkeypatch.setattr(shards.CopyState, "copied", lambda self, value: torch.empty(2**60))
    with pytest.raises(StateReleasedError, match=r"allocate.*no state.*as COLOSSALAI_PATCH_RELEASE_OLD_STATE=1 asks"):
        load(optimizer, tmp_path)
    assert len(optimizer.state) == 0
    assert_same(optimizer.state_dict()["param_groups"], source.state_dict()["param_groups"])


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """200 MiB in shards of 16 MiB, in both formats, and in one file."""
    folder, source = tmp_path_factory.mktemp("large"), make_large_optimizer(2)
    save = partial(GeneralCheckpointIO().save_optimizer, source, shard=True, size_per_shard=20)
    save(folder / "bin")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLOSSALAI_PATCH_SAVE_FORMAT", "safetensors")
        save(folder / "safetensors")
    GeneralCheckpointIO().save_optimizer(source, folder / "one.bin")
    return folder


def roll_back(checkpoint, spare, *expected_error):
    settings = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(checkpoint), str(spare), *expected_error]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("checkpoint", "megabytes"), [("bin", 80), ("safetensors", 80), ("one.bin", 250)])
def test_a_rollback_needs_no_room_for_a_second_state(large, checkpoint, megabytes):
    result = roll_back(large / checkpoint, megabytes)
    assert result.returncode == 0, result.stderr


def test_a_broken_shard_under_the_same_limit_leaves_the_optimizer_as_it_was(large):
    sound, broken = large / "bin", large / "broken"
    broken.mkdir()
    for file in sound.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (large / "broken-sound").symlink_to(sound)
    shard = max(broken.glob("*-000*.bin"))
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"broken")
    result = roll_back(broken, 80, "CheckpointError")
    assert result.returncode == 0, result.stderr
    assert shard.name in result.stdout
