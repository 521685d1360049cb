"""The group file of a checkpoint: the optimizer's parameter groups, their ``params`` being param ids."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from colossalai_patch.optimizer_checkpoint import plain_values
from colossalai_patch.optimizer_checkpoint.content import check_bounds, copied_value
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import map_file
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

ParamGroups = list[dict[str, Any]]


def read_param_groups(path: Path) -> ParamGroups:
    """Read a group file, of either format.

    Returns:
        One dict per parameter group, in order; ``params`` is a list of param ids, all tensors are on the CPU.

    Raises:
        CheckpointError: if the file holds anything else.
        OSError: if the file cannot be read.
    """
    groups = _map_safetensors(path) if path.suffix == ".safetensors" else map_torch_file(map_file(path))[0]
    check_bounds(path, groups)
    if not is_param_groups(groups):
        raise CheckpointError(
            f"{path} is not the group file of an optimizer checkpoint, since it does not hold a list of parameter "
            "groups with a list 'params' of ids in each. Use another checkpoint."
        )
    copied: ParamGroups = copied_value(groups)
    return copied


def is_param_groups(value: Any) -> bool:
    """Whether ``value`` is a list of groups with a list ``params`` of param ids in each."""
    if not isinstance(value, list) or not all(isinstance(group, dict) for group in value):
        return False
    ids = [group.get("params") for group in value]
    return all(isinstance(params, list) and all(isinstance(i, (int, str)) for i in params) for params in ids)


def save_param_groups(groups: ParamGroups, path: Path) -> None:
    """Write ``groups``, as ``Optimizer.state_dict()["param_groups"]`` gives them, as a ``.safetensors`` group file.

    Tensors are stored as tensors, all else as JSON under ``param_groups`` in the metadata of the header.

    Raises:
        TypeError: if a group holds a value for which there is no JSON form.
        OSError: if the file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}

    def put_tensor(tensor: torch.Tensor) -> str:
        name = f"param_groups.{len(tensors)}"
        tensors[name] = tensor.detach().cpu().clone().contiguous()
        return name

    plain_groups = plain_values.encode(groups, put_tensor)
    save_file(tensors, path, metadata={"format": "pt", "param_groups": json.dumps(plain_groups)})


def _map_safetensors(path: Path) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            plain_groups = json.loads((file.metadata() or {}).get("param_groups", "null"))
            return plain_values.decode(plain_groups, file.get_tensor)
    except (SafetensorError, AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {error}. Use another checkpoint.") from error
