"""What a state holds besides tensors comes back from safetensors as it was, in shards and in one file."""

import copy
import json
from collections import OrderedDict
from enum import IntEnum, auto

import numpy
import pytest
import torch
from checkpoints import MEGABYTES_OF_A_SHARD
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training import make_parameters

from colossalai_patch.optimizer_checkpoint import CheckpointError


class Kind(IntEnum):
    FIRST = auto()


VALUES = {
    "None": None,
    "integers": [0, -1, 2**70],
    "booleans": (True, False),
    "numbers": [0.1, -0.0, float("inf"), 1e-320, 2j],
    "bytes": [b"\0\xff", b""],
    "empty containers": [[], (), {}, set()],
    "nested containers": {"a": [(1, {2: None})], 3: ((), [[]]), (4, 5): {6}},
    "an ordered dict": OrderedDict(b=1, a=OrderedDict()),
    "a frozen set": frozenset({1}),
    "tensors": [torch.arange(3.0), {"a": torch.ones(2, dtype=torch.bfloat16)}, (None, torch.tensor(1))],
    "types of torch": [torch.float32, torch.Size([1, 2]), torch.device("cpu")],
    "numbers of NumPy": [numpy.float64(0.1), numpy.int32(3), numpy.bool_(True), numpy.float32(-0.0)],
    "a member of an enum": Kind.FIRST,
}
WAYS = pytest.mark.parametrize("shard", [True, False], ids=["sharded", "one file"])


class AnyState(torch.optim.SGD):
    """Native's rules, with any state."""

    def __init__(self, *states):
        super().__init__(make_parameters(), lr=0.1)
        for param, state in zip(self.param_groups[0]["params"], states, strict=False):
            self.state[param] = copy.deepcopy(state)


def saved(optimizer, folder, shard):
    path = str(folder / "optimizer" if shard else folder / "optimizer.safetensors")
    checkpoint_io = GeneralCheckpointIO()
    checkpoint_io.save_optimizer(optimizer, path, shard=shard, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=True)
    checkpoint_io._sync_io()
    return path


def assert_comes_back(folder, shard, *states):
    source, restored, native = AnyState(*states), AnyState({"old": 1}), AnyState({"old": 1})
    GeneralCheckpointIO().load_optimizer(restored, saved(source, folder, shard))
    native.load_state_dict(copy.deepcopy(source.state_dict()))
    assert_same(restored.state_dict(), native.state_dict())


@WAYS
@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(tmp_path, shard, name):
    assert_comes_back(tmp_path, shard, {"value": VALUES[name], "tensor": torch.ones(2)})


@WAYS
def test_states_without_values_come_back(tmp_path, shard):
    assert_comes_back(tmp_path, shard, {}, {"a": torch.ones(2)}, {})


@WAYS
def test_the_order_of_values_is_kept(tmp_path, shard):
    assert_comes_back(tmp_path, shard, {"z": torch.ones(2, dtype=torch.int8), "y": None, "x": torch.ones(2), "w": 1})


@WAYS
def test_a_name_that_is_a_number_stays_one(tmp_path, shard):
    assert_comes_back(tmp_path, shard, {0: torch.ones(2), "1": None})


@WAYS
def test_values_of_a_group_come_back(tmp_path, shard):
    source, restored = AnyState(), AnyState()
    values = {"kind": Kind.FIRST, "factor": numpy.float64(0.5), "empty": {}, "nothing": None, "texts": ["", "ä\ud800"]}
    source.param_groups[0].update(values)
    GeneralCheckpointIO().load_optimizer(restored, saved(source, tmp_path, shard))
    assert_same(restored.state_dict(), source.state_dict())


def test_stock_finds_what_it_looks_for(tmp_path):
    path = saved(AnyState({"none": None, "number": 1, "tensor": torch.ones(2)}), tmp_path, shard=False)
    with safe_open(path, framework="pt") as file:
        pickled = json.loads(file.metadata()["non_tensor_keys"])
        assert sorted(file.keys()) == ["param_groups", "state.0.number", "state.0.tensor"]
    assert pickled == ["state.0.number", "param_groups"]


@pytest.mark.parametrize("states", ["7", "[]", '{"0": 7}', '{"0": ["gone"]}', '{"0": [[]]}', "{"])
def test_an_outline_of_something_else_is_refused(tmp_path, states):
    path = saved(AnyState({"tensor": torch.ones(2)}), tmp_path, shard=False)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() | {"states": states}
    save_file(load_file(path), path, metadata)
    with pytest.raises(CheckpointError, match="damaged"):
        GeneralCheckpointIO().load_optimizer(AnyState(), path)
