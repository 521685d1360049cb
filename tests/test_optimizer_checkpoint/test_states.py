"""Shards are read ahead by threads: in order, a bounded number of them, and not longer than somebody wants them."""

import threading

import pytest
import torch

from colossalai_patch.optimizer_checkpoint import CheckpointError, StreamedStates
from colossalai_patch.optimizer_checkpoint.shard import BYTES_OF_A_BATCH, in_batches

SHARDS, PARAMETERS = 6, 5


def make_states(shard, numbers=3):
    first = shard * PARAMETERS
    return {first + i: {"exp_avg": torch.full((numbers,), float(first + i))} for i in range(PARAMETERS)}


class Recorded:
    """Shards that note which of them were mapped, and a ``take`` that notes what was taken."""

    def __init__(self):
        self.mapped, self.taken = [], []
        self.shards = [lambda shard=shard: self.map(shard) for shard in range(SHARDS)]

    def map(self, shard):
        self.mapped.append(shard)
        return make_states(shard)

    def take(self, param_id, state):
        self.taken.append(param_id)
        return state


def threads_that_read():
    return [thread for thread in threading.enumerate() if thread.name.startswith("optimizer-shard")]


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("shards_ahead", [1, 3, SHARDS + 1])
def test_states_come_in_the_order_of_the_shards(threads, shards_ahead):
    states = StreamedStates(Recorded().shards, 0, shards_ahead, threads)
    found = [(param_id, state["exp_avg"][0].item()) for param_id, state in states.items()]
    assert found == [(param_id, float(param_id)) for param_id in range(SHARDS * PARAMETERS)]


@pytest.mark.parametrize("shards_ahead", [1, 2])
def test_no_more_shards_than_allowed_are_taken_and_one_more_is_mapped(shards_ahead):
    recorded = Recorded()
    for param_id, _ in StreamedStates(recorded.shards, 0, shards_ahead, 4, recorded.take).items():
        in_use = param_id // PARAMETERS
        assert max(recorded.taken) // PARAMETERS <= in_use + shards_ahead
        assert max(recorded.mapped) <= in_use + shards_ahead + 1


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_as_many_threads_as_asked_for_take_at_the_same_time(threads):
    all_there = threading.Barrier(threads, timeout=60)
    waited = iter(range(threads))

    def take(param_id, state):
        if next(waited, None) is not None:
            all_there.wait()
        return state

    large = [lambda: make_states(0, BYTES_OF_A_BATCH // 4), lambda: make_states(1, BYTES_OF_A_BATCH // 4)]
    assert len(dict(StreamedStates(large, 0, 1, threads, take).items())) == 2 * PARAMETERS


def test_an_error_of_a_thread_reaches_the_caller_after_the_states_before_it():
    def damaged():
        raise CheckpointError("shard-00003.bin is damaged")

    recorded, found = Recorded(), []
    shards = [*recorded.shards[:4], damaged, recorded.shards[5]]
    with pytest.raises(CheckpointError, match=r"shard-00003\.bin is damaged"):
        found += StreamedStates(shards, 0).items()
    assert threads_that_read() == []


def test_leaving_early_stops_the_threads():
    recorded = Recorded()
    states = StreamedStates(recorded.shards, 0).items()
    next(states)
    states.close()
    assert threads_that_read() == []
    assert max(recorded.mapped) < SHARDS - 1


def test_progress_is_told_of_every_byte_of_the_shards_whatever_is_taken():
    told = []
    states = StreamedStates(Recorded().shards, 0, take=lambda *_: None, advance=told.append)
    assert list(states.items()) == []
    assert sum(told) == SHARDS * PARAMETERS * 3 * 4


@pytest.mark.parametrize("numbers", [1, BYTES_OF_A_BATCH // 4, BYTES_OF_A_BATCH // 6])
def test_batches_hold_all_states_in_order_and_none_is_much_larger_than_it_must_be(numbers):
    states = make_states(0, numbers)
    batches = list(in_batches(states))
    assert [param_id for _, batch in batches for param_id in batch] == list(states)
    assert [size for size, _ in batches] == [len(batch) * numbers * 4 for _, batch in batches]
    assert all(size < BYTES_OF_A_BATCH + numbers * 4 for size, _ in batches)


def test_a_shard_without_states_has_no_batch():
    assert list(in_batches({})) == []
