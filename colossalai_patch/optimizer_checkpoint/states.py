"""The states of a checkpoint, read while they are consumed."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from colossalai_patch.optimizer_checkpoint.shard import ParamId, Shard, State, Take, copy_state, read_shard


@dataclass(frozen=True)
class StreamedStates:
    """The part of a dict of states that native uses: ``items()``, which reads the shards one after the other.

    Attributes:
        shards: the shards, in order.
        shards_ahead: how many shards beyond the one in use may be in memory, at least 1.
        take: what to keep of each state; see ``read_shard``. It runs in the reading threads.
    """

    shards: Sequence[Shard]
    shards_ahead: int
    take: Take = copy_state

    def items(self) -> Iterator[tuple[ParamId, State]]:
        """Yield each param id with its state, in the order of the shards.

        Raises:
            CheckpointError: if a shard is damaged.
            OSError: if a shard cannot be read.
        """
        for states in self._read_ahead():
            while states:
                param_id = next(iter(states))
                yield param_id, states.pop(param_id)

    def _read_ahead(self) -> Iterator[dict[ParamId, State]]:
        pending: deque[Future[dict[ParamId, State]]] = deque()
        with ThreadPoolExecutor(self.shards_ahead, thread_name_prefix="optimizer-shard") as threads:
            try:
                for shard in self.shards:
                    pending.append(threads.submit(read_shard, shard, self.take))
                    if len(pending) > self.shards_ahead:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for unread in pending:
                    unread.cancel()
