"""An optimizer checkpoint in one file."""

from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.torch_file import load_torch_file


def read_optimizer_file(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint in one file, as ``torch.save(optimizer.state_dict())`` wrote it.

    Returns:
        The state dict. All tensors are on the CPU, in memory of their own.

    Raises:
        CheckpointError: if the file is damaged, or no optimizer checkpoint.
        OSError: if the file cannot be read.
    """
    state_dict = load_torch_file(Path(path))
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= state_dict.keys():
        raise CheckpointError(f"{path} is no optimizer checkpoint: it holds no dict with 'state' and 'param_groups'.")
    return state_dict
