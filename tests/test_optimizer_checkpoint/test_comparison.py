"""``compare`` finds every difference between two checkpoints, whatever their formats."""

import math
import subprocess
import sys

import pytest
import torch
from counted_progress import CountedProgress
from written_checkpoints import changed, make_state_dict, write_file, write_sharded

from colossalai_patch.optimizer_checkpoint.comparison import compare
from colossalai_patch.optimizer_checkpoint.source import open_source


def difference(folder, change):
    """Compare a checkpoint with one to which ``change`` was made."""
    state_dict = make_state_dict()
    first = write_sharded(state_dict, folder / "first")
    second = write_file(changed(state_dict, change), folder / "second.bin")
    return compare(open_source(first), open_source(second))


def test_shards_and_one_file_with_the_same_content_are_equal(tmp_path):
    found = difference(tmp_path, lambda state_dict: None)
    assert found.equal
    assert found.equal_params == 4


def test_the_order_of_states_is_no_difference(tmp_path):
    def reverse(state_dict):
        state_dict["state"] = dict(reversed(state_dict["state"].items()))

    assert difference(tmp_path, reverse).equal


def test_the_largest_absolute_and_relative_differences_are_told_by_name(tmp_path):
    def shift(state_dict):
        state_dict["state"][0]["exp_avg"] = torch.full((4, 3), 2.0)
        state_dict["state"][1]["exp_avg"] = torch.full((7,), 100.0)

    def shift_again(state_dict):
        shift(state_dict)
        state_dict["state"][0]["exp_avg"][1, 1] = 4.0
        state_dict["state"][1]["exp_avg"][3] = 110.0

    state_dict = make_state_dict()
    first = write_file(changed(state_dict, shift), tmp_path / "first.bin")
    second = write_file(changed(state_dict, shift_again), tmp_path / "second.bin")
    found = compare(open_source(first), open_source(second))
    assert found.values.keys() == {"exp_avg"}
    exp_avg = found.values["exp_avg"]
    assert (exp_avg.params, exp_avg.absolute, exp_avg.relative) == (2, 10.0, 0.5)
    assert found.equal_params == 2


def test_missing_states_are_told(tmp_path):
    def move(state_dict):
        state_dict["state"][4] = state_dict["state"].pop(0)

    found = difference(tmp_path, move)
    assert (found.only_in_first, found.only_in_second) == ([0], [4])


def remove_value(state):
    del state["exp_avg"]


def change_dtype(state):
    state["exp_avg"] = state["exp_avg"].double()


def change_shape(state):
    state["exp_avg"] = state["exp_avg"].flatten()


def change_type(state):
    state["exp_avg"] = 1.0


@pytest.mark.parametrize(
    ("change", "form"),
    [
        (remove_value, "missing"),
        (change_dtype, "float64[4, 3]"),
        (change_shape, "float32[12]"),
        (change_type, "float"),
    ],
)
def test_values_of_another_form_are_told(tmp_path, change, form):
    found = difference(tmp_path, lambda state_dict: change(state_dict["state"][0]))
    assert found.unlike == [f"parameter 0: exp_avg is float32[4, 3] / {form}"]
    assert not found.equal


def test_another_option_of_a_group_is_told(tmp_path):
    def change(state_dict):
        state_dict["param_groups"][1]["betas"] = (0.8, 0.999)

    assert difference(tmp_path, change).groups == ["group 1: betas is (0.9, 0.999) / (0.8, 0.999)"]


def test_a_group_more_is_told(tmp_path):
    def add(state_dict):
        state_dict["param_groups"].append(state_dict["param_groups"][0] | {"params": [5]})

    assert difference(tmp_path, add).groups == ["2 groups / 3 groups"]


def test_other_parameters_of_a_group_are_told(tmp_path):
    def add(state_dict):
        state_dict["param_groups"][0]["params"].append(5)

    assert difference(tmp_path, add).groups == ["group 0: other parameters, 2 / 3"]


def with_value(value):
    return {"state": {0: {"value": value}}, "param_groups": []}


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([math.nan, math.inf, 1.0]),
        torch.tensor([2**62 + 1]),
        torch.tensor([1 + 2j, complex(math.nan, 0)]),
        torch.ones(3, dtype=torch.float8_e4m3fn),
        torch.tensor([True, False]),
        torch.eye(3).to_sparse(),
        {"nested": [1, (2.5, "text", None)]},
    ],
)
def test_every_kind_of_value_equals_itself(tmp_path, value):
    path = write_file(with_value(value), tmp_path / "one.bin")
    assert compare(open_source(path), open_source(path)).equal


