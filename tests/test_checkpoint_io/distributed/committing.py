"""What plugins commit, now and in the background, and when a rank fails: committing.py FOLDER TOPOLOGY..."""

import errno
import os
import threading
from contextlib import contextmanager

import torch.distributed as dist
from checking import main, of_each, on_rank_0
from checkpoints import in_order
from comparison import assert_same
from safetensors.torch import load_file
from topologies import boosted

from colossalai_patch.optimizer_checkpoint import checked_file, open_checkpoint
from colossalai_patch.optimizer_checkpoint.save import Save

SHARDED = {"shard": True, "size_per_shard": 0.02}


def held_in(folder):
    (index_file,) = folder.glob("*.index.json")
    checkpoint = open_checkpoint(index_file)
    states = checkpoint.states(low_cpu_mem_mode=True, num_threads=1).items()
    return in_order({"state": dict(states), "param_groups": checkpoint.param_groups})


def save_in_background(run, folder, seed):
    """Return when all ranks are done; the state changes as soon as it may."""
    run.booster.save_optimizer(run.optimizer, str(folder), use_async=True, **SHARDED)
    run.booster.checkpoint_io.synchronize()
    run.train(1, seed)
    run.booster.checkpoint_io._sync_io()
    dist.barrier()


def an_async_save_holds_what_a_synchronous_one_does(run, folder):
    for seed in (1, 2):
        run.train(1, seed)
        run.save(folder / "now")
        save_in_background(run, folder / "later", seed + 10)
        assert_same(held_in(folder / "later"), held_in(folder / "now"))


@contextmanager
def a_save_that_ends_when_somebody_waits_for_it(run, folder):
    """Until then no background thread gets a file onto the disk, and so there is no index."""
    run.booster.checkpoint_io._wait_for_saves("optimizer")
    fsync, wait, waited_for = os.fsync, Save.synchronize, threading.Event()

    def fsync_later(descriptor):
        if threading.current_thread() is not threading.main_thread():
            waited_for.wait()
        fsync(descriptor)

    def wait_now(save):
        waited_for.set()
        wait(save)

    checked_file.os.fsync, Save.synchronize = fsync_later, wait_now
    try:
        run.booster.save_optimizer(run.optimizer, str(folder), use_async=True, **SHARDED)
        run.booster.checkpoint_io.synchronize()
        yield
    finally:
        waited_for.set()
        checked_file.os.fsync, Save.synchronize = fsync, wait


def a_load_waits_for_the_save_that_is_still_running(run, folder):
    saved = run.snapshot()
    with a_save_that_ends_when_somebody_waits_for_it(run, folder):
        run.train(1, seed=5)
        run.load(folder)
    assert_same(in_order(run.snapshot())["state"], in_order(saved)["state"])


def a_directory_holds_nothing_but_the_last_save(run, folder):
    save_in_background(run, folder, seed=3)
    run.save(folder)
    names = {path.name for path in folder.iterdir()}
    (index_file,) = folder.glob("*.index.json")
    index = open_checkpoint(index_file).index
    assert names == {index_file.name, index.group_file.name, *(path.name for path in index.shard_files)}


def an_async_model_holds_what_a_synchronous_one_does(run, folder):
    run.booster.save_model(run.model, str(folder / "now"), use_safetensors=True, **SHARDED)
    run.booster.save_model(run.model, str(folder / "later"), use_safetensors=True, use_async=True, **SHARDED)
    run.booster.checkpoint_io._sync_io()
    dist.barrier()
    names = {path.name for path in (folder / "now").iterdir()}
    assert names == {path.name for path in (folder / "later").iterdir()}
    for name in (name for name in names if name.endswith(".safetensors")):
        now, later = (dict(sorted(load_file(folder / kind / name).items())) for kind in ("now", "later"))
        assert_same(later, now, name)


def no_space(descriptor, data):
    raise OSError(errno.ENOSPC, "No space left on device")


def a_save_that_fails_is_told_by_who_takes_part_and_changes_nothing(run, folder, use_async, told_by):
    """Rank 0 has no space; in a pipeline, rank 1 has saved its part by then."""
    run.save(folder)
    before = held_in(folder)
    run.train(1, seed=4)
    write = os.write
    if dist.get_rank() == 0:
        checked_file.os.write = no_space
    try:
        run.booster.save_optimizer(run.optimizer, str(folder), use_async=use_async, **SHARDED)
        run.booster.checkpoint_io._sync_io()
        run.booster.checkpoint_io._wait_for_saves("optimizer")
        told = None
    except OSError as error:
        told = error
    finally:
        checked_file.os.write = write
    assert ("No space left" in str(told)) == (dist.get_rank() in told_by), told
    assert_same(held_in(folder), before)
    dist.barrier()
    run.save(folder)


def checks_of(topology, folder):
    run = boosted(topology)
    run.train(1, seed=0)

    def check(name, function, *arguments):
        path = folder / name.replace(" ", "-")
        on_rank_0(path.mkdir)
        return f"{topology}: {name}", lambda: function(run, path, *arguments)

    yield check("async", an_async_save_holds_what_a_synchronous_one_does)
    if topology != "ddp":  # its ranks do not wait for each other
        yield check("load", a_load_waits_for_the_save_that_is_still_running)
    yield check("tidy", a_directory_holds_nothing_but_the_last_save)
    if topology != "fsdp":  # its models cannot be saved on CPU
        yield check("model", an_async_model_holds_what_a_synchronous_one_does)
    for use_async in (False, True):
        name = f"no space, {'async' if use_async else 'sync'}"
        told_by = [0] if topology == "ddp" else [0, 1]
        yield check(name, a_save_that_fails_is_told_by_who_takes_part_and_changes_nothing, use_async, told_by)


if __name__ == "__main__":
    main(of_each(checks_of))
