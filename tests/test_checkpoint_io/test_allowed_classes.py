"""What a script has allowed with ``torch.serialization`` is read in every format, and nothing else."""

import copy
import pickle
from collections import OrderedDict
from enum import IntEnum

import pytest
import torch
from checkpoints import MEGABYTES_OF_A_SHARD
from colossalai.checkpoint_io import GeneralCheckpointIO
from crafted_pickles import CODE, Call, touch
from training import make_parameters, train

from colossalai_patch.optimizer_checkpoint import CheckpointError, unpickle_plain

pytestmark = pytest.mark.skipif(
    not hasattr(torch.serialization, "safe_globals"), reason="torch 2.5 brought what allows a class"
)


class Projector:
    def __init__(self):
        self.matrix, self.ranks = torch.arange(6.0).reshape(2, 3), [1, 2]

    def __eq__(self, other):
        return torch.equal(self.matrix, other.matrix) and self.ranks == other.ranks


class Slotted:
    __slots__ = ("number",)

    def __setstate__(self, state):
        self.number = state["number"]

    def __getstate__(self):
        return {"number": self.number}


class Kind(IntEnum):
    FIRST = 1


class Callable_:
    def __call__(self, code):
        exec(code)


WAYS = {"bin": (True, False), "one file": (False, False), "async": (True, True), "one file, async": (False, True)}
every_way = pytest.mark.parametrize("way", WAYS)


def make_adamw(steps):
    optimizer = torch.optim.AdamW(make_parameters())
    train(optimizer, steps)
    return optimizer


def saved_with(value, folder, way):
    optimizer, (shard, use_async) = make_adamw(1), WAYS[way]
    optimizer.state[optimizer.param_groups[0]["params"][0]]["value"] = value
    suffix = "" if shard else ".safetensors" if use_async else ".bin"
    path = str(folder / f"optimizer{suffix}")
    checkpoint_io = GeneralCheckpointIO()
    checkpoint_io.save_optimizer(optimizer, path, shard=shard, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=use_async)
    checkpoint_io._sync_io()
    return path


def loaded(path):
    optimizer = make_adamw(2)
    GeneralCheckpointIO().load_optimizer(optimizer, path)
    return optimizer.state[optimizer.param_groups[0]["params"][0]]["value"]


@every_way
def test_a_class_that_the_script_allowed_is_read(tmp_path, way):
    path = saved_with(Projector(), tmp_path, way)
    with torch.serialization.safe_globals([Projector]):
        value = loaded(path)
    assert type(value) is Projector
    assert value == Projector()


@every_way
def test_a_class_that_nobody_allowed_is_named_with_what_allows_it(tmp_path, way):
    path = saved_with(Projector(), tmp_path, way)
    hint = r"add_safe_globals\(\[[\w.]*Projector\]\).*COLOSSALAI_PATCH_TRUST_PICKLE=1"
    with pytest.raises(CheckpointError, match=hint):
        loaded(path)


@every_way
def test_what_was_allowed_in_a_context_is_refused_behind_it(tmp_path, way):
    path = saved_with(Projector(), tmp_path, way)
    with torch.serialization.safe_globals([Projector]):
        loaded(path)
    with pytest.raises(CheckpointError):
        loaded(path)


@every_way
def test_a_member_of_an_enum_that_is_imported_is_read(tmp_path, way):
    assert loaded(saved_with(Kind.FIRST, tmp_path, way)) is Kind.FIRST


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_an_allowed_class_sets_its_state_itself(protocol):
    value = Slotted()
    value.number = 7
    with torch.serialization.safe_globals([Slotted]):
        assert unpickle_plain(pickle.dumps(value, protocol)).number == 7


def test_a_name_that_the_script_gave_is_the_one_that_counts():
    data = pickle.dumps(Projector()).replace(b"Projector", b"Renamed__")
    entry = (Projector, f"{__name__}.Renamed__")
    try:
        context = torch.serialization.safe_globals([entry])
        context.__enter__()
    except Exception:
        pytest.skip("torch 2.6 brought names")
    try:
        assert unpickle_plain(data) == Projector()
    finally:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("kind", CODE)
def test_an_allowed_class_opens_no_way_for_code(tmp_path, kind):
    with torch.serialization.safe_globals([Projector, Slotted]), pytest.raises(pickle.UnpicklingError):
        unpickle_plain(CODE[kind](tmp_path / "canary"))
    assert not (tmp_path / "canary").exists()


def call_of_an_instance(canary):
    """An instance of an allowed class, which the pickle then calls."""
    instance = pickle.dumps(Callable_(), 2)[2:-1]
    return b"\x80\x02" + instance + pickle.dumps((touch(canary),), 2)[2:-1] + b"R."


def test_an_instance_of_an_allowed_class_is_not_called(tmp_path):
    with torch.serialization.safe_globals([Callable_]), pytest.raises(pickle.UnpicklingError, match="calls a"):
        unpickle_plain(call_of_an_instance(tmp_path / "canary"))
    assert not (tmp_path / "canary").exists()


def with_state(instance):
    return b"\x80\x02" + pickle.dumps(instance, 2)[2:-1] + pickle.dumps({"__class__": 1}, 2)[2:-1] + b"b."


@pytest.mark.parametrize("value", [OrderedDict(), set(), torch.ones(1)], ids=lambda value: type(value).__name__)
def test_attributes_of_what_the_script_did_not_allow_are_not_set(value):
    with torch.serialization.safe_globals([Projector]), pytest.raises(pickle.UnpicklingError):
        unpickle_plain(with_state(value))


def test_what_torch_never_admits_is_refused_though_allowed(tmp_path):
    import os

    with torch.serialization.safe_globals([os.system]), pytest.raises(pickle.UnpicklingError):
        unpickle_plain(CODE["os.system"](tmp_path / "canary"))
    assert not (tmp_path / "canary").exists()


def test_a_class_that_is_no_enum_is_not_found_among_what_is_imported():
    with pytest.raises(pickle.UnpicklingError, match="Projector"):
        unpickle_plain(pickle.dumps(copy.copy(Call(Projector))))


def test_an_enum_has_no_member_but_its_own():
    with pytest.raises(pickle.UnpicklingError):
        unpickle_plain(pickle.dumps(Call(Kind, 2)))