@pytest.mark.parametrize(
    ("value", "other", "absolute"),
    [
        (torch.tensor([2**62]), torch.tensor([2**62 + 1]), 0.0),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.tensor([1 + 2j]), torch.tensor([4 + 6j]), 5.0),
        (torch.zeros(2**21), torch.cat([torch.zeros(2**21 - 1), torch.tensor([3.0])]), 3.0),
        (3, 5, 2.0),
    ],
)
def test_numbers_of_every_kind_are_compared(tmp_path, value, other, absolute):
    paths = [write_file(with_value(each), tmp_path / f"{name}.bin") for name, each in (("a", value), ("b", other))]
    found = compare(*map(open_source, paths))
    assert not found.equal
    assert found.values["value"].absolute == absolute


def in_one_tensor(numbers):
    return {0: {"value": torch.tensor(numbers)}}


def in_tensors_of_their_own(numbers):
    return {param_id: {"value": torch.tensor([number])} for param_id, number in enumerate(numbers)}


@pytest.mark.parametrize(
    ("numbers", "others", "absolute", "relative"),
    [
        ([math.nan], [1.0], math.nan, math.nan),
        ([1.0], [math.nan], math.nan, math.nan),
        ([math.nan, 1.0], [1.0, 7.0], math.nan, math.nan),
        ([1.0, math.nan], [7.0, 1.0], math.nan, math.nan),
        ([math.nan, math.inf], [1.0, 1.0], math.nan, math.nan),
        ([math.inf, 1.0], [1.0, 7.0], math.inf, math.inf),
        ([math.inf], [-math.inf], math.inf, math.inf),
        ([math.nan, math.inf, 1.0], [math.nan, math.inf, 4.0], 3.0, 0.75),
    ],
)
@pytest.mark.parametrize("states_of", [in_one_tensor, in_tensors_of_their_own])
def test_a_number_beside_nan_differs_by_nan_and_one_beside_infinity_by_infinity(
    tmp_path, numbers, others, absolute, relative, states_of
):
    paths = [
        write_file({"state": states_of(side), "param_groups": []}, tmp_path / f"{name}.bin")
        for name, side in (("a", numbers), ("b", others))
    ]
    found = compare(*map(open_source, paths)).values["value"]
    assert (found.absolute, found.relative) == pytest.approx((absolute, relative), nan_ok=True)


@pytest.mark.parametrize("other", [torch.tensor([-0.0, math.nan]), torch.tensor([0.0, -math.nan])])
def test_equal_numbers_of_other_bits_are_equal(tmp_path, other):
    values = {"a": torch.tensor([0.0, math.nan]), "b": other}
    paths = [write_file(with_value(value), tmp_path / f"{name}.bin") for name, value in values.items()]
    assert compare(*map(open_source, paths)).equal


def test_other_text_is_told(tmp_path):
    paths = [write_file(with_value(text), tmp_path / f"{text}.bin") for text in ("a", "b")]
    assert compare(*map(open_source, paths)).unlike == ["parameter 0: value is 'a' / 'b'"]


def test_progress_goes_through_the_bytes_of_both(tmp_path):
    states = {number: {"exp_avg": torch.zeros(10**5)} for number in range(4)}
    sources = [
        open_source(write({"state": states, "param_groups": []}, tmp_path / name))
        for name, write in (("first", write_sharded), ("second.bin", write_file))
    ]
    progress = CountedProgress()
    compare(*sources, progress)
    assert progress.stages == [["comparing", sum(source.bytes_of_states for source in sources), 2 * 4 * 4 * 10**5]]


MEASURE = """
import resource, sys
from colossalai_patch.optimizer_checkpoint.comparison import compare
from colossalai_patch.optimizer_checkpoint.source import open_source
sources = [open_source(path) for path in sys.argv[1:]]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
equal = compare(*sources).equal
print(equal, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_comparison_takes_the_memory_of_shards_and_not_of_the_checkpoints(tmp_path):
    states = {number: {"exp_avg": torch.full((2**20,), float(number))} for number in range(64)}
    folders = [write_sharded({"state": states, "param_groups": []}, tmp_path / name) for name in ("first", "second")]
    command = [sys.executable, "-c", MEASURE, *folders]
    equal, kilobytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert equal == "True"
    assert int(kilobytes) < 150 * 1024
