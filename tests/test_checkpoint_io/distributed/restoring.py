"""What each plugin's loader leaves in an optimizer: restoring.py FOLDER TOPOLOGY..."""

import functools

import torch
import torch.distributed as dist
from checking import copy_for_this_rank, groups_in, keep, main, of_each, on_rank_0, states_in, together, write
from checkpoints import INDEX_FILE, group_file_of, in_order
from comparison import assert_same, assert_same_optimizer, assert_same_parameters
from topologies import boosted


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


def is_refused_by_rank_1(run, checkpoint):
    """A hook after the load is the last that can fail: by then native has swapped everything in."""

    def refuse(optimizer):
        raise ValueError("not on this rank")

    hook = run.inner.register_load_state_dict_post_hook(refuse) if dist.get_rank() == 1 else None
    try:
        refuses(run, checkpoint)
    finally:
        if hook is not None:
            hook.remove()


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
    source = boosted(topology)
    source.train(3, seed=1)
    checkpoint, model = folder / "saved", folder / "model"
    source.save(checkpoint)
    saved = source.snapshot()
    groups, states = groups_in(checkpoint), states_in(checkpoint)
    wanted = range(12) if topology == "fsdp-units" else range(1, 1000, 2)
    some = {param_id: state for param_id, state in states.items() if param_id in wanted}
    on_rank_0(write, folder / "whole", groups, states)
    on_rank_0(write, folder / "lacking", groups, some)
    on_rank_0(write, folder / "empty", groups, {})
    on_rank_0((folder / "unsharded").mkdir)
    on_rank_0(torch.save, {"state": states, "param_groups": groups}, folder / "unsharded/optimizer.bin")
    on_rank_0(torch.save, {"state": some, "param_groups": groups}, folder / "lacking.bin")
    on_rank_0(torch.save, {"state": {}, "param_groups": groups}, folder / "empty.bin")
    source.train(1, seed=2)

    put_back = keep(source)

    def check(name, function, *arguments):
        put_back()
        return f"{topology}: {name}", functools.partial(function, *arguments)

    yield check("restores what was saved", restores_what_was_saved, source, checkpoint, saved)
    yield check("empty", holds_no_state, source, folder / "empty")
    source.save_model(model)
    yield check("trained equals fresh", trained_equals_fresh, topology, source, checkpoint, model)
    if topology == "fsdp":  # one tensor for all parameters has a state or has none
        yield check("lacking states", refuses, source, folder / "lacking")
        yield check("unsharded, lacking states", refuses, source, folder / "lacking.bin")
    else:
        yield check("lacking states", trained_equals_fresh, topology, source, folder / "lacking", model)
        lacking = folder / "lacking.bin"
        yield check("unsharded, lacking states", trained_equals_fresh, topology, source, lacking, model)
    yield check("unsharded, empty", holds_no_state, source, folder / "empty.bin")
    for spoil in (with_one_group_less, with_one_parameter_less, with_a_parameter_in_another_group):
        if len(groups) == 1 and spoil is with_a_parameter_in_another_group:
            continue
        spoilt = folder / spoil.__name__
        on_rank_0(write, spoilt, spoil(groups), states)
        yield check(spoil.__name__, refuses, source, spoilt)
    yield check("rank 1: the optimizer refuses", is_refused_by_rank_1, source, folder / "whole")
    for spoil in (truncate_a_shard, drop_a_group, spoil_the_index, remove_the_index):
        spoilt = copy_for_this_rank(folder / "whole", spoil.__name__)
        if dist.get_rank() == 1:
            spoil(spoilt)
        yield check(f"rank 1: {spoil.__name__}", refuses, source, spoilt)
    spoilt = copy_for_this_rank(folder / "unsharded", truncate_the_file.__name__)
    if dist.get_rank() == 1:
        truncate_the_file(spoilt)
    yield check("rank 1: truncate_the_file", refuses, source, spoilt / "optimizer.bin")


if __name__ == "__main__":
    main(of_each(checks_of))
