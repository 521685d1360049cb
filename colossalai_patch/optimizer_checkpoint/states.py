"""The states of a checkpoint, read while they are consumed."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.shard import (
    Shard,
    State,
    Take,
    copy_state,
    in_batches,
    map_shard,
    take_states,
)

Begun = TypeVar("Begun")
States = dict[ParamId, State]


@dataclass(frozen=True)
class StreamedStates:
    """The part of a dict of states that native uses: ``items()``, which reads the shards one after the other.

    Attributes:
        shards: the shards, in order.
        shards_ahead: how many shards beyond the one in use may be in memory, at least 1. One more is mapped.
        threads: how many threads read.
        take: what to keep of each state; see ``read_shard``. It runs in these threads.
    """

    shards: Sequence[Shard]
    shards_ahead: int
    threads: int
    take: Take = copy_state

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
                    states = batches.popleft().result()
                    while states:
                        param_id = next(iter(states))
                        yield param_id, states.pop(param_id)
        finally:
            threads.shutdown(cancel_futures=True)

    def _batches(self, threads: ThreadPoolExecutor) -> Iterator[deque[Future[States]]]:
        """Yield for each shard the batches of its states, which the threads are then taking."""
        mapped = _begun_ahead((threads.submit(map_shard, shard, self.take) for shard in self.shards), 1)
        for shard in mapped:
            yield deque(threads.submit(take_states, batch, self.take) for batch in in_batches(shard.result()))


def _begun_ahead(work: Iterator[Begun], count: int) -> Iterator[Begun]:
    """Yield what ``work`` yields, each after ``work`` has begun with the next ``count``."""
    begun: deque[Begun] = deque()
    for item in work:
        begun.append(item)
        if len(begun) > count:
            yield begun.popleft()
    while begun:
        yield begun.popleft()
