"""Allocations that fail, whoever says so."""

import errno

import torch
from safetensors import SafetensorError

_MESSAGES = (  # of torch, threading and safetensors
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory left, on the host or on a device."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    has_text = isinstance(error, (RuntimeError, SafetensorError))
    return has_text and any(message in str(error) for message in _MESSAGES)


def add_sizes(error: BaseException, sizes: str) -> None:
    """Have an error that says that memory is short say how much was wanted; it stays what it is."""
    if isinstance(error, OSError):
        error.strerror = f"{error.strerror}: {sizes}"
    else:
        error.args = (": ".join(filter(None, (str(error), sizes))),)
