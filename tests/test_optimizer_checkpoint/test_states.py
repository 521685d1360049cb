"""Shards are read ahead by threads: in order, a bounded number of them, and not longer than somebody wants them."""

import threading
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch

from colossalai_patch.optimizer_checkpoint import CheckpointError, StreamedStates
from colossalai_patch.optimizer_checkpoint.files import map_file
from colossalai_patch.optimizer_checkpoint.shard import BYTES_OF_A_BATCH, MappedShard
from colossalai_patch.optimizer_checkpoint.states import FEWEST_BYTES_FOR_A_THREAD

SHARDS, PARAMETERS = 6, 5


def make_states(shard, numbers=3):
    first = shard * PARAMETERS
    return {first + i: {"exp_avg": torch.full((numbers,), float(first + i))} for i in range(PARAMETERS)}


def keep(param_id, state):
    return state


class Recorded:
    """Shards that note which of them were mapped, and what was taken."""

    def __init__(self, numbers=3, take=keep):
        self.mapped, self.taken, self.numbers, self.wanted = [], [], numbers, take
        self.shards = [lambda shard=shard: self.map(shard) for shard in range(SHARDS)]

    def map(self, shard):
        self.mapped.append(shard)
        return MappedShard(make_states(shard, self.numbers), self.take)

    def take(self, param_id, state):
        self.taken.append(param_id)
        return self.wanted(param_id, state)


def threads_that_read():
    return [thread for thread in threading.enumerate() if thread.name.startswith("optimizer-shard")]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("shards_ahead", [1, 3, SHARDS + 1])
def test_states_come_in_the_order_of_the_shards(threads, shards_ahead):
    states = StreamedStates(Recorded().shards, 0, shards_ahead, threads)
    found = [(param_id, state["exp_avg"][0].item()) for param_id, state in states.items()]
    assert found == [(param_id, float(param_id)) for param_id in range(SHARDS * PARAMETERS)]


@pytest.mark.parametrize("shards_ahead", [1, 2])
@pytest.mark.parametrize("numbers", [3, FEWEST_BYTES_FOR_A_THREAD // 4])
def test_no_more_shards_than_allowed_are_mapped_and_taken(shards_ahead, numbers):
    recorded = Recorded(numbers)
    for param_id, _ in StreamedStates(recorded.shards, 0, shards_ahead, 4).items():
        in_use = param_id // PARAMETERS
        assert max(recorded.taken) // PARAMETERS <= in_use + shards_ahead
        assert max(recorded.mapped) <= in_use + shards_ahead


@pytest.mark.parametrize("shards_ahead", [1, 2])
@pytest.mark.parametrize("numbers", [3, FEWEST_BYTES_FOR_A_THREAD // 4])
def test_no_more_shards_than_allowed_are_in_memory(shards_ahead, numbers):
    alive, counts = weakref.WeakSet(), []

    def mapped(number):
        file = map_file(Path(__file__))
        alive.add(file.content)
        counts.append(len(alive))
        states = make_states(number, numbers)
        return MappedShard(states, lambda param_id, state: {}, lambda: file.check_still_there())

    shards = [partial(mapped, number) for number in range(SHARDS)]
    assert len(list(StreamedStates(shards, 0, shards_ahead, 4).items())) == SHARDS * PARAMETERS
    assert counts == [min(number, shards_ahead) + 1 for number in range(SHARDS)]


@pytest.mark.parametrize(("numbers", "in_threads"), [(3, False), (FEWEST_BYTES_FOR_A_THREAD // 4, True)])
def test_threads_take_large_states_and_the_caller_small_ones(numbers, in_threads):
    def take(param_id, state):
        takers.add(threading.current_thread())
        return state

    takers = set()
    assert len(dict(StreamedStates(Recorded(numbers, take).shards, 0).items())) == SHARDS * PARAMETERS
    assert (threading.current_thread() not in takers) is in_threads


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_as_many_threads_as_asked_for_take_at_the_same_time(threads):
    all_there = threading.Barrier(threads, timeout=60)
    waited = iter(range(threads))

    def take(param_id, state):
        if next(waited, None) is not None:
            all_there.wait()
        return state

    large = [lambda shard=shard: MappedShard(make_states(shard, BYTES_OF_A_BATCH // 4), take) for shard in (0, 1)]
    assert len(dict(StreamedStates(large, 0, 1, threads).items())) == 2 * PARAMETERS


def damaged(*_):
    raise CheckpointError("shard-00003.bin is damaged")


@pytest.mark.parametrize("numbers", [3, FEWEST_BYTES_FOR_A_THREAD // 4])
@pytest.mark.parametrize("of", ["a shard", "a state", "the end of a shard"])
def test_an_error_reaches_the_caller(of, numbers):
    finished = MappedShard(make_states(0, numbers), keep, damaged)
    shard = {"a shard": damaged, "the end of a shard": lambda: finished}.get(of)
    shards = Recorded(numbers, damaged).shards if of == "a state" else [shard, *Recorded(numbers).shards]
    with pytest.raises(CheckpointError, match=r"shard-00003\.bin is damaged"):
        list(StreamedStates(shards, 0).items())
    assert threads_that_read() == []


def test_leaving_early_stops_the_threads():
    recorded = Recorded(FEWEST_BYTES_FOR_A_THREAD // 4)
    states = StreamedStates(recorded.shards, 0).items()
    next(states)
    states.close()
    assert threads_that_read() == []
    assert max(recorded.mapped) < SHARDS - 1


def test_progress_is_told_of_every_byte_of_the_shards_whatever_is_taken():
    told = []
    states = StreamedStates(Recorded(take=lambda *_: None).shards, 0, advance=told.append)
    assert list(states.items()) == []
    assert sum(told) == SHARDS * PARAMETERS * 3 * 4


@pytest.mark.parametrize("numbers", [1, BYTES_OF_A_BATCH // 4, BYTES_OF_A_BATCH // 6])
def test_batches_hold_all_states_in_order_and_none_is_much_larger_than_it_must_be(numbers):
    states = make_states(0, numbers)
    batches = [batch for batch in MappedShard(states, keep).batches() if batch.params]
    assert [param_id for batch in batches for param_id in batch.taken()] == list(states)
    assert [batch.size for batch in batches] == [batch.params * numbers * 4 for batch in batches]
    assert all(batch.size < BYTES_OF_A_BATCH + numbers * 4 for batch in batches)
