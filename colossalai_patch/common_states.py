"""The states of several ranks' optimizers, made alike before they are gathered.

Gathering goes state by state, in collectives. Ranks that have states of other parameters, or the same ones in another
order, would wait for each other for ever, or write one parameter's state into another's.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint import State

Params = Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class _PartOfState:
    """Stands for a tensor of which each rank has a part of its own."""

    dtype: torch.dtype


Outline = dict[int, dict[str, Any]]


def is_part(name: str, value: object, param_shape: Sequence[int]) -> bool:
    """Whether each rank has a part of the state ``name``: a tensor, less the scalars that some optimizers keep."""
    if not isinstance(value, torch.Tensor) or name == "step":
        return False
    return value.dim() > 0 or value.shape == torch.Size(param_shape)


def common_states(optimizer: Optimizer, params: Params, groups: Sequence[dist.ProcessGroup]) -> dict[int, State]:
    """Give the states of ``params`` that any rank has, the same ids and names in the same order on every rank.

    A part that a rank lacks is zeros, as before its first step; a value that is no part comes from a rank that has it.
    One small collective per group, and a second one where the ranks differ.

    Args:
        optimizer: this rank's optimizer.
        params: its parameters by param id.
        groups: the process groups, one after the other, that gather the parts of these parameters.
    """
    states = {param_id: optimizer.state[param] for param_id, param in params.items() if param in optimizer.state}
    outline = {param_id: _outline(state, params[param_id]) for param_id, state in sorted(states.items())}
    for group in groups:
        outline = _merged(outline, group)
    return {
        param_id: {
            name: _own_or_filled(states.get(param_id, {}), name, value, params[param_id])
            for name, value in outline[param_id].items()
        }
        for param_id in sorted(outline.keys() & params.keys())
    }


@contextmanager
def with_common_states(optimizer: Optimizer, params: Params, groups: Sequence[dist.ProcessGroup]) -> Iterator[None]:
    """Let ``optimizer`` have its ``common_states``, and only these, while it is saved."""
    own = optimizer.state
    states = common_states(optimizer, params, groups)
    optimizer.state = defaultdict(dict, {params[param_id]: state for param_id, state in states.items()})
    try:
        yield
    finally:
        optimizer.state = own


def _outline(state: State, param: torch.Tensor) -> dict[str, Any]:
    return {
        name: _PartOfState(value.dtype) if is_part(name, value, param.shape) else _on_cpu(value)
        for name, value in state.items()
    }


def _merged(outline: Outline, group: dist.ProcessGroup) -> Outline:
    names = [(param_id, list(state)) for param_id, state in outline.items()]
    digest = hashlib.sha256(repr(names).encode()).digest()
    if len(set(_gathered(digest, group))) == 1:
        return outline
    merged: Outline = defaultdict(dict)
    for other in _gathered(outline, group):
        for param_id, state in other.items():
            merged[param_id] |= {name: value for name, value in state.items() if name not in merged[param_id]}
    return {param_id: merged[param_id] for param_id in sorted(merged)}


def _gathered(value: Any, group: dist.ProcessGroup) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group)
    return values


def _own_or_filled(state: State, name: str, outline: Any, param: torch.Tensor) -> Any:
    if name in state:
        return state[name]
    if isinstance(outline, _PartOfState):
        return torch.zeros(param.shape, dtype=outline.dtype, device=param.device)
    return outline


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, torch.Tensor) else value
