"""A sharded load replaces the groups and the state of an optimizer, as ``Optimizer.load_state_dict`` does.

With ``COLOSSALAI_PATCH=off`` 16 of these 25 cases fail and 9 pass; ``make regression`` counts them.
"""

import copy
import json

import pytest
import torch
from checkpoints import INDEX_FILE, group_file_of
from colossalai.checkpoint_io import GeneralCheckpointIO
from comparison import assert_same, assert_same_optimizer, assert_same_parameters
from training import make_parameters, parameters_of, split_into_groups, train

from colossalai_patch.optimizer_checkpoint import read_param_groups, save_param_groups

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def make_optimizer(name, group_count=2, dtype=torch.float32, steps=0):
    optimizer = OPTIMIZERS[name](split_into_groups(make_parameters(dtype=dtype), group_count))
    train(optimizer, steps)
    return optimizer


def assert_trains_on_as_native(restored, native):
    assert_same_optimizer(restored, native)
    for _ in range(3):
        train(restored, 1, seed=2)
        train(native, 1, seed=2)
        assert_same_optimizer(restored, native)
        assert_same_parameters(parameters_of(restored), parameters_of(native))


@every_optimizer
@pytest.mark.parametrize("group_count", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_empty_checkpoint_clears_a_trained_optimizer(tmp_path, name, group_count, dtype):
    source = make_optimizer(name, group_count, dtype)
    restored, native = (make_optimizer(name, group_count, dtype, steps=2) for _ in range(2))
    GeneralCheckpointIO().save_optimizer(source, tmp_path, shard=True)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    native.load_state_dict(source.state_dict())
    assert_trains_on_as_native(restored, native)


def name_group_file(checkpoint, name):
    index = json.loads((checkpoint / INDEX_FILE).read_text())
    index["metadata"]["param_groups"] = name
    (checkpoint / INDEX_FILE).write_text(json.dumps(index))


def write_safetensors_group_file(checkpoint):
    groups = read_param_groups(group_file_of(checkpoint))
    save_param_groups(groups, checkpoint / "another_group.safetensors")
    name_group_file(checkpoint, "another_group.safetensors")


@pytest.mark.parametrize("write_group_file", [lambda checkpoint: None, write_safetensors_group_file], ids=["bin", "st"])
def test_group_files_of_both_formats_are_read(tmp_path, write_group_file):
    source = make_optimizer("adamw", steps=2)
    source.param_groups[0]["lr"] = torch.tensor(0.25)
    restored, native = (make_optimizer("adamw", steps=1) for _ in range(2))
    GeneralCheckpointIO().save_optimizer(source, tmp_path, shard=True)
    write_group_file(tmp_path)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    native.load_state_dict(source.state_dict())
    assert_trains_on_as_native(restored, native)


def test_saved_ids_of_any_numbers_map_to_their_parameters(tmp_path):
    def renumber(optimizer, state_dict):
        ids = {0: 12, 1: 5, 2: 7}
        groups = [
            group | {"params": [ids[param_id] for param_id in group["params"]]} for group in state_dict["param_groups"]
        ]
        return {"state": {ids[key]: state for key, state in state_dict["state"].items()}, "param_groups": groups}

    source = make_optimizer("adam", steps=2)
    source.register_state_dict_post_hook(renumber)
    restored, native = (make_optimizer("adam", steps=1) for _ in range(2))
    GeneralCheckpointIO().save_optimizer(source, tmp_path, shard=True)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    native.load_state_dict(source.state_dict())
    assert_trains_on_as_native(restored, native)


def test_old_state_under_a_key_that_is_no_parameter_is_removed(tmp_path):
    restored = make_optimizer("sgd", steps=1)
    restored.state["since_warm_up"] = {"steps": 40}
    GeneralCheckpointIO().save_optimizer(make_optimizer("sgd"), tmp_path, shard=True)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    assert "since_warm_up" not in restored.state


def with_another_group(groups):
    return [*groups, {**groups[0], "params": [3]}]


def with_a_smaller_group(groups):
    return [{**groups[0], "params": groups[0]["params"][1:]}, *groups[1:]]


def as_a_dict(groups):
    return dict(enumerate(groups))


@pytest.mark.parametrize("spoil", [with_another_group, with_a_smaller_group, as_a_dict])
def test_groups_that_do_not_fit_are_refused_before_anything_changes(tmp_path, spoil):
    optimizer = make_optimizer("adam", steps=2)
    GeneralCheckpointIO().save_optimizer(make_optimizer("adam", steps=1), tmp_path, shard=True)
    groups = torch.load(group_file_of(tmp_path), weights_only=True)
    torch.save(spoil(groups), tmp_path / "spoilt_group.bin")
    name_group_file(tmp_path, "spoilt_group.bin")
    before, state = copy.deepcopy(optimizer.state_dict()), optimizer.state
    with pytest.raises(ValueError, match="group"):
        GeneralCheckpointIO().load_optimizer(optimizer, tmp_path)
    assert optimizer.state is state
    assert_same(optimizer.state_dict(), before)


@every_optimizer
def test_an_unsharded_checkpoint_loads_as_natively(tmp_path, name):
    source = make_optimizer(name, steps=2)
    restored, native = (make_optimizer(name, steps=1) for _ in range(2))
    GeneralCheckpointIO().save_optimizer(source, str(tmp_path / "optimizer.bin"))
    GeneralCheckpointIO().load_optimizer(restored, str(tmp_path / "optimizer.bin"))
    native.load_state_dict(source.state_dict())
    assert_trains_on_as_native(restored, native)


@every_optimizer
def test_an_empty_checkpoint_loads_into_a_fresh_optimizer(tmp_path, name):
    source = make_optimizer(name)
    source.param_groups[0]["lr"] = 0.25
    restored, native = (make_optimizer(name) for _ in range(2))
    GeneralCheckpointIO().save_optimizer(source, tmp_path, shard=True)
    GeneralCheckpointIO().load_optimizer(restored, tmp_path)
    native.load_state_dict(source.state_dict())
    assert_trains_on_as_native(restored, native)
