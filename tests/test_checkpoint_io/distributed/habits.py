"""What scripts do that waits for nobody in stock, on two ranks: habits.py FOLDER [NAME...]"""

import shutil
import threading
from contextlib import contextmanager

import torch.distributed as dist
from comparison import assert_same
from forked_ranks import main
from scripts import (
    KINDS,
    ask_to_save,
    assert_holds,
    boosted,
    content,
    files_below,
    for_each,
    held,
    load,
    named,
    on_rank,
    one_after_the_other,
    path_of,
    save,
    trained,
)
from torch.distributed import distributed_c10d

MODEL, MODEL_FILE, OPTIMIZER, OPTIMIZER_FILE = KINDS


def rank_0_alone_saves(kind, folder, use_async=False):
    run = trained()
    if on_rank(0):
        path = save(run, kind, folder, use_async=use_async)
        run.booster.checkpoint_io._sync_io()
        assert_holds(path, kind, content(run, kind))


def rank_0_alone_saves_in_the_background(kind, folder):
    rank_0_alone_saves(kind, folder, use_async=True)


def rank_1_alone_asks_to_save(kind, folder):
    run = trained()
    if on_rank(1):
        save(run, kind, folder)
        assert files_below(folder) == []


def rank_0_alone_loads(kind, folder):
    run = trained()
    if on_rank(0):
        path = save(run, kind, folder)
    expected = held(run)
    run.train(1, seed=2)
    if on_rank(0):
        load(run, kind, path)
        position = 0 if "model" in kind else 1
        assert_same(held(run)[position], expected[position])


def rank_0_saves_its_best_model(folder):
    run, best = boosted("ddp"), None
    for epoch, loss in enumerate((3.0, 1.0, 2.0)):
        run.train(1, seed=epoch)
        if on_rank(0) and (best is None or loss < best):
            best, expected = loss, content(run, MODEL)
            run.booster.save_model(run.model, str(folder / "best"), shard=True)
    if on_rank(0):
        assert_holds(folder / "best", MODEL, expected)


def ranks_load_one_after_the_other(topology, folder):
    run = trained(topology)
    paths = {kind: save(run, kind, folder) for kind in (MODEL, OPTIMIZER)}
    files = {kind: save(run, kind, folder / "files") for kind in (MODEL_FILE, OPTIMIZER_FILE)}
    dist.barrier()
    expected = held(run)
    for checkpoints in (paths, files):
        run.train(1, seed=2)
        for kind, path in checkpoints.items():
            one_after_the_other(load, run, kind, path)
        assert_same(held(run)[0], expected[0])
        assert_same(held(run)[1], expected[1])


def rank_0_saves_in_a_thread_while_the_ranks_train_on(folder):
    _threads_save_while_the_ranks_train_on([0], folder)


def all_ranks_save_in_threads_while_they_train_on(folder):
    _threads_save_while_the_ranks_train_on([0, 1], folder)


def _threads_save_while_the_ranks_train_on(saving_ranks, folder):
    run, failures = trained(), []

    def save_all():
        try:
            for kind in KINDS:
                save(run, kind, folder)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=save_all, daemon=True)
    if dist.get_rank() in saving_ranks:
        thread.start()
    run.train(5, seed=2)
    if dist.get_rank() in saving_ranks:
        thread.join()
    assert failures == []
    if on_rank(0):
        for kind in KINDS:
            load(run, kind, path_of(kind, folder))


def each_rank_has_a_disk_of_its_own(topology, kind, folder):
    run = trained(topology)
    disk = folder / f"disk-of-{dist.get_rank()}"
    if on_rank(0):
        disk.mkdir()
    path, shard = path_of(kind, disk), kind.endswith("shards")
    ask_to_save(run, kind, path, shard)
    expected = content(run, kind)
    if on_rank(0):
        assert_holds(path, kind, expected)
    else:
        assert not disk.exists() or files_below(disk) == []
    dist.barrier()
    if on_rank(0):
        shutil.copytree(disk, folder / "disk-of-1", dirs_exist_ok=True)
    dist.barrier()
    run.train(1, seed=2)
    load(run, kind, path)
    assert_same(content(run, kind), expected)


def a_save_makes_no_collective(kind, folder, use_async=False):
    run = trained()
    if on_rank(0):
        with _collectives_that_raise():
            path = save(run, kind, folder, use_async=use_async)
            run.booster.checkpoint_io.synchronize()
            run.booster.checkpoint_io._sync_io()
        assert_holds(path, kind, content(run, kind))


def a_save_in_the_background_makes_no_collective(kind, folder):
    a_save_makes_no_collective(kind, folder, use_async=True)


def a_load_makes_no_collective(topology, kind, folder):
    run = trained(topology)
    path = save(run, kind, folder)
    dist.barrier()
    expected = content(run, kind)
    run.train(1, seed=2)
    with _collectives_that_raise():
        load(run, kind, path)
    assert_same(content(run, kind), expected)


@contextmanager
def _collectives_that_raise():
    """While it lasts, whatever waits for another rank raises, called by either of its two names."""

    def refuse(*arguments, **options):
        raise AssertionError("a collective")

    modules = (dist, distributed_c10d)
    words = ("gather", "reduce", "broadcast", "scatter", "barrier", "all_to_all", "send", "recv", "new_group")
    names = [name for name in distributed_c10d.__all__ if any(word in name for word in words)]
    kept = [(module, name, getattr(module, name)) for module in modules for name in names if hasattr(module, name)]
    try:
        for module, name, function in kept:
            if not isinstance(function, type):
                setattr(module, name, refuse)
        yield
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


CASES = [(topology, kind) for topology in ("ddp", "zero1") for kind in KINDS]
HABITS = {
    **for_each(rank_0_alone_saves, KINDS),
    **for_each(rank_0_alone_saves_in_the_background, KINDS),
    **for_each(rank_1_alone_asks_to_save, KINDS),
    **for_each(rank_0_alone_loads, KINDS),
    **named(rank_0_saves_its_best_model),
    **for_each(ranks_load_one_after_the_other, ("ddp", "zero1")),
    **named(rank_0_saves_in_a_thread_while_the_ranks_train_on, all_ranks_save_in_threads_while_they_train_on),
    **for_each(each_rank_has_a_disk_of_its_own, CASES),
    **for_each(a_save_makes_no_collective, KINDS),
    **for_each(a_save_in_the_background_makes_no_collective, KINDS),
    **for_each(a_load_makes_no_collective, CASES),
}

if __name__ == "__main__":
    main(HABITS)
