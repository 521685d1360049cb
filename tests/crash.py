"""Kills processes that save again and again over one directory, and loads what they leave.

Prints how many were killed, how many of them lost the checkpoint, and how many left a mixture or none of the two states
that were being written. The exit code is 0 when there was none.

Example:
    python tests/crash.py --kills 200
"""

import argparse
import itertools
import mmap
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from colossalai.checkpoint_io import GeneralCheckpointIO, HybridParallelCheckpointIO
from colossalai.interface import OptimizerWrapper
from forked import exit_code, result_of, start
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, only_checkpoint_files, saved_number, set_number

SECONDS_OF_A_RUN = 0.3


class Progress:
    """The number of the save that a process has begun last, and of the one that it has finished last."""

    def __init__(self):
        self._shared = memoryview(mmap.mmap(-1, 16)).cast("q")

    @property
    def begun(self):
        return self._shared[0]

    @property
    def finished(self):
        return self._shared[1]

    def begin(self, number):
        self._shared[0] = number

    def finish(self, number):
        self._shared[1] = number


def pipeline_stage(rank, folder):
    """One of two ranks of a pipeline, each with half of the parameters, by ColossalAI's own checkpoint IO."""
    dist.init_process_group("gloo", init_method=f"file://{folder}.rendezvous", rank=rank, world_size=2)
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    optimizer = make_optimizer()
    parameters = optimizer.param_groups[0]["params"]
    wrapper = OptimizerWrapper(optimizer)
    wrapper.param_info = {
        "param_groups": [{"params": list(range(len(parameters)))}],
        "param2id": {id(parameter): position for position, parameter in enumerate(parameters)},
        "param2shape": {id(parameter): parameter.shape for parameter in parameters},
    }
    wrapper.get_master_to_working_map = lambda: None
    return HybridParallelCheckpointIO(alone, dist.group.WORLD, alone, alone, 0, verbose=False), wrapper


def keep_half(optimizer, rank):
    for parameter in list(optimizer.state)[1 - rank :: 2]:
        del optimizer.state[parameter]


def save_again_and_again(folder, first, use_async, rank, ranks, progress):
    checkpoint_io, optimizer = GeneralCheckpointIO(), OptimizerWrapper(make_optimizer())
    if ranks == 2:
        checkpoint_io, optimizer = pipeline_stage(rank, folder)
    for number in itertools.count(first):
        set_number(optimizer.optim, number)
        if ranks == 2:
            keep_half(optimizer.optim, rank)
        progress.begin(number)
        checkpoint_io.save_optimizer(
            optimizer, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=use_async
        )
        checkpoint_io.synchronize()
        for state in optimizer.optim.state.values():
            state["exp_avg"].fill_(-1)
        checkpoint_io._sync_io()
        progress.finish(number)


def run_and_kill(draw, folder, first, use_async, ranks):
    """Let processes save from ``first`` on, kill them at a moment that is drawn, and return what they had done."""
    progress = [Progress() for _ in range(ranks)]
    for shared in progress:
        shared.finish(first - 1)
    processes = [
        start(save_again_and_again, folder, first, use_async, rank, ranks, progress[rank]) for rank in range(ranks)
    ]
    while not all(shared.begun for shared in progress):
        time.sleep(0.001)
    time.sleep(draw.uniform(0, SECONDS_OF_A_RUN))
    draw.shuffle(processes)
    for process in processes:
        os.kill(process, signal.SIGKILL)
        time.sleep(draw.choice([0, 0.005]))
    first_code, *_ = [exit_code(process) for process in processes]
    killed = first_code == -signal.SIGKILL  # the other rank may end of its death before it is killed itself
    Path(f"{folder}.rendezvous").unlink(missing_ok=True)
    # In the background a rank finishes its own part; the save is committed when all have.
    finished = (min if use_async else max)(shared.finished for shared in progress)
    return killed, finished, max(shared.begun for shared in progress)


def save_once(folder, number):
    optimizer = make_optimizer()
    set_number(optimizer, number)
    GeneralCheckpointIO().save_optimizer(optimizer, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD)
    return only_checkpoint_files(folder)


def judge(loaded, finished, begun):
    """What it means that ``loaded``, a number or an error, came out of the directory."""
    if isinstance(loaded, int):
        return "sound" if finished <= loaded <= begun else "mixture"
    return "mixture" if isinstance(loaded, ValueError) else "loss"


def crash(kills, parent, seed=0):
    """Kill so many times, over one directory for each way to save, and count the outcomes."""
    draw = random.Random(seed)
    ways = list(itertools.product(["bin", "safetensors", "async"], [1, 2]))
    outcomes, numbers = Counter(), Counter()
    for way in itertools.islice(itertools.cycle(ways), kills):
        save_format, ranks = way
        folder = os.path.join(parent, f"{save_format}-{ranks}")  # noqa: PTH118, since ColossalAI takes strings
        os.environ["COLOSSALAI_PATCH_SAVE_FORMAT"] = "safetensors" if save_format == "safetensors" else "bin"
        first = numbers[way] + 1
        if not Path(folder).exists():
            result_of(save_once, folder, 0)
        killed, finished, begun = run_and_kill(draw, folder, first, save_format == "async", ranks)
        loaded = result_of(saved_number, folder)
        outcome = judge(loaded, finished, begun)
        if outcome != "sound":
            print(f"{folder}: {loaded!r}, where {finished} was saved and {begun} begun", file=sys.stderr)
        outcomes["killed"] += killed
        outcomes["saves"] += finished - first + 1
        outcomes[outcome] += 1
        numbers[way] = loaded if isinstance(loaded, int) else begun
    outcomes["untidy"] = sum(not result_of(save_once, str(folder), 1) for folder in Path(parent).iterdir())
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as parent:
        outcomes = crash(options.kills, parent, options.seed)
    print(
        f"{outcomes['killed']} kills in {time.perf_counter() - started:.0f} s, {outcomes['saves']} saves finished: "
        f"{outcomes['loss']} losses, {outcomes['mixture']} mixtures, {outcomes['untidy']} directories untidy in the end"
    )
    return int((outcomes["killed"], outcomes["sound"], outcomes["untidy"]) != (options.kills, options.kills, 0))


if __name__ == "__main__":
    sys.exit(main())
