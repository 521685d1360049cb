"""An optimizer checkpoint in one file."""

from functools import partial
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.as_saved import check_as_saved
from colossalai_patch.optimizer_checkpoint.collector import paused_collector
from colossalai_patch.optimizer_checkpoint.content import check_bounds, copied_value
from colossalai_patch.optimizer_checkpoint.errors import NotACheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile, map_file
from colossalai_patch.optimizer_checkpoint.load import load_streamed
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups, is_param_groups
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_state_dict
from colossalai_patch.optimizer_checkpoint.shard import MappedShard, Take, copy_state, without_needless_copy
from colossalai_patch.optimizer_checkpoint.states import StreamedStates
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

FIRST_BYTES = (b"P", b"\x80")  # of a zip, and of a pickle


def load_optimizer_file(optimizer: Optimizer, path: str | Path) -> None:
    """Load a checkpoint in one file with ``optimizer.load_state_dict``.

    Raises:
        CheckpointError: if the file is damaged, or no optimizer checkpoint.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        OSError: if the file cannot be read.
    """
    groups, states = open_optimizer_file(path)
    load_streamed(optimizer, groups, states, path)


def open_optimizer_file(path: str | Path, take: Take = copy_state) -> tuple[ParamGroups, StreamedStates]:
    """Open a checkpoint in one file: what ``torch.save(optimizer.state_dict())`` wrote, or its safetensors form.

    Args:
        path: the file.
        take: what to keep of each state; see ``read_shard``.

    Returns:
        The parameter groups, and the states, to be read while they are consumed. All tensors are on the CPU, in memory
        of their own.

    Raises:
        NotACheckpointError: if the file holds something else.
        CheckpointError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    state_dict, are_views, file = _mapped(Path(path))
    take = without_needless_copy(take, are_views)
    verify = partial(check_as_saved, file.path, None, mapped=file)
    states = StreamedStates([lambda: MappedShard(state_dict["state"], take, verify=verify)], Path(path).stat().st_size)
    return copied_value(state_dict["param_groups"]), states


def map_optimizer_file(path: Path) -> dict[str, Any]:
    """Give the state dict in a checkpoint in one file; its tensors are views of the mapped file if its format allows.

    Raises:
        NotACheckpointError: if the file holds something else.
        CheckpointError: if the file is damaged.
        OSError: if the file cannot be read.
    """
    return _mapped(path)[0]


def _mapped(path: Path) -> tuple[dict[str, Any], bool, MappedFile]:
    """The state dict, whether its tensors are views, and the file."""
    is_safetensors = path.suffix == ".safetensors"
    if not is_safetensors and not _is_torch_file(path):
        raise NotACheckpointError(f"{path} is neither a file of torch.save nor one of safetensors.")
    with paused_collector():
        file = map_file(path)
        state_dict, are_views = (map_safetensors_state_dict(file), True) if is_safetensors else map_torch_file(file)
    if not _is_state_dict(state_dict):
        raise NotACheckpointError(f"{path} is no optimizer checkpoint: it does not hold 'state' and 'param_groups'.")
    check_bounds(path, state_dict)
    return state_dict, are_views, file


def _is_torch_file(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) in FIRST_BYTES


def _is_state_dict(content: Any) -> bool:
    if not isinstance(content, dict) or not isinstance(content.get("state"), dict):
        return False
    return is_param_groups(content.get("param_groups"))
