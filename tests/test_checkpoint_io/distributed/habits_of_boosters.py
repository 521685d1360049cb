"""Boosters, plugins and classes of a script's own, on two ranks: habits_of_boosters.py FOLDER [NAME...]"""

import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin, LowLevelZeroPlugin, TorchDDPPlugin
from colossalai.booster.plugin.low_level_zero_plugin import LowLevelZeroCheckpointIO
from colossalai.booster.plugin.torch_ddp_plugin import TorchDDPCheckpointIO
from colossalai.checkpoint_io import HybridParallelCheckpointIO
from comparison import assert_same
from forked_ranks import main
from scripts import (
    KINDS,
    MODEL,
    MODEL_FILE,
    OPTIMIZER,
    OPTIMIZER_FILE,
    assert_restores_all,
    boosted,
    content,
    contents,
    files_below,
    for_each,
    load,
    methods_of,
    named,
    on_rank,
    overriding,
    save,
    save_in_the_background,
    trained,
)
from topologies import Run, llama

PLUGINS = ("ddp", "zero1")
CLASSES = {
    "ddp": (TorchDDPPlugin, TorchDDPCheckpointIO),
    "zero1": (LowLevelZeroPlugin, LowLevelZeroCheckpointIO),
    "hybrid-dp2": (HybridParallelPlugin, HybridParallelCheckpointIO),
}


def second_pair(first):
    torch.manual_seed(1)
    model = llama()
    model, optimizer, *_ = first.booster.boost(model, torch.optim.AdamW(model.parameters()))
    run = Run(first.booster, model, optimizer)
    run.train(1, seed=3)
    return run


def saved_and_expected(run, folder):
    return run, save_in_the_background(run, folder), contents(run)


def a_second_pair_is_saved_while_the_first_is_pending(topology, folder):
    first = trained(topology)
    second = second_pair(first)
    saved = [
        (run, save_in_the_background(run, folder / name), contents(run)) for name, run in (("1", first), ("2", second))
    ]
    first.booster.checkpoint_io.synchronize()
    first.booster.checkpoint_io._sync_io()
    dist.barrier()
    for run, paths, expected in saved:
        run.train(1, seed=4)
        assert_restores_all(run, paths, expected)


def two_boosters_share_a_plugin(topology, folder):
    first = trained(topology)
    other = Booster(plugin=first.booster.plugin)
    second = second_pair(Run(other, None, None))
    saved = [
        (run, save_in_the_background(run, folder / name), contents(run)) for name, run in (("1", first), ("2", second))
    ]
    for run in (first, second):
        run.booster.checkpoint_io._sync_io()
    dist.barrier()
    for run, paths, expected in saved:
        run.train(1, seed=4)
        assert_restores_all(run, paths, expected)


def plugins_of_several_kinds_are_in_a_process(folder):
    runs = {topology: trained(topology) for topology in PLUGINS}
    saved = {
        topology: (save_in_the_background(run, folder / topology), contents(run)) for topology, run in runs.items()
    }
    for topology, run in runs.items():
        run.booster.checkpoint_io._sync_io()
        dist.barrier()
        run.train(1, seed=4)
        assert_restores_all(run, *saved[topology])


def a_booster_has_no_optimizer(topology, folder):
    booster = Booster(plugin=trained(topology).booster.plugin)
    model, *_ = booster.boost(llama())
    run = Run(booster, model, None)
    paths = {kind: save(run, kind, folder) for kind in (MODEL, MODEL_FILE)}
    dist.barrier()
    expected = contents(run, paths)
    for param in run.model.unwrap().parameters():
        torch.nn.init.zeros_(param)
    assert_restores_all(run, paths, expected)


def another_booster_loads_the_optimizer(topology, kind, folder):
    run = trained(topology)
    path = save(run, kind, folder)
    dist.barrier()
    expected = content(run, kind)
    run.train(1, seed=2)
    other = Booster(plugin=boosted(topology).booster.plugin)
    load(Run(other, run.model, run.optimizer), kind, path)
    assert_same(content(run, kind), expected)


def none_is_refused_on_the_rank_that_asks(topology, folder):
    """What stock asserts; rank 1 does not ask."""
    run = trained(topology)
    for method in ("save_model", "save_optimizer"):
        for shard in (False, True):
            if on_rank(0):
                _assert_refused(getattr(run.booster, method), folder / method, shard)
    dist.barrier()
    assert files_below(folder) == []


def _assert_refused(method, path, shard):
    try:
        method(None, str(path), shard=shard)
    except (AssertionError, AttributeError):
        return
    raise RuntimeError("None is saved")


def a_class_of_the_script_overrides_one_method(topology, kind, folder):
    """Each of the methods that a save and a load of this kind go through, in a class of its own."""
    plugin_class, checkpoint_io_class = CLASSES[topology]
    run = trained(topology)
    plugin = run.booster.plugin
    assert isinstance(plugin, plugin_class)
    groups = ("mixed_dp_group", "pp_group", "tp_group", "sp_group", "zero_stage")
    arguments = [getattr(plugin, name) for name in groups if topology == "hybrid-dp2"]
    for method in methods_of(kind):
        own = overriding(checkpoint_io_class, method)
        run.booster.checkpoint_io = own(*arguments)
        path = save(run, kind, folder / method)
        dist.barrier()
        expected = content(run, kind)
        run.train(1, seed=2)
        load(run, kind, path)
        assert_same(content(run, kind), expected)
        assert own.calls == [method]


HABITS = {
    **for_each(a_second_pair_is_saved_while_the_first_is_pending, PLUGINS),
    **for_each(two_boosters_share_a_plugin, PLUGINS),
    **named(plugins_of_several_kinds_are_in_a_process),
    **for_each(a_booster_has_no_optimizer, PLUGINS),
    **for_each(
        another_booster_loads_the_optimizer,
        [(plugin, kind) for plugin in PLUGINS for kind in (OPTIMIZER, OPTIMIZER_FILE)],
    ),
    **for_each(none_is_refused_on_the_rank_that_asks, PLUGINS),
    **for_each(a_class_of_the_script_overrides_one_method, [(plugin, kind) for plugin in CLASSES for kind in KINDS]),
}


if __name__ == "__main__":
    main(HABITS)
