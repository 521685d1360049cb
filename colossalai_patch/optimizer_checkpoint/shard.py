"""One shard of a checkpoint: the states of some of the parameters."""

from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.safetensors_file import load_safetensors_states
from colossalai_patch.optimizer_checkpoint.torch_file import load_torch_file

ParamId = int | str
State = dict[str, Any]


def read_shard(path: Path) -> dict[ParamId, State]:
    """Read a shard of either format.

    Returns:
        The state of each parameter by its id. The tensors are on the CPU, in memory of their own.

    Raises:
        CheckpointError: if the file is no shard, damaged, or holds what cannot be read without running code.
        OSError: if the file cannot be read.
    """
    states = load_safetensors_states(path) if path.suffix == ".safetensors" else load_torch_file(path)
    if not isinstance(states, dict):
        raise CheckpointError(f"{path} is not a shard of an optimizer checkpoint, since it holds no dict of states.")
    return {_param_id(key): state for key, state in states.items()}


def _param_id(key: Any) -> Any:
    """Stock makes every key a number; a key that is no number is kept, as natively."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key
