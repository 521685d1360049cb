"""Checkpoints on disk, written with torch alone, as ColossalAI writes them."""

import copy
import json
from pathlib import Path

import torch

SHAPES = [(4, 3), (7,), (), (2, 5), (6,)]
STATES_OF_A_SHARD = 2


def make_state_dict(steps=3):
    """An AdamW state dict with two groups, whose last parameter has no state."""
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = torch.optim.AdamW([{"params": params[:2], "lr": 0.1}, {"params": params[2:]}], weight_decay=0.02)
    for _ in range(steps):
        for param in params[:-1]:
            param.grad = torch.randn_like(param)
        optimizer.step()
    return optimizer.state_dict()


def changed(state_dict, change):
    """A copy of the state dict to which ``change`` was made."""
    state_dict = copy.deepcopy(state_dict)
    change(state_dict)
    return state_dict


def write_sharded(state_dict, folder, prefix=None):
    """Write a sharded checkpoint, without sizes and checksums, and return its folder."""
    folder, middle = Path(folder), f".{prefix}" if prefix else ""
    folder.mkdir(exist_ok=True)
    group_file = f"pytorch_optim_group{middle}.bin"
    torch.save(state_dict["param_groups"], folder / group_file)
    states, weight_map = list(state_dict["state"].items()), {}
    for start in range(0, len(states), STATES_OF_A_SHARD):
        shard = dict(states[start : start + STATES_OF_A_SHARD])
        name = f"pytorch_optim{middle}-{start // STATES_OF_A_SHARD + 1:05d}.bin"
        torch.save(shard, folder / name)
        weight_map |= {str(param_id): name for param_id in shard}
    index = {"metadata": {"param_groups": group_file, "total_size": 1.0}, "weight_map": weight_map}
    (folder / f"pytorch_optim.bin.index{middle}.json").write_text(json.dumps(index))
    return folder


def write_file(state_dict, path):
    """Write an unsharded checkpoint and return its path."""
    torch.save(state_dict, path)
    return path
