"""The states of a checkpoint, read while they are consumed."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN
from colossalai_patch.optimizer_checkpoint.shard import Batch, MappedShard, State

FEWEST_THREADS = min(4, os.cpu_count() or 1)
FEWEST_BYTES_FOR_A_THREAD = 2**17  # of a parameter's state, on average; below, threads wait for the interpreter's lock

Begun = TypeVar("Begun")
States = dict[ParamId, State]
Batches = deque[tuple[int, Callable[[], States]]]


@dataclass(frozen=True)
class StreamedStates:
    """The part of a dict of states that native uses: ``items()``, which reads the shards one after the other.

    Attributes:
        shards: for each shard, in order, a function that maps it.
        size: the bytes of all shards.
        shards_ahead: how many shards beyond the one in use may be in memory.
        threads: how many threads take large states; small ones are taken when they are asked for.
        advance: is told how many bytes of the shards were consumed.
        kept: the share of the bytes that is kept, as far as is known.
    """

    shards: Sequence[Callable[[], MappedShard]]
    size: int
    shards_ahead: int = 1
    threads: int = FEWEST_THREADS
    advance: Callable[[int], object] = UNSEEN.advance
    kept: float = 1.0

    @property
    def size_kept(self) -> int:
        """How many bytes of state are kept, as far as is known."""
        return int(self.size * self.kept)

    def items(self) -> Iterator[tuple[ParamId, State]]:
        """Yield each param id with its state, in the order of the shards.

        A shard's states are known to be what was saved when the next shard's begin, or the iteration ends.

        Raises:
            CheckpointError: if a shard is damaged.
            OSError: if a shard cannot be read.
        """
        threads = ThreadPoolExecutor(self.threads, thread_name_prefix="optimizer-shard")
        try:
            for batches in _begun_ahead(self._batches(threads), self.shards_ahead):
                while batches:
                    size, states = _taken(batches.popleft())
                    while states:
                        param_id = next(iter(states))
                        yield param_id, states.pop(param_id)
                    self.advance(size)
        finally:
            threads.shutdown(cancel_futures=True)

    def _batches(self, threads: ThreadPoolExecutor) -> Iterator[Batches]:
        """Yield for each shard the batches of its states: their bytes, and what gives them, taken."""
        for shard in self.shards:
            yield deque((batch.size, self._begun(threads, batch)) for batch in shard().batches())

    def _begun(self, threads: ThreadPoolExecutor, batch: Batch) -> Callable[[], States]:
        if batch.size < FEWEST_BYTES_FOR_A_THREAD * max(batch.params, 1):
            return batch.taken
        try:
            return threads.submit(batch.taken).result
        except RuntimeError:  # there is no memory for the stack of a thread
            return batch.taken


def _taken(batch: tuple[int, Callable[[], States]]) -> tuple[int, States]:
    """In a frame of its own, which keeps no mapping."""
    size, taken = batch
    return size, taken()


def _begun_ahead(work: Iterator[Begun], count: int) -> Iterator[Begun]:
    """Yield what ``work`` yields, each after ``work`` has begun with the next ``count``."""
    begun: deque[Begun] = deque()
    for item in work:
        begun.append(item)
        if len(begun) > count:
            yield begun.popleft()
    while begun:
        yield begun.popleft()
