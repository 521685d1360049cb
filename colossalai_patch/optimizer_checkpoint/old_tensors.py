"""The tensors of a state that was given up, as memory for those that replace them."""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.content import NUMBERS_THAT_TORCH_COPIES_ALONE
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.shard import CopyState, MappedShard, State, Take

Named = dict[str, torch.Tensor]


@dataclass(frozen=True)
class OldTensors:
    """Tensors that nobody else can see, each to be written to once.

    Attributes:
        by_param: the tensors by param id and name.
    """

    by_param: dict[ParamId, Named]

    def serve(self, map_shard: Callable[[], MappedShard]) -> Callable[[], MappedShard]:
        """Have what is taken of a shard's states replace these tensors, in their memory where it is as large."""

        def mapped() -> MappedShard:
            shard = map_shard()
            return replace(shard, take=partial(self._take, shard.take))

        return mapped

    def _take(self, take: Take, param_id: ParamId, state: State) -> State | None:
        old = self.by_param.pop(param_id, {})
        if not isinstance(take, CopyState):
            old.clear()
            return take(param_id, state)
        return type(state)(
            (name, replace(take, empty_like=partial(_memory, old, name, take.empty_like)).copied(value))
            for name, value in state.items()
        )


def tensors_of(released: dict[str, Any], params: list[torch.Tensor], ids: ParamGroups) -> OldTensors:
    """Take those tensors out of a released state that can be written to without anyone noticing.

    Args:
        released: what ``release_state`` returned; it is empty afterwards.
        params: the parameters of the optimizer.
        ids: the parameter groups of the checkpoint, with the ids of the same parameters.
    """
    param_ids = (param_id for group in ids for param_id in group["params"])
    by_param: dict[ParamId, Named] = {}
    if _is_held_here_alone(released, "state"):
        for param, param_id in zip(params, param_ids, strict=True):
            by_param[param_id] = _unseen(released["state"], param)
    released.clear()
    return OldTensors(by_param)


def _unseen(states: dict[Any, Any], param: torch.Tensor) -> Named:
    if type(states.get(param)) is not dict or not _is_held_here_alone(states, param):
        return {}
    state = states.pop(param)
    return {name: state.pop(name) for name in list(state) if _can_be_written(state, name)}


def _can_be_written(state: dict[Any, Any], name: Any) -> bool:
    """Whether a tensor is one block of ordinary memory, and only its state refers to it; in doubt it is not."""
    if type(state[name]) is not torch.Tensor or not _is_held_here_alone(state, name):
        return False
    tensor = state[name]
    if tensor.numel() < NUMBERS_THAT_TORCH_COPIES_ALONE or not _is_ordinary(tensor):
        return False
    return _uses(tensor) == _USES_OF_AN_UNSEEN_TENSOR and not weakref.getweakrefcount(tensor)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        return False
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage.is_shared() or storage.nbytes() != tensor.nbytes:
        return False  # a resizable storage is torch's own memory, and no one else's
    flags = (tensor.requires_grad, tensor.is_conj(), tensor.is_neg(), tensor.is_inference(), tensor.is_pinned())
    return tensor.is_contiguous() and not any(flags) and not vars(tensor)


def _memory(
    old: Named, name: str, empty_like: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor
) -> torch.Tensor:
    found = old.pop(name, None)
    if found is not None and (found.dtype, found.shape) == (tensor.dtype, tensor.shape):
        return found
    del found
    return empty_like(tensor)


def _references(container: dict[Any, Any], key: Any) -> int:
    return sys.getrefcount(container[key])


def _uses(tensor: torch.Tensor) -> tuple[int, int, int]:
    storage = tensor.untyped_storage()
    # Both counts are private, torch 2.2 to 2.14; torch's own CUDA graphs rely on them.
    uses: int = tensor._use_count()  # type: ignore[attr-defined]
    return uses, torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


_REFERENCES_OF_A_CONTAINER = _references({"": object()}, "")
_USES_OF_AN_UNSEEN_TENSOR = _uses(torch.empty(1))


def _is_held_here_alone(container: dict[Any, Any], key: Any) -> bool:
    return _references(container, key) == _REFERENCES_OF_A_CONTAINER
