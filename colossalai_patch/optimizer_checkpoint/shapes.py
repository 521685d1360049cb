"""Loaded states that belong to another parameter, by their shapes. Native accepts them; the error later is obscure."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.checkpoint import OptimizerCheckpoint

Shapes = tuple[str, int, torch.Size, torch.Size]


@dataclass(frozen=True)
class ForeignShape:
    """A state tensor whose shape is not that of its parameter, though the states of that name have such shapes."""

    group: int
    position: int
    name: str
    shape: torch.Size
    param_shape: torch.Size


def warn_of_foreign_shapes(optimizer: Optimizer, checkpoint: OptimizerCheckpoint) -> None:
    """Warn once, about the first of them, where a loaded optimizer holds states of other parameters' shapes."""
    found = list(find_foreign_shapes(optimizer))
    if not found:
        return
    first, more = found[0], len(found) - 1
    param_id = checkpoint.param_groups[first.group]["params"][first.position]
    warnings.warn(
        f"{checkpoint.index.weight_map[param_id]}: the state {first.name!r} of parameter {first.position} of group "
        f"{first.group} has the shape {tuple(first.shape)}, and the parameter has {tuple(first.param_shape)}"
        f"{f' ({more} more like it)' if more else ''}. It was loaded all the same. Is the checkpoint of another model?",
        stacklevel=2,
    )


def find_foreign_shapes(optimizer: Optimizer) -> Iterator[ForeignShape]:
    """Yield the states of another parameter's shape.

    Some optimizers store other shapes on purpose (factored, projected or quantised states). So a name counts only
    where, in one group, most of its states have shapes of the group's parameters; of those, each one is named that
    does not have its own parameter's. Scalars are never meant.
    """
    for group, param_group in enumerate(optimizer.param_groups):
        found = partial(_shapes, optimizer.state, param_group["params"])
        if all(shape == param_shape for _, _, shape, param_shape in found()):
            continue  # as nearly always, and nothing to remember
        for name, shapes in _by_name(found()).items():
            states = Counter(shape for _, _, shape, _ in shapes)
            params = Counter(param_shape for _, _, _, param_shape in shapes)
            if 2 * (states & params).total() <= len(shapes):
                continue
            for _, position, shape, param_shape in shapes:
                if shape != param_shape:
                    yield ForeignShape(group, position, name, shape, param_shape)


def _shapes(state: Any, params: list[torch.Tensor]) -> Iterator[Shapes]:
    """Yield for each state tensor that is no scalar its name, its parameter's position, and the shapes of both."""
    for position, param in enumerate(params):
        values = state.get(param)
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                yield name, position, value.shape, param.shape


def _by_name(shapes: Iterator[Shapes]) -> dict[str, list[Shapes]]:
    by_name = defaultdict(list)
    for of_a_state in shapes:
        by_name[of_a_state[0]].append(of_a_state)
    return by_name
