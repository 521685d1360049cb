"""Stock ColossalAI loads what is saved here, and the two save over each other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, only_checkpoint_files, saved_number, set_number

TESTS = Path(__file__).parents[1]
NUMBER = 4
STATES = 5


def save_optimizer(path, more=None, **options):
    optimizer, checkpoint_io = make_optimizer(), GeneralCheckpointIO()
    set_number(optimizer, NUMBER)
    for state in optimizer.state.values():
        state.update(more or {})
    checkpoint_io.save_optimizer(optimizer, str(path), size_per_shard=MEGABYTES_OF_A_SHARD, **options)
    checkpoint_io._sync_io()


def save_model(path, **options):
    model, checkpoint_io = torch.nn.Linear(30, 40), GeneralCheckpointIO()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, NUMBER)
    checkpoint_io.save_model(model, str(path), size_per_shard=1e-3, **options)
    checkpoint_io._sync_io()


def save_optimizer_in_safetensors(path, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLOSSALAI_PATCH_SAVE_FORMAT", "safetensors")
        save_optimizer(path, **options)


CHECKPOINTS = {
    "bin": lambda path: save_optimizer(path, shard=True),
    "safetensors": lambda path: save_optimizer_in_safetensors(path, shard=True),
    "async": lambda path: save_optimizer(path, shard=True, use_async=True),
    "async-more": lambda path: save_optimizer(path, {"a": None, "b": (1, {}), "c": [None]}, shard=True, use_async=True),
    "file.bin": save_optimizer,
    "file.safetensors": lambda path: save_optimizer(path, use_async=True),
    "model-bin": lambda path: save_model(path, shard=True),
    "model-safetensors": lambda path: save_model(path, shard=True, use_safetensors=True),
    "model-async": lambda path: save_model(path, shard=True, use_safetensors=True, use_async=True),
    "model-file.safetensors": lambda path: save_model(path, use_safetensors=True, use_async=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def stock(folder):
    for name, save in CHECKPOINTS.items():
        save(folder / name)
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"COLOSSALAI_PATCH": "off", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("stock_loads.py"))]
    paths = [str(folder / name) for name in CHECKPOINTS]
    result = subprocess.run([*command, *paths], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_stock_loads_what_is_saved_here(stock, name):
    assert stock["loaded"][name] == ([NUMBER] if "model" in name else [NUMBER, STATES])


def test_stock_tidies_up_what_was_saved_here(stock):
    assert [name for name in stock["files"]["bin"] if name.count("-") > 1] == []
    assert "pytorch_optim.bin.index.json" in stock["files"]["bin"]


def test_a_save_replaces_one_by_stock(stock, folder):
    assert "pytorch_optim_group.bin" in stock["files"]["bin"]
    save_optimizer(folder / "bin", shard=True)
    assert saved_number(folder / "bin") == NUMBER
    assert only_checkpoint_files(folder / "bin")
