"""The states of a checkpoint, read while they are consumed."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN
from colossalai_patch.optimizer_checkpoint.shard import (
    State,
    Take,
    copy_state,
    in_batches,
    take_states,
)

FEWEST_THREADS = min(4, os.cpu_count() or 1)

Begun = TypeVar("Begun")
States = dict[ParamId, State]


@dataclass(frozen=True)
class StreamedStates:
    """The part of a dict of states that native uses: ``items()``, which reads the shards one after the other.

    Attributes:
        shards: for each shard, in order, a function that gives its states, their tensors being views of its file.
        size: the bytes of all shards.
        shards_ahead: how many shards beyond the one in use may be in memory, at least 1. One more is mapped.
        threads: how many threads read.
        take: what to keep of each state, copied, or None to leave it out. It runs in these threads.
        advance: is told how many bytes of the shards were consumed.
    """

    shards: Sequence[Callable[[], States]]
    size: int
    shards_ahead: int = 1
    threads: int = FEWEST_THREADS
    take: Take = copy_state
    advance: Callable[[int], object] = UNSEEN.advance

    def items(self) -> Iterator[tuple[ParamId, State]]:
        """Yield each param id with its state, in the order of the shards.

        Raises:
            CheckpointError: if a shard is damaged.
            OSError: if a shard cannot be read.
        """
        threads = ThreadPoolExecutor(self.threads, thread_name_prefix="optimizer-shard")
        try:
            for batches in _begun_ahead(self._batches(threads), self.shards_ahead):
                while batches:
                    size, taken = batches.popleft()
                    states = taken.result()
                    while states:
                        param_id = next(iter(states))
                        yield param_id, states.pop(param_id)
                    self.advance(size)
        finally:
            threads.shutdown(cancel_futures=True)

    def _batches(self, threads: ThreadPoolExecutor) -> Iterator[deque[tuple[int, Future[States]]]]:
        """Yield for each shard the batches of its states, with their bytes, which the threads are then taking."""
        mapped = _begun_ahead((threads.submit(shard) for shard in self.shards), 1)
        for shard in mapped:
            batches = in_batches(shard.result())
            yield deque((size, threads.submit(take_states, batch, self.take)) for size, batch in batches)


def _begun_ahead(work: Iterator[Begun], count: int) -> Iterator[Begun]:
    """Yield what ``work`` yields, each after ``work`` has begun with the next ``count``."""
    begun: deque[Begun] = deque()
    for item in work:
        begun.append(item)
        if len(begun) > count:
            yield begun.popleft()
    while begun:
        yield begun.popleft()
