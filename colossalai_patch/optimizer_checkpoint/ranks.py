"""The processes that save one checkpoint: which of them wait for each other, and which of them write."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """Processes that wait for each other: those of some process groups, which all of them go through in one order.

    Attributes:
        groups: the groups; none where this process is on its own.
    """

    groups: tuple[dist.ProcessGroup, ...] = ()

    @contextmanager
    def all_or_none(self, failure: type[Exception]) -> Iterator[None]:
        """Raise on every rank if the body raises on one.

        At the end of the body the ranks tell each other how it went, in one small collective for each group. So nobody
        waits for a rank that has failed, and what the body did can be undone on all.

        Raises:
            Exception: what the body raised on this rank.
            failure: naming the rank that failed and why, if it is another one.
        """
        try:
            yield
        except Exception as error:
            self.told(f"rank {this_rank()} failed with {type(error).__name__}: {error}")
            raise
        reason = self.told(None)
        if reason is not None:
            raise failure(f"Given up on all ranks, since {reason}")

    def told(self, value: Any) -> Any:
        """Tell the other ranks ``value``, and return the first that any of them tells and that is not None."""
        for group in self.groups:
            values: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(values, value, group)
            value = next((told for told in values if told is not None), None)
        return value


@dataclass(frozen=True)
class SavingRanks:
    """What this process does in a save, and with whom.

    Attributes:
        waiting: the ranks that wait for each other in stock's save, so that they may tell each other how it went.
        writer: the number of this process among those that write; the one with 0 commits. None if it writes nothing.
        writers: how many processes write.
    """

    waiting: Ranks = field(default_factory=Ranks)
    writer: int | None = 0
    writers: int = 1


ALONE = SavingRanks()


def all_wait(writes: bool) -> SavingRanks:
    """All ranks wait for each other, and one of them writes."""
    assert dist.group.WORLD is not None, "a plugin has a process group"
    return SavingRanks(Ranks((dist.group.WORLD,)), 0 if writes else None)


def this_rank() -> int:
    """The rank of this process; 0 where there is no process group."""
    return dist.get_rank() if dist.is_initialized() else 0
