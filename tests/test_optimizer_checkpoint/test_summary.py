"""``summarize`` tells what is in a checkpoint."""

import pytest
import torch
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.optimizer_checkpoint.source import open_source
from colossalai_patch.optimizer_checkpoint.summary import summarize


def summary_of(state_dict, folder):
    return summarize(open_source(write_sharded(state_dict, folder)))


def test_groups_have_their_sizes_and_options(tmp_path):
    groups = summary_of(make_state_dict(), tmp_path).groups
    assert [(group["params"], group["lr"]) for group in groups] == [(2, 0.1), (3, 1e-3)]
    assert groups[0]["betas"] == [0.9, 0.999]


def test_parameters_with_and_without_state_are_counted(tmp_path):
    summary = summary_of(make_state_dict(), tmp_path)
    assert (summary.with_state, summary.without_state) == (4, 1)


def test_each_parameter_has_its_group_and_forms(tmp_path):
    first, *_, last = summary_of(make_state_dict(), tmp_path).params
    assert (first.group, first.state["exp_avg"]) == (0, "float32[4, 3]")
    assert (last.group, last.state) == (1, {})


def test_names_have_their_dtypes(tmp_path):
    def halve(state_dict):
        state_dict["state"][0]["exp_avg"] = state_dict["state"][0]["exp_avg"].half()

    names = summary_of(changed(make_state_dict(), halve), tmp_path).names
    assert names["exp_avg"] == {"float16": 1, "float32": 3}


def test_values_in_containers_have_names_of_their_own(tmp_path):
    def nest(state_dict):
        state_dict["state"][0]["factors"] = [torch.zeros(2), {"scale": 1.0}]

    names = summary_of(changed(make_state_dict(), nest), tmp_path).names
    assert (names["factors.0"], names["factors.1.scale"]) == ({"float32": 1}, {"float": 1})


def test_the_step_of_all_is_one_number(tmp_path):
    summary = summary_of(make_state_dict(steps=3), tmp_path)
    assert summary.steps == (3, 3)
    assert summary.warnings == []


def test_steps_that_differ_are_a_range_and_a_warning(tmp_path):
    def step_back(state_dict):
        state_dict["state"][2]["step"] = 1

    summary = summary_of(changed(make_state_dict(), step_back), tmp_path)
    assert summary.steps == (1, 3)
    assert summary.warnings == ["the steps of the parameters differ: 1 to 3"]


def test_a_state_outside_of_all_groups_is_a_warning(tmp_path):
    def add(state_dict):
        state_dict["state"][99] = {"exp_avg": torch.zeros(1)}

    assert summary_of(changed(make_state_dict(), add), tmp_path).warnings == ["1 states belong to no parameter group"]


def test_files_have_their_sizes(tmp_path):
    summary = summary_of(make_state_dict(), tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.bin")}
    assert summary.file_bytes == sizes
    assert summary.total_bytes == sum(sizes.values())


@pytest.mark.parametrize("steps", [0, 2])
def test_one_file_is_summarized_like_shards(tmp_path, steps):
    sharded = summary_of(make_state_dict(steps), tmp_path / "sharded")
    one_file = summarize(open_source(write_file(make_state_dict(steps), tmp_path / "one.pt")))
    assert one_file.form == "one file"
    assert (one_file.params, one_file.groups, one_file.names) == (sharded.params, sharded.groups, sharded.names)
