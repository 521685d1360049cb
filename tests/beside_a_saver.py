"""Loads again and again what another process saves again and again to the same place, and counts the outcomes.

Every save marks all states with one number, so that a mixture shows. The exit code is 0 if every load was whole.

Example:
    python tests/beside_a_saver.py --loads 1000
"""

import argparse
import itertools
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter

import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from forked import exit_code, start
from numbered_states import MEGABYTES_OF_A_SHARD, SHAPES, make_optimizer, set_number

SECONDS_TO_BEGIN = 60
FORMAT = "COLOSSALAI_PATCH_SAVE_FORMAT"


def make_model():
    model = torch.nn.Module()
    for number, shape in enumerate(SHAPES):
        model.register_parameter(f"weight{number}", torch.nn.Parameter(torch.zeros(shape)))
    return model


def fill(model, number):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)


def numbers_in_model(model):
    return {value for parameter in model.parameters() for value in parameter.unique().tolist()}


def numbers_in_optimizer(optimizer):
    numbers = {group["lr"] for group in optimizer.param_groups}
    for state in optimizer.state.values():
        numbers |= {float(state["step"]), *state["exp_avg"].unique().tolist(), *state["exp_avg_sq"].unique().tolist()}
    return numbers | ({-1.0} if len(optimizer.state) != len(SHAPES) - int(max(numbers)) % 2 else set())


class Optimizer:
    def __init__(self, file_format, shard):
        self.file_format, self.shard, self.optimizer = file_format, shard, make_optimizer()

    def save(self, place, number):
        os.environ[FORMAT] = self.file_format
        set_number(self.optimizer, number)
        GeneralCheckpointIO().save_optimizer(
            self.optimizer, place, shard=self.shard, size_per_shard=MEGABYTES_OF_A_SHARD
        )

    def load(self, place):
        loaded = make_optimizer()
        GeneralCheckpointIO().load_optimizer(loaded, place)
        return numbers_in_optimizer(loaded)


class Model:
    def __init__(self, file_format, shard):
        self.safetensors, self.shard, self.model = file_format == "safetensors", shard, make_model()

    def save(self, place, number):
        fill(self.model, number)
        GeneralCheckpointIO().save_model(
            self.model,
            place,
            shard=self.shard,
            size_per_shard=MEGABYTES_OF_A_SHARD,
            use_safetensors=self.safetensors,
        )

    def load(self, place):
        loaded = make_model()
        GeneralCheckpointIO().load_model(loaded, place)
        return numbers_in_model(loaded)


WAYS = {
    f"{kind.__name__.lower()}-{file_format}-{'sharded' if shard else 'file'}": (kind, file_format, shard)
    for kind, file_format, shard in itertools.product((Optimizer, Model), ("bin", "safetensors"), (True, False))
    if (kind, file_format, shard) != (Optimizer, "safetensors", False)  # that one is only saved in the background
}


def place_of(way, parent):
    _, file_format, shard = WAYS[way]
    return os.path.join(parent, way if shard else f"{way}.{file_format}")  # noqa: PTH118, since ColossalAI takes strings


def make(way):
    kind, file_format, shard = WAYS[way]
    return kind(file_format, shard)


def save_again_and_again(way, place):
    saver = make(way)
    for number in itertools.count(1):
        saver.save(place, number)


def load_once(load, place):
    """What came of a load, and the number that all states have if it was whole."""
    try:
        numbers = load(place)
    except Exception as error:
        return type(error).__name__, None
    return ("whole", numbers.pop()) if len(numbers) == 1 else ("mixture", None)


def load_beside_a_saver(way, loads, parent):
    """Load so often, and count the outcomes and the different checkpoints that were loaded."""
    place, loader = place_of(way, parent), make(way)
    loader.save(place, 0)
    saver = start(save_again_and_again, way, place)
    try:
        give_up = time.monotonic() + SECONDS_TO_BEGIN
        while load_once(loader.load, place) == ("whole", 0) and time.monotonic() < give_up:
            pass  # the saver does not save yet
        found = [load_once(loader.load, place) for _ in range(loads)]
    finally:
        os.kill(saver, signal.SIGKILL)
        ended_by = exit_code(saver)
    if ended_by != -signal.SIGKILL:
        raise RuntimeError(f"the saver ended by itself, with {ended_by}")
    numbers = {number for _, number in found if number is not None}
    if numbers == {0}:
        raise RuntimeError("the saver has saved nothing")
    return Counter(outcome for outcome, _ in found), len(numbers)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--loads", type=int, default=1000, help="of all ways together")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    in_all, each = Counter(), -(-options.loads // len(options.ways))
    with tempfile.TemporaryDirectory() as parent:
        for way in options.ways:
            began = time.perf_counter()
            outcomes, checkpoints = load_beside_a_saver(way, each, parent)
            in_all += outcomes
            seconds = time.perf_counter() - began
            print(f"{way}: {dict(outcomes)}, of {checkpoints} checkpoints, in {seconds:.0f} s", flush=True)
    print(f"{in_all.total()} loads: {dict(in_all)}")
    return int(in_all["whole"] != each * len(options.ways))


if __name__ == "__main__":
    sys.exit(main())
