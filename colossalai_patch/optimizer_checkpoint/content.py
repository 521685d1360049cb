"""Content of files: how large it may be, so that a small crafted file cannot fill memory or stack, and copies of it."""

import copy
import ctypes
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError

DEEPEST = 50  # levels of containers; native goes through them by recursion
FEWEST_VALUES = 10_000
NUMBERS_THAT_TORCH_COPIES_ALONE = 2**15  # from which on it starts threads
BYTES_OF_A_PIECE = 2**22
CONTAINERS = (dict, list, tuple, set, frozenset)
SHARED_BYTES = 2**27  # of tensors that share memory in the file and are copied apart


def check_bounds(path: Path, content: Any) -> None:
    """Make sure that the content of ``path`` is as deep and as large as a file of its size can be.

    Each value takes at least one byte of the file, and each tensor its own, unless the file stores references to the
    same container or tensor, which a copy multiplies.

    Raises:
        CheckpointError: if there are more values, deeper containers or larger tensors.
    """
    size = path.stat().st_size
    values, tensor_bytes = 1, 0
    pending: list[tuple[Collection[Any], int]] = [([content], 0)]
    while pending:
        container, depth = pending.pop()
        inner = container.values() if isinstance(container, dict) else container
        values += len(inner)
        tensor_bytes += sum(bytes_of(item) for item in inner if isinstance(item, torch.Tensor))
        if depth > DEEPEST or values > FEWEST_VALUES + size or tensor_bytes > size + SHARED_BYTES:
            raise CheckpointError(
                f"{path} is damaged: it has {size} bytes and unpacks to at least {values} values, {tensor_bytes} "
                f"bytes of tensors and {depth} levels. Use another checkpoint."
            )
        pending += ((item, depth + 1) for item in inner if isinstance(item, CONTAINERS))


def bytes_of(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's values, and of its indices if it is sparse."""
    if tensor.layout is not torch.strided:
        return sum(bytes_of(part) for part in (tensor._indices(), tensor._values()))
    return tensor.nbytes


def unheeded(address: int) -> None:
    """Do nothing."""


def copied_value(
    value: Any,
    before_reading: Callable[[int], object] = unheeded,
    empty_like: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like,
) -> Any:
    """Copy ``value`` with all tensors in it: what ``copy.deepcopy`` gives, sooner for what states consist of.

    Args:
        value: what to copy.
        before_reading: is told, piece by piece, up to which address in memory a large tensor will be read next.
        empty_like: gives the memory that a large tensor is copied to.
    """
    return with_tensors(value, partial(_copied_tensor, before_reading=before_reading, empty_like=empty_like))


def with_tensors(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Give ``value`` with what ``replace`` makes of the tensors in it, all else being copied."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, dict):
        return type(value)((key, with_tensors(item, replace)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(with_tensors(item, replace) for item in value)
    return copy.deepcopy(value)


def _copied_tensor(
    tensor: torch.Tensor,
    before_reading: Callable[[int], object],
    empty_like: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        return copy.deepcopy(tensor)
    if tensor.numel() < NUMBERS_THAT_TORCH_COPIES_ALONE or not _is_one_block(tensor):
        return tensor.clone()
    copied = empty_like(tensor)
    source, destination, size = tensor.data_ptr(), copied.data_ptr(), tensor.nbytes
    for begin in range(0, size, BYTES_OF_A_PIECE):
        count = min(BYTES_OF_A_PIECE, size - begin)
        before_reading(source + begin + count)
        # torch's own copy would start threads in each of the threads that read
        ctypes.memmove(destination + begin, source + begin, count)
    return copied


def _is_one_block(tensor: torch.Tensor) -> bool:
    """Whether the values of ``tensor`` are nothing else than consecutive bytes of host memory."""
    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return is_plain and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
