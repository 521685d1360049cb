"""What the plugins write when states are missing, differ between ranks or have shapes of their own: saving.py FOLDER"""

import copy
import functools

import torch
import torch.distributed as dist
from checking import groups_in, main, states_in
from checkpoints import in_order
from comparison import assert_same
from topologies import boosted


def writes_an_empty_checkpoint(topology, folder):
    run = boosted(topology)
    run.save(folder)
    assert states_in(folder) == {}
    assert [len(group["params"]) for group in groups_in(folder)] == [16, 5]


def leaves_out_a_parameter_without_state(topology, folder):
    run = boosted(topology)
    run.train(1, seed=1)
    del run.inner.state[run.parameters()[3]]
    run.save(folder)
    assert states_in(folder).keys() == set(range(21)) - {3}


def round_trips(topology, folder, shape=None, **changes):
    run = boosted(topology, **changes)
    run.train(2, seed=1)
    saved = run.snapshot()
    run.save(folder)
    run.train(1, seed=2)
    run.load(folder)
    assert_same(in_order(run.snapshot()), in_order(saved))
    assert shape is None or states_in(folder)[0]["exp_avg"].shape == shape
    run.train(1, seed=3)


def writes_one_file_as_its_shards(topology, folder):
    run = boosted(topology)
    run.train(2, seed=1)
    saved, file = run.snapshot(), folder / "optimizer.bin"
    run.save(folder)
    run.booster.save_optimizer(run.optimizer, str(file))
    dist.barrier()
    in_shards = {"state": states_in(folder), "param_groups": groups_in(folder)}
    assert_same(in_order(torch.load(file, weights_only=True)), in_order(in_shards))
    run.train(1, seed=2)
    run.load(file)
    assert_same(in_order(run.snapshot()), in_order(saved))


def round_trips_a_vocabulary_of_which_a_rank_has_none(folder):
    """50 words at tp 2, padded to 128: a model with a head cannot be trained so, but one without it can."""
    run = boosted("hybrid-tp2", vocab_size=50)
    param = run.parameters()[0]
    rows = torch.arange(len(param)) + len(param) * dist.get_rank()
    rows_of_words = torch.where(rows < 50, rows + 1.0, 0.0)[:, None]
    state = {"step": torch.tensor(1.0), "exp_avg": rows_of_words.expand_as(param).clone()}
    run.inner.state[param] = copy.deepcopy(state)
    run.save(folder)
    run.load(folder)
    assert states_in(folder)[0]["exp_avg"].shape == (50, 32)
    assert_same(run.inner.state[param], state)


def writes_the_same_whatever_the_order(topology, folder):
    run = boosted(topology)
    run.train(1, seed=1)
    run.save(folder / "reference")
    if dist.get_rank() == 1:
        first, second, third, *others = run.inner.state.items()
        run.inner.state.clear()
        run.inner.state.update([first, third, second, *others])
    run.save(folder / "reordered")
    assert_same(states_in(folder / "reordered"), states_in(folder / "reference"))


def writes_zeros_for_the_part_without_state(topology, rank, folder):
    run = boosted(topology)
    run.train(1, seed=1)
    run.save(folder / "reference")
    if dist.get_rank() == rank:
        del run.inner.state[run.parameters()[0]]
    held = list(run.inner.state)
    run.save(folder / "lacking")
    expected = states_in(folder / "reference")
    for name in ("exp_avg", "exp_avg_sq"):
        expected[0][name].view(2, -1)[rank] = 0
    assert_same(states_in(folder / "lacking"), expected)
    assert list(run.inner.state) == held


ZERO = ("zero1", "hybrid-dp2-zero1")
GATHERED = (*ZERO, "hybrid-tp2")
VOCABULARIES = {"hybrid-tp2": 200, "hybrid-tp2-gpt2": 200, "hybrid-tp2-bf16": 100, "moe-tp2": 200}
UNSHARDED_MOE = {2: ("moe-ep2-zero1", "moe-tp2"), 4: ("moe-ep2-dp4-zero1", "moe-ep2-pp2-zero1", "moe-ep2-tp2-zero1")}


def of_two_ranks():
    """Yield the name, the function and its arguments; what ends stock's processes comes last."""
    for topology in ZERO:
        yield f"{topology}: before the first step", writes_an_empty_checkpoint, topology
        yield f"{topology}: a parameter without state", leaves_out_a_parameter_without_state, topology
    for topology in (*GATHERED, "moe-ep2-zero1"):
        scalars = functools.partial(round_trips, make_optimizer=torch.optim.NAdam)
        yield f"{topology}: scalars", scalars, topology
    for topology, vocabulary in VOCABULARIES.items():
        padded = functools.partial(round_trips, shape=(vocabulary, 32), vocab_size=vocabulary)
        yield f"{topology}: a padded vocabulary", padded, topology
    yield "hybrid-tp2: a rank without vocabulary", round_trips_a_vocabulary_of_which_a_rank_has_none
    for topology in UNSHARDED_MOE[2]:
        yield f"{topology}: unsharded", writes_one_file_as_its_shards, topology
    for topology in GATHERED:
        yield f"{topology}: states in another order", writes_the_same_whatever_the_order, topology
    for topology in GATHERED:
        for rank in (0, 1):
            yield f"{topology}: no state on rank {rank}", writes_zeros_for_the_part_without_state, topology, rank


def of_four_ranks():
    padded = functools.partial(round_trips, shape=(200, 32), vocab_size=200)
    yield "hybrid-tp2-dp2-zero1: a padded vocabulary", padded, "hybrid-tp2-dp2-zero1"
    sizes = {"hidden_size": 30, "intermediate_size": 33, "num_attention_heads": 5, "num_key_value_heads": 5}
    odd = functools.partial(round_trips, **sizes)
    yield "moe-ep2-dp4-zero1: experts of odd sizes", odd, "moe-ep2-dp4-zero1"
    for topology in UNSHARDED_MOE[4]:
        yield f"{topology}: unsharded", writes_one_file_as_its_shards, topology


def checks(folder):
    planned = of_two_ranks() if dist.get_world_size() == 2 else of_four_ranks()
    for position, (name, function, *arguments) in enumerate(planned):
        yield name, functools.partial(function, *arguments, folder / str(position))


if __name__ == "__main__":
    main(checks)
