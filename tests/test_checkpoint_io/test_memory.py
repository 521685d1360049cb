"""What a load takes beside the finished state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from load_under_a_limit import make_optimizer

SCRIPT = Path(__file__).with_name("load_under_a_limit.py")
MEGABYTES_OF_A_SHARD = 32


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """256 MiB in eight shards."""
    optimizer = make_optimizer()
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.ones_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.ones_like(parameter, requires_grad=False),
        }
    folder = tmp_path_factory.mktemp("checkpoint")
    GeneralCheckpointIO().save_optimizer(optimizer, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD)
    return folder


def load_with_room_for(shards, folder):
    settings = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), str(shards)]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)


def test_the_finished_state_and_two_shards_are_enough(checkpoint):
    result = load_with_room_for(2, checkpoint)
    assert result.returncode == 0, result.stderr


def test_less_than_the_finished_state_is_not_enough(checkpoint):
    result = load_with_room_for(-2, checkpoint)
    assert result.returncode != 0
