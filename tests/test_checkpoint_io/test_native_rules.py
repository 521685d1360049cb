"""What native does with unusual checkpoints and optimizers, the sharded load does."""

import copy
from collections import OrderedDict

import pytest
import torch
from checkpoints import save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same, assert_same_optimizer, assert_same_parameters
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version
from training import make_parameters, parameters_of, split_into_groups, train

from colossalai_patch.optimizer_checkpoint import CheckpointError


def make_adamw(steps=0, **options):
    optimizer = torch.optim.AdamW(split_into_groups(make_parameters(), 2), **options)
    train(optimizer, steps)
    return optimizer


def change_what_is_saved(optimizer, change):
    """Let the optimizer save what ``change`` makes of its state dict."""

    def hook(optimizer, state_dict):
        state_dict = copy.deepcopy(state_dict)
        change(state_dict)
        return state_dict

    optimizer.register_state_dict_post_hook(hook)


def load_both(restored, native, source, folder, save=save_bin):
    save(source, folder)
    GeneralCheckpointIO().load_optimizer(restored, folder)
    native.load_state_dict(copy.deepcopy(source.state_dict()))


def assert_trains_on_as_native(restored, native):
    assert_same_optimizer(restored, native)
    train(restored, 3, seed=3)
    train(native, 3, seed=3)
    assert_same_optimizer(restored, native)
    assert_same_parameters(parameters_of(restored), parameters_of(native))


def remove_param_names(state_dict):
    for group in state_dict["param_groups"]:
        group.pop("param_names", None)


@pytest.mark.skipif(Version(torch.__version__) < Version("2.6"), reason="torch names parameters since 2.6")
def test_param_names_are_kept_when_the_checkpoint_has_none(tmp_path):
    def make_named():
        return torch.optim.SGD([(f"layer.{i}", p) for i, p in enumerate(make_parameters())], lr=0.1, momentum=0.9)

    source, restored, native = make_named(), make_named(), make_named()
    change_what_is_saved(source, remove_param_names)
    load_both(restored, native, source, tmp_path)
    assert_trains_on_as_native(restored, native)


OPTIONS_OF_NEWER_TORCH = ["maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"]


@pytest.mark.parametrize("missing", [*([name] for name in OPTIONS_OF_NEWER_TORCH), OPTIONS_OF_NEWER_TORCH], ids=str)
def test_groups_of_an_older_torch_are_filled_in(tmp_path, missing):
    def remove(state_dict):
        for group in state_dict["param_groups"]:
            for name in missing:
                group.pop(name, None)

    source, restored, native = make_adamw(steps=1), make_adamw(), make_adamw()
    change_what_is_saved(source, remove)
    load_both(restored, native, source, tmp_path)
    assert_trains_on_as_native(restored, native)


@pytest.mark.parametrize("save", [save_bin, save_safetensors])
@pytest.mark.parametrize("step", [5, 5.0], ids=type)
def test_a_step_saved_as_a_number_is_made_a_tensor(tmp_path, step, save):
    def replace(state_dict):
        for state in state_dict["state"].values():
            state["step"] = step

    source, restored, native = make_adamw(steps=1), make_adamw(), make_adamw()
    change_what_is_saved(source, replace)
    load_both(restored, native, source, tmp_path, save)
    if save is save_bin:
        assert_trains_on_as_native(restored, native)
    assert all(isinstance(state["step"], torch.Tensor) for state in restored.state.values())


@pytest.mark.parametrize("option", ["fused", "capturable"])
def test_a_step_lives_where_the_loaded_groups_want_it(tmp_path, option):
    def ask_for_option(state_dict):
        for group in state_dict["param_groups"]:
            group[option] = True
        for state in state_dict["state"].values():
            state["step"] = state["step"].double()

    source, restored, native = make_adamw(steps=1), make_adamw(), make_adamw()
    change_what_is_saved(source, ask_for_option)
    load_both(restored, native, source, tmp_path)
    assert_same_optimizer(restored, native)
    assert {state["step"].dtype for state in restored.state.values()} == {torch.float32}


def change_in_place(optimizer, state_dict):
    state_dict["param_groups"][0]["lr"] = 0.5
    state_dict["state"].pop(0)


def return_another(optimizer, state_dict):
    groups = [group | {"lr": 0.5} for group in state_dict["param_groups"]]
    return {"state": {0: state_dict["state"][0]}, "param_groups": groups}


@pytest.mark.parametrize("hook", [change_in_place, return_another])
def test_pre_hooks_see_and_change_a_real_state_dict(tmp_path, hook):
    source, restored, native = make_adamw(steps=2), make_adamw(steps=1), make_adamw(steps=1)
    seen = []
    for optimizer in (restored, native):
        optimizer.register_load_state_dict_pre_hook(
            lambda optimizer, state_dict: seen.append(type(state_dict["state"]))
        )
        optimizer.register_load_state_dict_pre_hook(hook)
    load_both(restored, native, source, tmp_path)
    assert seen == [dict, dict]
    assert_trains_on_as_native(restored, native)


def test_post_hooks_are_called_once_with_the_loaded_optimizer(tmp_path):
    source, restored = make_adamw(steps=2), make_adamw()
    seen = []
    restored.register_load_state_dict_post_hook(lambda optimizer: seen.append((optimizer, len(optimizer.state))))
    save_bin(source, tmp_path)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    assert seen == [(restored, 3)]


