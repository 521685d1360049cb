"""Optimizers whose whole state tells a number, so that a mixture of two saves shows."""

import json
import os
from pathlib import Path

import torch
from colossalai.checkpoint_io import GeneralCheckpointIO

from colossalai_patch.optimizer_checkpoint.checked_file import finish_file

SHAPES = [(40, 30), (7,), (100, 20), (3, 5), (2000,)]
MEGABYTES_OF_A_SHARD = 0.01


def make_optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES])


def set_number(optimizer, number):
    """Make every value of state and groups ``number``; the state has grown and shrunk from one number to the next."""
    for group in optimizer.param_groups:
        group["lr"] = float(number)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.state.clear()
    for parameter in parameters[number % 2 :]:
        optimizer.state[parameter] = {
            "step": number,
            "exp_avg": torch.full_like(parameter, number),
            "exp_avg_sq": torch.full_like(parameter, number, dtype=torch.float64 if number % 3 else torch.float32),
        }


def saved_number(folder):
    """The number that the checkpoint in ``folder`` tells, completely.

    Raises:
        ValueError: if it tells several, or a file differs from its checksum.
    """
    optimizer = make_optimizer()
    GeneralCheckpointIO().load_optimizer(optimizer, os.fspath(folder))
    numbers = {group["lr"] for group in optimizer.param_groups}
    for state in optimizer.state.values():
        numbers |= {float(state["step"])}.union(
            *(tensor.unique().tolist() for tensor in (state["exp_avg"], state["exp_avg_sq"]))
        )
    number = int(min(numbers))
    if len(numbers) != 1 or len(optimizer.state) != len(SHAPES) - number % 2:
        raise ValueError(f"{folder} holds a mixture of {sorted(numbers)}")
    for name, record in files_by_index(folder).items():
        if finish_file(Path(folder, name)).as_json() != record:
            raise ValueError(f"{name} in {folder} differs from its checksum")
    return number


def files_by_index(folder):
    (index_file,) = Path(folder).glob("*.index.json")
    return json.loads(index_file.read_text())["metadata"]["files"]


def only_checkpoint_files(folder):
    """Whether nothing but the index and the files that it names is in ``folder``."""
    (index_file,) = Path(folder).glob("*.index.json")
    return {path.name for path in Path(folder).iterdir()} == {index_file.name, *files_by_index(folder)}
