"""A sharded load leaves exactly what ``Optimizer.load_state_dict`` leaves, for every optimizer."""

import copy
import itertools
import random
from dataclasses import dataclass, fields

import colossalai.nn.optimizer
import pytest
import torch
from checkpoints import save_bin, save_safetensors
from colossalai.checkpoint_io import GeneralCheckpointIO
from optimizer_recipes import NOT_ON_CPU, RECIPES, Run, assert_same_run, classes_of

SOURCES = {
    "empty": lambda run: run,
    "trained": lambda run: run.step(2, seed=1),
    "partly trained": lambda run: run.step(2, seed=1, without_gradient=[1]),
}
DESTINATIONS = {
    "fresh": lambda run: run,
    "trained": lambda run: run.step(1, seed=2),
}
FORMATS = {
    "bin": save_bin,
    "safetensors": save_safetensors,
}


@dataclass(frozen=True)
class Case:
    name: str
    dtype: torch.dtype
    source: str
    destination: str
    checkpoint_format: str
    group_count: int
    low_cpu_mem_mode: bool

    def __str__(self):
        values = (getattr(self, field.name) for field in fields(self))
        return "-".join(str(value).removeprefix("torch.") for value in values)


def cases():
    """Every optimizer with every source, destination, format and dtype; the two others are drawn for each."""
    draw = random.Random(0)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    for combination in itertools.product(RECIPES, dtypes, SOURCES, DESTINATIONS, FORMATS):
        yield Case(*combination, group_count=draw.choice([1, 2, 3]), low_cpu_mem_mode=draw.choice([True, False]))


@pytest.mark.filterwarnings("error:.*of another model:UserWarning")
@pytest.mark.parametrize("case", cases(), ids=str)
def test_a_sharded_load_equals_native(tmp_path, case):
    source, restored, native = (Run(case.name, case.dtype, case.group_count) for _ in range(3))
    SOURCES[case.source](source)
    FORMATS[case.checkpoint_format](source.optimizer, tmp_path)
    DESTINATIONS[case.destination](restored)
    DESTINATIONS[case.destination](native)

    GeneralCheckpointIO().load_optimizer(restored.optimizer, tmp_path, low_cpu_mem_mode=case.low_cpu_mem_mode)
    native.optimizer.load_state_dict(copy.deepcopy(source.optimizer.state_dict()))

    assert_same_run(restored, native)
    assert_same_run(restored.step(3, seed=3), native.step(3, seed=3))


def test_every_optimizer_of_colossalai_is_covered_or_cannot_run_here():
    covered = {name.removeprefix("colossalai-") for name in RECIPES}
    assert covered | NOT_ON_CPU.keys() >= classes_of(colossalai.nn.optimizer).keys()
