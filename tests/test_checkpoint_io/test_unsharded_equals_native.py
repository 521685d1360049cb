"""An unsharded load leaves exactly what ``Optimizer.load_state_dict`` leaves, for every optimizer."""

import copy
import itertools

import pytest
import torch
from checkpoints import write_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from optimizer_recipes import RECIPES, Run, assert_same_run


def save_bin(state_dict, path):
    torch.save(state_dict, path.with_suffix(".bin"))
    return path.with_suffix(".bin")


def save_safetensors(state_dict, path):
    write_safetensors(state_dict, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


@pytest.mark.parametrize("low_cpu_mem_mode", [True, False], ids=["low", "high"])
@pytest.mark.parametrize(("name", "save"), itertools.product(RECIPES, [save_bin, save_safetensors]))
def test_an_unsharded_load_equals_native(tmp_path, name, save, low_cpu_mem_mode):
    source = Run(name, torch.float32, group_count=2).step(2, seed=1, without_gradient=[1])
    restored, native = (Run(name, torch.float32, group_count=2).step(1, seed=2) for _ in range(2))
    path = save(source.optimizer.state_dict(), tmp_path / "optimizer")

    GeneralCheckpointIO().load_optimizer(restored.optimizer, str(path), low_cpu_mem_mode=low_cpu_mem_mode)
    native.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))

    assert_same_run(restored, native)
    assert_same_run(restored.step(3, seed=3), native.step(3, seed=3))
