"""Checkpoints from one plugin in another, and from stock in the patch and back: interchange.py FOLDER TASK"""

import functools

import torch
import torch.distributed as dist
from checking import main, states_in
from checkpoints import in_order
from comparison import assert_same
from topologies import boosted

PAIRED = ("ddp", "zero1", "hybrid-tp2")
EXCHANGED = ("ddp", "zero1", "hybrid-dp2-zero1", "hybrid-tp2", "moe-ep2-zero1", "gemini", "fsdp")


def loads_from(source, target, folder):
    """What the target saves again is what the source saved."""
    run = boosted(target)
    run.train(1, seed=9)
    run.load(folder / source)
    again = folder / f"{source}-{target}"
    run.save(again)
    assert_same(by_id(again), by_id(folder / source))


def by_id(checkpoint):
    return in_order({"state": states_in(checkpoint)})


def pairs(folder):
    for seed, source in enumerate(PAIRED):
        run = boosted(source)
        run.train(2, seed=seed)
        run.save(folder / source)
        for target in PAIRED:
            yield f"{source} to {target}", functools.partial(loads_from, source, target, folder)


def saves(topology, folder):
    run = boosted(topology)
    run.train(2, seed=1)
    run.save(folder / topology)
    torch.save(run.snapshot(), held_file(topology, folder))


def loads(topology, folder):
    run = boosted(topology)
    run.load(folder / topology)
    held = torch.load(held_file(topology, folder), weights_only=True)
    assert_same(in_order(run.snapshot())["state"], in_order(held)["state"])


def held_file(topology, folder):
    return folder / f"{topology}-held-by-rank-{dist.get_rank()}.pt"


def checks(folder, task):
    if task == "pairs":
        yield from pairs(folder)
        return
    for topology in EXCHANGED:
        yield f"{task} {topology}", functools.partial({"save": saves, "load": loads}[task], topology, folder)


if __name__ == "__main__":
    main(checks)
