"""The single values of a state: their names, types and shapes."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.content import bytes_of


def values_of(state: Any) -> dict[str, Any]:
    """Give the values of a state by name: ``exp_avg``; those in containers by their path: ``factors.0``."""
    if not isinstance(state, dict):
        return {"": state}
    return dict(leaf for name, value in state.items() for leaf in leaves(str(name), value))


def bytes_of_state(state: Any) -> int:
    """The bytes of all tensors in a state."""
    return sum(bytes_of(value) for value in values_of(state).values() if isinstance(value, torch.Tensor))


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each value in the containers of ``value`` with its path, or ``value`` itself with ``name``."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield name, value
        return
    for key, item in items:
        yield from leaves(f"{name}.{key}", item)


def form_of(value: Any) -> str:
    """Name the type of a value, for a tensor its dtype and shape: ``int``, ``float32[40, 30]``."""
    return f"{dtype_of(value)}{list(value.shape)}" if isinstance(value, torch.Tensor) else dtype_of(value)


def dtype_of(value: Any) -> str:
    """Name the dtype of a tensor, and the type of any other value."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__


def numbers_in(tensor: torch.Tensor, at_once: int) -> Iterator[torch.Tensor]:
    """Yield the numbers of a tensor in flat parts of at most ``at_once``."""
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    yield from dense.detach().reshape(-1).split(at_once)  # type: ignore[no-untyped-call]
