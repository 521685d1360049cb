"""What scripts do around saves that go on in the background, on two ranks: habits_of_plugins.py FOLDER [NAME...]"""

import shutil

import torch
import torch.distributed as dist
from forked_ranks import main
from scripts import (
    KINDS,
    SHARDED,
    assert_restores_all,
    contents,
    for_each,
    load,
    named,
    on_rank,
    one_after_the_other,
    save,
    save_in_the_background,
    trained,
)

PLUGINS = ("ddp", "zero1")
ALL_PLUGINS = (*PLUGINS, "hybrid-dp2", "hybrid-tp2", "hybrid-pp2")


def it_synchronizes_before_every_step(topology, saving, folder):
    run = trained(topology)
    for epoch in range(3):
        expected = contents(run)
        if saving == "with a save":
            paths = save_in_the_background(run, folder / str(epoch))
        for _ in range(2):
            run.booster.checkpoint_io.synchronize()
            run.train(1, seed=epoch)
    run.booster.checkpoint_io._sync_io()
    dist.barrier()
    if saving == "with a save":
        assert_restores_all(run, paths, expected)


def each_rank_ends_its_saves_alone(topology, folder):
    run = trained(topology)
    one_after_the_other(run.booster.checkpoint_io._sync_io)
    paths, expected = save_in_the_background(run, folder), contents(run)
    for _ in range(2):
        one_after_the_other(run.booster.checkpoint_io._sync_io)
    run.train(1, seed=2)
    assert_restores_all(run, paths, expected)


def rank_0_alone_ends_the_saves(topology, folder):
    run = trained(topology)
    paths, expected = save_in_the_background(run, folder), contents(run)
    if on_rank(0):
        run.booster.checkpoint_io._sync_io()
    run.train(1, seed=2)
    assert_restores_all(run, paths, expected)


def older_checkpoints_go_as_soon_as_a_save_returned(topology, what, folder):
    run = trained(topology)
    for epoch in range(4):
        now, before = folder / f"epoch-{epoch}", folder / f"epoch-{epoch - 1}"
        paths, expected = save_in_the_background(run, now), contents(run)
        if on_rank(0) and before.exists():
            shutil.rmtree(before) if what == "deleted" else before.rename(folder / f"old-{epoch - 1}")
        run.booster.checkpoint_io.synchronize()
        run.train(1, seed=epoch)
    run.booster.checkpoint_io._sync_io()
    dist.barrier()
    assert [path.name for path in folder.glob("epoch-*")] == ["epoch-3"]
    assert_restores_all(run, paths, expected)


def each_epoch_saves_over_the_last(topology, folder):
    run = trained(topology)
    for epoch in range(3):
        paths = {kind: save(run, kind, folder) for kind in KINDS}
        dist.barrier()
        expected = contents(run, KINDS)
        run.train(1, seed=epoch)
        assert_restores_all(run, paths, expected)
        run.train(1, seed=epoch)


def a_load_leaves_the_master_weights_where_they_are(kind, folder):
    run = trained("zero1")
    before = dict(run.optimizer.get_working_to_master_map())
    path = save(run, kind, folder)
    dist.barrier()
    load(run, kind, path)
    masters = run.optimizer.get_working_to_master_map()
    assert masters.keys() == before.keys()
    assert all(masters[key] is master for key, master in before.items())
    assert {id(param) for param in run.parameters()} == {id(master) for master in before.values()}


def master_weights_are_copied_after_a_load(folder):
    run = trained("zero1")
    paths = {kind: save(run, kind, folder) for kind in SHARDED}
    dist.barrier()
    for kind, path in paths.items():
        load(run, kind, path)
    for master in run.optimizer.get_working_to_master_map().values():
        master.data.copy_(torch.full_like(master, 0.5))
    for group in run.optimizer.param_groups:
        group["lr"] = group["weight_decay"] = 0.0
    run.train(1, seed=2)
    assert all((param == 0.5).all() for param in run.model.unwrap().parameters())


def rank_0_writes_the_scheduler(topology, folder):
    run = trained(topology)
    path = folder / f"scheduler-of-{dist.get_rank()}"
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer.optim, 1)
    scheduler.step()
    run.booster.save_lr_scheduler(scheduler, str(path))
    assert path.exists() == on_rank(0)


def rank_0_alone_saves_and_loads_the_scheduler(topology, folder):
    run = trained(topology)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer.optim, 1)
    scheduler.step()
    expected = scheduler.state_dict()
    if on_rank(0):
        run.booster.save_lr_scheduler(scheduler, str(folder / "scheduler"))
        scheduler.step()
        run.booster.load_lr_scheduler(scheduler, str(folder / "scheduler"))
        assert scheduler.state_dict() == expected


def ranks_load_the_scheduler_one_after_the_other(topology, folder):
    run = trained(topology)
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer.optim, 1)
    run.booster.save_lr_scheduler(scheduler, str(folder / "scheduler"))
    expected = scheduler.state_dict()
    dist.barrier()
    scheduler.step()
    one_after_the_other(run.booster.load_lr_scheduler, scheduler, str(folder / "scheduler"))
    assert scheduler.state_dict() == expected


HABITS = {
    **for_each(
        it_synchronizes_before_every_step,
        [(plugin, f"{how} a save") for plugin in PLUGINS for how in ("with", "without")],
    ),
    **for_each(each_rank_ends_its_saves_alone, PLUGINS),
    **for_each(rank_0_alone_ends_the_saves, PLUGINS),
    **for_each(
        older_checkpoints_go_as_soon_as_a_save_returned,
        [(plugin, what) for plugin in PLUGINS for what in ("deleted", "renamed")],
    ),
    **for_each(each_epoch_saves_over_the_last, PLUGINS),
    **for_each(a_load_leaves_the_master_weights_where_they_are, KINDS),
    **named(master_weights_are_copied_after_a_load),
    **for_each(rank_0_writes_the_scheduler, ALL_PLUGINS),
    **for_each(rank_0_alone_saves_and_loads_the_scheduler, ALL_PLUGINS),
    **for_each(ranks_load_the_scheduler_one_after_the_other, ALL_PLUGINS),
}


if __name__ == "__main__":
    main(HABITS)
