"""An optimizer checkpoint in one file."""

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.load import load_state_dict
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_state_dict
from colossalai_patch.optimizer_checkpoint.shard import read_states
from colossalai_patch.optimizer_checkpoint.torch_file import load_torch_file


def load_optimizer_file(optimizer: Optimizer, path: str | Path) -> None:
    """Load a checkpoint in one file with ``optimizer.load_state_dict``.

    Raises:
        CheckpointError: if the file is damaged, or no optimizer checkpoint.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        OSError: if the file cannot be read.
    """
    load_state_dict(optimizer, read_optimizer_file(path))


def read_optimizer_file(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint in one file: what ``torch.save(optimizer.state_dict())`` wrote, or its safetensors form.

    Returns:
        The state dict. All tensors are on the CPU, in memory of their own.

    Raises:
        CheckpointError: if the file is damaged, or no optimizer checkpoint.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        state_dict = map_safetensors_state_dict(path)
        return state_dict | {"state": read_states(state_dict["state"])}
    state_dict = load_torch_file(path)
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        raise CheckpointError(f"{path} is no optimizer checkpoint: it holds no dict with 'state' and 'param_groups'.")
    return state_dict
