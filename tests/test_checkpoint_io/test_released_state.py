"""With COLOSSALAI_PATCH_RELEASE_OLD_STATE=1 the old state is given up when the checkpoint has been verified."""

import copy
import os
import weakref

import pytest
import torch
from checkpoints import save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same, assert_same_optimizer
from training import make_parameters, split_into_groups, train

from colossalai_patch.optimizer_checkpoint import CheckpointError, StreamedStates, load_streamed
from colossalai_patch.optimizer_checkpoint.shard import MappedShard, copy_state


@pytest.fixture(autouse=True)
def _released(monkeypatch):
    monkeypatch.setenv("COLOSSALAI_PATCH_RELEASE_OLD_STATE", "1")


def save_single_file(optimizer, folder):
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")


def make_optimizer(steps, groups=2, make=torch.optim.AdamW):
    optimizer = make(split_into_groups(make_parameters(), groups))
    train(optimizer, steps)
    return optimizer


def saved(folder, save=save_bin, **options):
    """A checkpoint whose learning rates no new optimizer has."""
    source = make_optimizer(steps=2, **options)
    for group in source.param_groups:
        group["lr"] /= 7
    save(source, folder)
    return source


def load(optimizer, folder):
    single_file = folder / "optimizer.bin"
    GeneralCheckpointIO().load_optimizer(optimizer, single_file if single_file.exists() else folder)


def damage_last_shard(folder):
    shard = max(folder.glob("*-0*"))
    os.truncate(shard, shard.stat().st_size - 100)


@pytest.mark.parametrize("save", [save_bin, save_safetensors, save_single_file])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.ASGD, torch.optim.Adagrad])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_load_equals_native(tmp_path, save, make, steps):
    source = saved(tmp_path, save, make=make)
    restored, native = make_optimizer(steps, make=make), make_optimizer(steps, make=make)
    load(restored, tmp_path)
    native.load_state_dict(source.state_dict())
    assert_same(restored.state_dict()["param_groups"], native.state_dict()["param_groups"])
    for parameter, expected in zip(make_order(restored), make_order(native), strict=True):
        assert_same(dict(sorted(restored.state[parameter].items())), dict(sorted(native.state[expected].items())))


def make_order(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_the_old_state_is_gone_when_the_first_shard_is_loaded(tmp_path):
    optimizer = make_optimizer(steps=3)
    old = [weakref.ref(value) for state in optimizer.state.values() for value in state.values()]
    alive = []

    def shard():
        alive.append(sum(value() is not None for value in old))
        return MappedShard({}, copy_state)

    groups = copy.deepcopy(optimizer.state_dict()["param_groups"])
    load_streamed(optimizer, groups, StreamedStates([shard], 0), tmp_path)
    assert alive == [len(old), 0]


def test_a_damaged_shard_is_noticed_before_anything_is_released(tmp_path):
    saved(tmp_path)
    damage_last_shard(tmp_path)
    optimizer, untouched = make_optimizer(steps=3), make_optimizer(steps=3)
    with pytest.raises(CheckpointError, match=r"-00003\.bin is not complete"):
        load(optimizer, tmp_path)
    assert_same_optimizer(optimizer, untouched)


def test_a_failure_leaves_a_fresh_optimizer_as_it_was(tmp_path):
    saved(tmp_path)
    damage_last_shard(tmp_path)
    optimizer, untouched = make_optimizer(steps=0), make_optimizer(steps=0)
    with pytest.raises(CheckpointError, match=r"damaged|complete"):
        load(optimizer, tmp_path)
    assert_same_optimizer(optimizer, untouched)


@pytest.mark.parametrize("save", [save_bin, save_single_file])
def test_groups_that_do_not_fit_are_refused_before_anything_is_released(tmp_path, save):
    saved(tmp_path, save, groups=1)
    optimizer, untouched = make_optimizer(steps=3), make_optimizer(steps=3)
    with pytest.raises(ValueError, match="group"):
        load(optimizer, tmp_path)
    assert_same_optimizer(optimizer, untouched)


def test_a_missing_shard_is_noticed_before_anything_is_released(tmp_path):
    saved(tmp_path)
    max(tmp_path.glob("*-0*")).unlink()
    optimizer, untouched = make_optimizer(steps=3), make_optimizer(steps=3)
    with pytest.raises(FileNotFoundError):
        load(optimizer, tmp_path)
    assert_same_optimizer(optimizer, untouched)
