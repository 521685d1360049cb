"""Checkpoints on disk, in the formats that ColossalAI writes."""

import json

import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from colossalai.utils.safetensors import _flatten_optim_state_dict
from safetensors.torch import save_file

INDEX_FILE = "pytorch_optim.bin.index.json"
GROUP_FILE = "pytorch_optim_group.bin"
MEGABYTES_OF_A_SHARD = 1e-4  # less than one state, so that every state has a shard of its own


def group_file_of(folder):
    return folder / json.loads((folder / INDEX_FILE).read_text())["metadata"]["param_groups"]


def save_bin(optimizer, folder):
    """What stock writes: its names, without checksums."""
    GeneralCheckpointIO().save_sharded_optimizer(optimizer, folder, True, None, MEGABYTES_OF_A_SHARD)


def save_safetensors(optimizer, folder):
    """What an async save writes, made without TensorNVMe, which is not published."""
    save_bin(optimizer, folder)
    index = json.loads((folder / INDEX_FILE).read_text())
    shards = {name: name.replace(".bin", ".safetensors") for name in index["weight_map"].values()}
    for old, new in shards.items():
        write_safetensors(torch.load(folder / old, weights_only=True), folder / new)
        (folder / old).unlink()
    index["weight_map"] = {param_id: shards[name] for param_id, name in index["weight_map"].items()}
    (folder / "optimizer.safetensors.index.json").write_text(json.dumps(index))
    (folder / INDEX_FILE).unlink()


def write_safetensors(states, path):
    """Write states, or a whole state dict, with ColossalAI's own flattening into tensors and pickles."""
    tensors, metadata = _flatten_optim_state_dict(states)
    tensors = {key: tensor.contiguous() for key, tensor in tensors.items()}
    save_file(tensors, path, metadata={name: json.dumps(value) for name, value in (metadata or {}).items()})


def in_order(value):
    """The same value with the keys of all dicts in it in order, since safetensors files have an order of their own."""
    if not isinstance(value, dict):
        return value
    return {key: in_order(value[key]) for key in sorted(value, key=str)}
