"""A load reads one checkpoint, whole, while another process saves to the same place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from beside_a_saver import WAYS, fill, make_model, numbers_in_model, numbers_in_optimizer
from colossalai.checkpoint_io import GeneralCheckpointIO, checkpoint_io_base, utils
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, set_number

from colossalai_patch.optimizer_checkpoint import CheckpointError, checkpoint, shard, torch_file

SCRIPT = Path(__file__).parents[1] / "beside_a_saver.py"
LOADS_OF_A_WAY = 60


def save_optimizer(folder, number):
    optimizer = make_optimizer()
    set_number(optimizer, number)
    GeneralCheckpointIO().save_optimizer(optimizer, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD)


def save_model(folder, number, use_safetensors):
    model = make_model()
    fill(model, number)
    GeneralCheckpointIO().save_model(
        model, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD, use_safetensors=use_safetensors
    )


def save_model_as_stock(folder, number, use_safetensors=False):
    """Without a commit: each file is written over the one of that name."""
    model = make_model()
    fill(model, number)
    GeneralCheckpointIO().save_sharded_model(model, folder, True, None, MEGABYTES_OF_A_SHARD, use_safetensors)


def before_call(monkeypatch, module, name, action, number=1):
    """Do ``action`` once, in front of that call of a function."""
    function, calls = getattr(module, name), iter(range(1, 1000))

    def act_and_call(*arguments, **options):
        if next(calls) == number:
            action()
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, act_and_call)


@pytest.mark.parametrize("saved_as", ["bin", "safetensors"])
@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (checkpoint_io_base, "find_index", 1),
        (checkpoint, "read_index", 1),
        (checkpoint, "check_file", 1),
        (checkpoint, "check_complete", 3),
        (checkpoint, "check_checksum", 1),
        (checkpoint, "read_param_groups", 1),
        (torch_file, "is_zip", 1),
        (shard, "map_file", 1),
        (shard, "map_file", 2),
    ],
)
def test_an_optimizer_is_that_of_the_save_that_removed_the_one_before(
    tmp_path, monkeypatch, module, name, call, saved_as
):
    monkeypatch.setenv("COLOSSALAI_PATCH_SAVE_FORMAT", saved_as)
    save_optimizer(tmp_path, 1)
    before_call(monkeypatch, module, name, lambda: save_optimizer(tmp_path, 2), call)
    optimizer = make_optimizer()
    GeneralCheckpointIO().load_optimizer(optimizer, os.fspath(tmp_path))
    assert numbers_in_optimizer(optimizer) == {2}


def test_an_optimizer_is_as_it_was_when_the_load_fails_in_spite_of_a_save(tmp_path, monkeypatch):
    def save_and_lose_a_shard():
        save_optimizer(tmp_path, 2)
        min(tmp_path.glob("pytorch_optim-*-00002.bin")).unlink()

    save_optimizer(tmp_path, 1)
    before_call(monkeypatch, shard, "map_file", save_and_lose_a_shard, 2)
    optimizer = make_optimizer()
    set_number(optimizer, 3)
    with pytest.raises(CheckpointError, match="is missing, though the index of the checkpoint names it"):
        GeneralCheckpointIO().load_optimizer(optimizer, os.fspath(tmp_path))
    assert numbers_in_optimizer(optimizer) == {3}


@pytest.mark.parametrize(
    ("save", "use_safetensors"),
    [(save_model, False), (save_model, True), (save_model_as_stock, False)],  # stock cuts off files that are mapped
)
@pytest.mark.parametrize("low_cpu_mem_mode", [False, True])
@pytest.mark.parametrize("call", [1, 2])
def test_a_model_is_that_of_the_save_that_replaced_its_files(
    tmp_path, monkeypatch, use_safetensors, save, low_cpu_mem_mode, call
):
    save(tmp_path, 1, use_safetensors)
    before_call(monkeypatch, utils, "load_shard_state_dict", lambda: save(tmp_path, 2, use_safetensors), call)
    model = make_model()
    GeneralCheckpointIO().load_model(model, os.fspath(tmp_path), low_cpu_mem_mode=low_cpu_mem_mode)
    assert numbers_in_model(model) == {2}


def test_every_load_beside_a_saver_is_whole():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), "--loads", str(LOADS_OF_A_WAY * len(WAYS))],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
