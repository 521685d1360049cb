"""The processes that save or load one checkpoint together."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """This process among those that act together, all of which make the same calls in the same order.

    Attributes:
        rank: the number of this process.
        count: how many there are.
    """

    rank: int
    count: int

    @contextmanager
    def all_or_none(self, failure: type[Exception]) -> Iterator[None]:
        """Raise on every rank if the body raises on one.

        At the end of the body the ranks tell each other how it went, in one small collective. So nobody waits for a
        rank that has failed, and what the body did can be undone on all.

        Raises:
            Exception: what the body raised on this rank.
            failure: naming the ranks that failed and why, if this is none of them.
        """
        try:
            yield
        except Exception as error:
            self.told_by_all(f"rank {self.rank} failed with {type(error).__name__}: {error}")
            raise
        reasons = [reason for reason in self.told_by_all(None) if reason is not None]
        if reasons:
            raise failure(f"Given up on all ranks, since {'; '.join(reasons)}")

    def told_by_all(self, value: Any) -> list[Any]:
        """Tell the other ranks ``value`` and return what each of them tells, in order."""
        if self.count == 1:
            return [value]
        values = [None] * self.count
        dist.all_gather_object(values, value)
        return values


ALONE = Ranks(rank=0, count=1)


def all_ranks() -> Ranks:
    """All processes of the default process group; where there is none, this process."""
    return Ranks(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE
