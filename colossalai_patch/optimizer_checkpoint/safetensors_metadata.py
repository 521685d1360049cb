"""What the header of a safetensors file says of states besides their tensors; stock ignores it."""

from collections.abc import Mapping
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.background import plain_forms

PLAIN_VALUES = "plain_values"
STATES = "states"


def described(state_dict: Mapping[Any, Any]) -> dict[str, Any]:
    """Give the metadata, as JSON values, from which states come back as they were.

    Args:
        state_dict: the states by param id, or a whole state dict.
    """
    states = state_dict.get("state", state_dict)
    values = {
        key_of(param_id, name): value
        for param_id, state in states.items()
        for name, value in state.items()
        if not isinstance(value, torch.Tensor)
    }
    if "param_groups" in state_dict:
        values["param_groups"] = state_dict["param_groups"]
    return {
        PLAIN_VALUES: plain_forms(values),
        STATES: {str(param_id): list(map(_as_json, state)) for param_id, state in states.items()},
    }


def key_of(param_id: Any, name: Any) -> str:
    """The key of a value in the file."""
    return f"state.{param_id}.{name}"


def _as_json(name: Any) -> int | str:
    return name if type(name) is int else str(name)
