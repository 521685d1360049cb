"""Python values as JSON, so that a safetensors header can carry them without a pickle.

A scalar stands for itself and a JSON array for a list. Every other value is an object with one key, its type, so
that nothing is ambiguous and a tuple is still a tuple afterwards: ``{"tuple": [0.9, 0.999]}``.
"""

import base64
from collections.abc import Callable
from typing import Any

import torch


def encode(value: Any, put_tensor: Callable[[torch.Tensor], str]) -> Any:
    """Give the JSON form of ``value``; each tensor in it is handed to ``put_tensor``, which returns a name for it.

    Raises:
        TypeError: for a type that has no JSON form here.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return {"tensor": put_tensor(value)}
    if type(value) is list:
        return [encode(item, put_tensor) for item in value]
    if type(value) in (tuple, set):
        return {type(value).__name__: [encode(item, put_tensor) for item in value]}
    if type(value) is dict:
        return {"dict": [[encode(key, put_tensor), encode(item, put_tensor)] for key, item in value.items()]}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if type(value) is complex:
        return {"complex": [value.real, value.imag]}
    raise TypeError(f"a value of type {type(value).__module__}.{type(value).__qualname__} has no plain form")


def decode(value: Any, get_tensor: Callable[[str], torch.Tensor]) -> Any:
    """Give back what ``encode`` was given; ``get_tensor`` returns the tensor of a name.

    Raises:
        ValueError: if ``value`` is not what ``encode`` makes.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [decode(item, get_tensor) for item in value]
    match value:
        case {"tensor": str(name)}:
            return get_tensor(name)
        case {"tuple": list(items)}:
            return tuple(decode(item, get_tensor) for item in items)
        case {"set": list(items)}:
            return {decode(item, get_tensor) for item in items}
        case {"dict": list(items)}:
            return {decode(key, get_tensor): decode(item, get_tensor) for key, item in items}
        case {"bytes": str(text)}:
            return base64.b64decode(text, validate=True)
        case {"complex": [float(real), float(imag)]}:
            return complex(real, imag)
    raise ValueError(f"{value!r:.80} is no plain value")
