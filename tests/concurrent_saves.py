"""Processes that save to one directory at the same time, one of which may be killed, and what they leave.

Prints how many rounds lost the checkpoint, left a mixture, or had a save that raised. The exit code is 0 when none did.

Example:
    python tests/concurrent_saves.py --rounds 200 --locks refused
"""

import argparse
import errno
import fcntl
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from forked import exit_code, result_of, start
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, saved_number, set_number

PROCESSES = 4
SAVES = 4
LONGEST_PAUSE = 0.01
SHARDED = {"shard": True, "size_per_shard": MEGABYTES_OF_A_SHARD}
WAYS = {
    "optimizer, bin": ("optimizer", "", SHARDED),
    "optimizer, safetensors": ("optimizer", "", SHARDED | {"use_async": True}),
    "optimizer, one file": ("optimizer", "optimizer.bin", {}),
    "optimizer, one file, safetensors": ("optimizer", "optimizer.safetensors", {"use_async": True}),
    "model, bin": ("model", "", SHARDED),
    "model, safetensors": ("model", "", SHARDED | {"use_safetensors": True}),
    "model, async": ("model", "", SHARDED | {"use_safetensors": True, "use_async": True}),
    "model, one file": ("model", "model.bin", {}),
}


def make_model(number):
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 50))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, number)
    return model


def save(kind, path, number, options):
    checkpoint_io = GeneralCheckpointIO()
    if kind == "model":
        checkpoint_io.save_model(make_model(number), path, **options)
    else:
        optimizer = make_optimizer()
        set_number(optimizer, number)
        checkpoint_io.save_optimizer(optimizer, path, **options)
    checkpoint_io._sync_io()


def loaded_number(kind, path):
    """The number that the checkpoint tells; a ``ValueError`` where it tells several."""
    if kind == "model":
        model = make_model(-1)
        GeneralCheckpointIO().load_model(model, path)
        (number,) = {value for parameter in model.parameters() for value in parameter.unique().tolist()}
        return int(number)
    if Path(path).is_dir():
        return saved_number(path)
    optimizer = make_optimizer()
    GeneralCheckpointIO().load_optimizer(optimizer, path)
    (number,) = {value for state in optimizer.state.values() for value in state["exp_avg"].unique().tolist()}
    return int(number)


def refuse_locks():
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "no locks here")

    fcntl.flock = refuse


def save_again_and_again(draw, way, folder, writer):
    kind, name, options = WAYS[way]
    for number in range(SAVES):
        time.sleep(draw.uniform(0, LONGEST_PAUSE))
        save(kind, os.fspath(folder / name), writer * SAVES + number, options)


def run(draw, way, folder, kill):
    """Let processes save at the same time, and say what is wrong with what they leave, if anything is."""
    kind, name, _ = WAYS[way]
    writers = [start(save_again_and_again, random.Random(draw.random()), way, folder, w) for w in range(PROCESSES)]
    if kill:
        time.sleep(draw.uniform(0, 0.1))
        os.kill(writers[0], signal.SIGKILL)
    codes = [exit_code(process) for process in writers]
    loaded = result_of(loaded_number, kind, os.fspath(folder / name))
    if any(codes[1:]) or codes[0] not in (0, -signal.SIGKILL):
        return "raised"
    if not isinstance(loaded, int):
        return "mixture" if isinstance(loaded, ValueError) else "loss"
    last_of_each = range(SAVES - 1, PROCESSES * SAVES, SAVES)
    return None if loaded in last_of_each or (kill and loaded < SAVES) else "stale"


def rounds(count, parent, seed, kill=False):
    """Do so many rounds, each way in turn, every way in a directory of its own, and count what went wrong."""
    draw, wrong = random.Random(seed), Counter()
    for number in range(count):
        way = list(WAYS)[number % len(WAYS)]
        folder = Path(parent, way.replace(", ", "-"))
        folder.mkdir(exist_ok=True)
        outcome = run(draw, way, folder, kill)
        if outcome:
            wrong[f"{way}: {outcome}"] += 1
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--locks", choices=["work", "refused"], default="work")
    parser.add_argument("--kill", action="store_true", help="kill one of the processes in each round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.locks == "refused":
        refuse_locks()
    with tempfile.TemporaryDirectory() as parent:
        wrong = rounds(options.rounds, parent, options.seed, options.kill)
    print(f"{options.rounds} rounds, seed {options.seed}, locks {options.locks}: {dict(wrong) or 'nothing wrong'}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
