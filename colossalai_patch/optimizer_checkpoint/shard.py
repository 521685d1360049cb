"""One shard of a checkpoint: the states of some of the parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_states
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

ParamId = int | str
State = dict[str, Any]
Take = Callable[[ParamId, State], State | None]


def copy_state(param_id: ParamId, state: State) -> State:
    """Take the whole state: a copy in memory of its own, which outlives the mapped file."""
    copied: State = copy_value(state)
    return copied


def read_shard(path: Path, take: Take = copy_state) -> dict[ParamId, State]:
    """Read a shard of either format.

    Args:
        path: the shard.
        take: gets each param id with its state, whose tensors are on the CPU and views of the mapped file, and returns
            what to keep of it, copied, or None to leave it out. Only the pages that it touches are read.

    Returns:
        What ``take`` returned by param id, in the order of the shard.

    Raises:
        CheckpointError: if the file is no shard, damaged, or holds what cannot be read without running code.
        OSError: if the file cannot be read.
    """
    states = map_safetensors_states(path) if path.suffix == ".safetensors" else map_torch_file(path)
    if not isinstance(states, dict):
        raise CheckpointError(f"{path} is not a shard of an optimizer checkpoint, since it holds no dict of states.")
    return read_states(states, take)


def read_states(states: dict[Any, State], take: Take = copy_state) -> dict[ParamId, State]:
    """Take what is wanted of states whose tensors are views of a mapped file, by their true param ids."""
    by_id = ((_param_id(key), state) for key, state in states.items())
    kept = ((param_id, take(param_id, state)) for param_id, state in by_id)
    return {param_id: state for param_id, state in kept if state is not None}


def _param_id(key: Any) -> Any:
    """Stock makes every key a number; a key that is no number is kept, as natively."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def copy_value(value: Any) -> Any:
    """Copy a value of a state, with the tensors in it."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)((key, copy_value(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(copy_value(item) for item in value)
    return value