def test_an_optimizer_with_a_load_state_dict_of_its_own_gets_a_real_state_dict(tmp_path):
    class Recording(torch.optim.AdamW):
        def load_state_dict(self, state_dict):
            self.given = copy.deepcopy(state_dict)
            super().load_state_dict(state_dict)

    source = make_adamw(steps=2)
    restored = Recording(split_into_groups(make_parameters(), 2))
    save_bin(source, tmp_path)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    assert_same(restored.given, source.state_dict())
    assert type(restored.given["param_groups"][0]["params"]) is list


def test_a_string_becomes_what_native_makes_of_it(tmp_path):
    def add_string(state_dict):
        state_dict["state"][0]["note"] = "warm"

    source, restored, native = make_adamw(steps=1), make_adamw(), make_adamw()
    change_what_is_saved(source, add_string)
    load_both(restored, native, source, tmp_path)
    ours, theirs = (optimizer.state[parameters_of(optimizer)[0]]["note"] for optimizer in (restored, native))
    assert ours.split(" at 0x")[0] == theirs.split(" at 0x")[0]


SPECIAL_TENSORS = {
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "a tensor that requires a gradient": lambda: torch.ones(3, requires_grad=True),
    "a tensor in another memory format": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a part of a larger tensor": lambda: torch.arange(10.0)[2:5],
    "a transposed tensor": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "an empty tensor": lambda: torch.empty(0),
}


@pytest.mark.parametrize("kind", SPECIAL_TENSORS)
def test_a_tensor_of_a_special_kind_is_loaded_as_natively(tmp_path, kind):
    torch.manual_seed(0)
    source, restored, native = (torch.optim.SGD(make_parameters(), lr=0.1, momentum=0.9) for _ in range(3))
    train(source, 1)
    save_bin(source, tmp_path)
    shard = tmp_path / "pytorch_optim-00001.bin"
    states = torch.load(shard, weights_only=True)
    states[0]["special"] = SPECIAL_TENSORS[kind]()
    torch.save(states, shard)

    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    state_dict = source.state_dict()
    native.load_state_dict(state_dict | {"state": state_dict["state"] | torch.load(shard, weights_only=True)})
    assert_same_optimizer(restored, native)
    ours, theirs = (optimizer.state[parameters_of(optimizer)[0]]["special"] for optimizer in (restored, native))
    assert ours.layout is not torch.strided or ours.stride() == theirs.stride()


scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False)
tensors = st.builds(
    lambda shape, dtype, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    st.integers(0, 9),
)
keys = st.text("abcdefgh_", min_size=1, max_size=6) | st.integers(0, 9)
values = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
    ),
    max_leaves=8,
)
states = st.dictionaries(st.text("abcdefgh_", min_size=1, max_size=6), values, max_size=4)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_states_under_any_ids_in_shards_of_any_size_load_as_natively(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("checkpoint")
    ids = data.draw(st.lists(st.integers(0, 99), min_size=3, max_size=3, unique=True), "ids")
    saved = {
        param_id: data.draw(states, f"state of {param_id}")
        for param_id in data.draw(st.permutations([*ids, 100]), "order")
        if data.draw(st.booleans(), f"{param_id} has a state")
    }

    def replace(state_dict):
        renumbered = dict(enumerate(ids))
        for group in state_dict["param_groups"]:
            group["params"] = [renumbered[param_id] for param_id in group["params"]]
        state_dict["state"] = saved

    source, restored, native = (torch.optim.SGD(split_into_groups(make_parameters(), 2)) for _ in range(3))
    change_what_is_saved(source, replace)
    size = data.draw(st.sampled_from([1e-6, 1e-4, 1]), "megabytes of a shard")
    GeneralCheckpointIO().save_optimizer(source, folder, shard=True, size_per_shard=size)
    GeneralCheckpointIO().load_optimizer(
        restored, folder, low_cpu_mem_mode=data.draw(st.booleans(), "low_cpu_mem_mode")
    )
    native.load_state_dict({"state": copy.deepcopy(saved), "param_groups": source.state_dict()["param_groups"]})
    assert_same_optimizer(restored, native)


def test_an_optimizer_that_cannot_take_a_state_is_as_before(tmp_path):
    def remove_step(state_dict):
        del state_dict["state"][0]["step"]

    source, restored = make_adamw(steps=2), make_adamw(steps=1)
    change_what_is_saved(source, remove_step)
    save_bin(source, tmp_path)
    before, state = copy.deepcopy(restored.state_dict()), restored.state
    with pytest.raises(CheckpointError, match=r"AdamW cannot take the state .* KeyError: 'step'"):
        GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    assert restored.state is state
    assert_same(restored.state_dict(), before)


def test_a_device_without_room_is_told_of_by_the_error_of_torch_and_the_optimizer_is_as_before(tmp_path, monkeypatch):
    def without_room(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    save_bin(make_adamw(steps=2), tmp_path)
    restored = make_adamw(steps=1)
    before = copy.deepcopy(restored.state_dict())
    monkeypatch.setattr(torch.optim.Optimizer, "_process_value_according_to_param_policy", without_room)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="out of memory"):
        GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    assert_same(restored.state_dict(), before)
