"""An optimizer checkpoint in one file."""

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.content import check_bounds, copied_value
from colossalai_patch.optimizer_checkpoint.errors import NotACheckpointError
from colossalai_patch.optimizer_checkpoint.load import load_state_dict
from colossalai_patch.optimizer_checkpoint.param_groups import is_param_groups
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_state_dict
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

FIRST_BYTES = (b"P", b"\x80")  # of a zip, and of a pickle


def load_optimizer_file(optimizer: Optimizer, path: str | Path) -> None:
    """Load a checkpoint in one file with ``optimizer.load_state_dict``.

    Raises:
        CheckpointError: if the file is damaged, or no optimizer checkpoint.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        OSError: if the file cannot be read.
    """
    load_state_dict(optimizer, read_optimizer_file(path), path)


def read_optimizer_file(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint in one file: what ``torch.save(optimizer.state_dict())`` wrote, or its safetensors form.

    Returns:
        The state dict. All tensors are on the CPU, in memory of their own.

    Raises:
        NotACheckpointError: if the file holds something else.
        CheckpointError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    state_dict = map_optimizer_file(Path(path))
    copied: dict[str, Any] = copied_value(state_dict)
    return copied


def map_optimizer_file(path: Path) -> dict[str, Any]:
    """As ``read_optimizer_file``, but the tensors are views of the mapped file where its format allows that.

    Raises:
        NotACheckpointError: if the file holds something else.
        CheckpointError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    is_safetensors = path.suffix == ".safetensors"
    if not is_safetensors and not _is_torch_file(path):
        raise NotACheckpointError(f"{path} is neither a file of torch.save nor one of safetensors.")
    state_dict = map_safetensors_state_dict(path) if is_safetensors else map_torch_file(path)
    if not _is_state_dict(state_dict):
        raise NotACheckpointError(f"{path} is no optimizer checkpoint: it does not hold 'state' and 'param_groups'.")
    check_bounds(path, state_dict)
    return state_dict


def _is_torch_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) in FIRST_BYTES


def _is_state_dict(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("state"), dict):
        return False
    return is_param_groups(content.get("param_groups"))
