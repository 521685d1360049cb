"""Exact comparison: types, dtypes, devices, shapes, keys, their order, and every bit of every value."""

from collections.abc import Mapping

import torch
from torch.optim import Optimizer


def assert_same(actual, expected, where=""):
    assert type(actual) is type(expected), f"{where}: {type(actual)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(actual, expected, where)
    elif isinstance(expected, Mapping):
        assert list(actual) == list(expected), f"{where}: keys {list(actual)} instead of {list(expected)}"
        for key in expected:
            assert_same(actual[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), f"{where}: {len(actual)} items instead of {len(expected)}"
        for position, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            assert_same(ours, theirs, f"{where}[{position}]")
    else:
        assert actual == expected, f"{where}: {actual!r} instead of {expected!r}"


def _assert_same_tensor(actual, expected, where):
    def facts(tensor):
        return tensor.dtype, tensor.device, tensor.layout, tuple(tensor.shape), tensor.requires_grad

    assert facts(actual) == facts(expected), f"{where}: {facts(actual)} instead of {facts(expected)}"
    assert torch.equal(_bytes_of(actual), _bytes_of(expected)), f"{where}: the values differ"


def _bytes_of(tensor):
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().coalesce().to_dense()
    return dense.contiguous().reshape(-1).view(torch.uint8)


def assert_same_optimizer(actual: Optimizer, expected: Optimizer):
    """The two hold the same groups and states, for parameters at the same places."""
    assert type(actual.state) is type(expected.state)
    assert_same(actual.state_dict(), expected.state_dict(), "state_dict()")


def assert_same_parameters(actual, expected):
    for position, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        _assert_same_tensor(ours, theirs, f"parameter {position}")
