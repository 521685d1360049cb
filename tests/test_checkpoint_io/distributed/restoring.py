"""What each plugin's loader leaves in an optimizer: restoring.py FOLDER TOPOLOGY..."""

import contextlib
import functools
from itertools import chain

import torch
import torch.distributed as dist
from checking import copy_for_this_rank, groups_in, keep, main, of_each, on_rank_0, states_in, together, write
from checkpoints import INDEX_FILE, group_file_of, in_order
from colossalai.booster.plugin import TorchFSDPPlugin
from comparison import assert_same, assert_same_optimizer, assert_same_parameters
from crafted_pickles import CODE, write_with_pickle
from topologies import boosted

# The parameters whose states are left in a checkpoint that lacks some; FSDP has state for all of a unit or for none.
EVERY_OTHER = range(1, 1000, 2)
LEFT = {"fsdp": range(3)}


def restored(run, checkpoint, model):
    run.load_model(model)
    run.load(checkpoint)


def trained_equals_fresh(topology, trained, checkpoint, model):
    """Restore into a trained optimizer and into a fresh one; the two, and three further steps of both, are the same."""
    fresh = boosted(topology)
    together(lambda: restored(trained, checkpoint, model))
    together(lambda: restored(fresh, checkpoint, model))
    together(lambda: assert_same_optimizer(trained.inner, fresh.inner))
    for step in range(3):
        for run in (trained, fresh):
            run.train(1, seed=20 + step)
        together(lambda: assert_same_optimizer(trained.inner, fresh.inner))
        together(lambda: assert_same_parameters(trained.parameters(), fresh.parameters()))


def restores_what_was_saved(run, checkpoint, saved):
    run.load(checkpoint)
    assert_same(in_order(run.inner.state_dict())["state"], in_order(saved)["state"])


def holds_no_state(run, checkpoint):
    run.load(checkpoint)
    assert not any(run.inner.state.values()), f"{len(run.inner.state)} states"


def refuses(run, checkpoint):
    """The load fails, and leaves the optimizer as it is."""
    state, before = run.inner.state, run.snapshot()
    try:
        run.load(checkpoint)
    except ValueError:
        assert run.inner.state is state
        assert_same(run.inner.state_dict(), before)
    else:
        raise AssertionError("no error")


def is_refused_by_rank_1_alone(run, checkpoint):
    """A load is each rank's own affair, as in stock: rank 0 loads, and does not wait for rank 1."""
    if dist.get_rank() == 1:
        refuses(run, checkpoint)
    else:
        run.load(checkpoint)


def is_refused_by_a_hook_of_rank_1(run, checkpoint):
    """A hook after the load is the last that can fail: by then native has swapped everything in."""

    def refuse(optimizer):
        raise ValueError("not on this rank")

    hook = run.inner.register_load_state_dict_post_hook(refuse) if dist.get_rank() == 1 else None
    try:
        is_refused_by_rank_1_alone(run, checkpoint)
    finally:
        if hook is not None:
            hook.remove()


def runs_no_code(run, checkpoint, canary):
    with contextlib.suppress(Exception):
        run.load(checkpoint)
    assert not canary.exists(), "code ran"


def with_one_group_less(groups):
    return groups[:-1]


def with_one_parameter_less(groups):
    *others, last = groups
    return [*others, last | {"params": last["params"][:-1]}]


def with_a_parameter_in_another_group(groups):
    *head, last = (group["params"] for group in groups)
    moved = [*head[:-1], [*head[-1], last[0]], last[1:]]
    return [group | {"params": params} for group, params in zip(groups, moved, strict=True)]


def truncate_a_shard(folder):
    shard = max(folder.glob("pytorch_optim-*.bin"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:-1000])


def truncate_the_file(folder):
    file = folder / "optimizer.bin"
    file.write_bytes(file.read_bytes()[:-1000])


def drop_a_group(folder):
    torch.save(with_one_group_less(groups_in(folder)), group_file_of(folder))


def spoil_the_index(folder):
    (folder / INDEX_FILE).write_text("{}")


def remove_the_index(folder):
    (folder / INDEX_FILE).unlink()


def checks_of(topology, folder):
    run = boosted(topology)
    run.train(3, seed=1)
    run.save(folder / "saved")
    saved = run.snapshot()
    run.save_model(folder / "model")
    run.train(1, seed=2)
    put_back = keep(run)
    groups, states = groups_in(folder / "saved"), states_in(folder / "saved")
    planned = chain(
        replacements(topology, run, saved, folder, groups, states),
        refusals(run, folder, groups, states),
        failures_of_rank_1(run, folder, groups, states),
    )
    for name, function, *arguments in planned:
        put_back()
        yield f"{topology}: {name}", functools.partial(function, *arguments)


def replacements(topology, run, saved, folder, groups, states):
    lacking = {param_id: state for param_id, state in states.items() if param_id in LEFT.get(topology, EVERY_OTHER)}
    for name, some in (("lacking", lacking), ("empty", {})):
        on_rank_0(write, folder / name, groups, some)
        on_rank_0(torch.save, {"state": some, "param_groups": groups}, folder / f"{name}.bin")
    model = folder / "model"
    yield "restores what was saved", restores_what_was_saved, run, folder / "saved", saved
    yield "empty", holds_no_state, run, folder / "empty"
    yield "unsharded, empty", holds_no_state, run, folder / "empty.bin"
    yield "trained equals fresh", trained_equals_fresh, topology, run, folder / "saved", model
    yield "lacking states", trained_equals_fresh, topology, run, folder / "lacking", model
    yield "unsharded, lacking states", trained_equals_fresh, topology, run, folder / "lacking.bin", model


def refusals(run, folder, groups, states):
    for spoil in (with_one_group_less, with_one_parameter_less, with_a_parameter_in_another_group):
        if len(groups) > 1 or spoil is not with_a_parameter_in_another_group:
            on_rank_0(write, folder / spoil.__name__, spoil(groups), states)
            yield spoil.__name__, refuses, run, folder / spoil.__name__
    if isinstance(run.booster.plugin, TorchFSDPPlugin):
        without_the_first = {param_id: state for param_id, state in states.items() if param_id > 0}
        on_rank_0(write, folder / "part-of-a-unit", groups, without_the_first)
        yield "a part of a unit", refuses, run, folder / "part-of-a-unit"
    canary = folder / "canary"
    on_rank_0(write, folder / "code", groups, states)
    on_rank_0(write_with_pickle, group_file_of(folder / "code"), CODE["builtins.exec"](canary))
    yield "code in the group file", runs_no_code, run, folder / "code", canary


def failures_of_rank_1(run, folder, groups, states):
    whole, file = folder / "whole", "optimizer.bin"
    on_rank_0(write, whole, groups, states)
    on_rank_0(torch.save, {"state": states, "param_groups": groups}, whole / file)
    yield "rank 1: the optimizer refuses", is_refused_by_a_hook_of_rank_1, run, whole
    for spoil in (truncate_a_shard, truncate_the_file, drop_a_group, spoil_the_index, remove_the_index):
        spoilt = copy_for_this_rank(whole, spoil.__name__)
        if dist.get_rank() == 1:
            spoil(spoilt)
        path = spoilt / file if spoil is truncate_the_file else spoilt
        yield f"rank 1: {spoil.__name__}", is_refused_by_rank_1_alone, run, path


if __name__ == "__main__":
    main(of_each(checks_of))
