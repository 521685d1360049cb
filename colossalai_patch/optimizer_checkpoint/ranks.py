"""The processes that save one checkpoint together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from colossalai_patch.optimizer_checkpoint.errors import SaveError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """This process among those that save together, all of which make the same calls in the same order.

    Attributes:
        rank: the number of this process.
        count: how many there are.
    """

    rank: int
    count: int

    def from_first(self, make: Callable[[], Value]) -> Value:
        """Call ``make`` on rank 0 and return on every rank what it returned there.

        Raises:
            Exception: on rank 0, what ``make`` raised.
            SaveError: on the others, if it raised.
        """
        value, error = first_error(make) if self.rank == 0 else (None, None)
        outcome = [value, _report(self.rank, error)]
        if self.count > 1:
            dist.broadcast_object_list(outcome, src=0)
        if error is not None:
            raise error
        if outcome[1] is not None:
            raise SaveError(outcome[1])
        return outcome[0]  # type: ignore[return-value]

    def agree(self, error: Exception | None) -> None:
        """Wait for the other ranks and make sure that no rank has an error.

        Raises:
            Exception: ``error``, if this rank has one.
            SaveError: if another rank has one.
        """
        reports: list[Any] = [_report(self.rank, error)]
        if self.count > 1:
            reports = [None] * self.count
            dist.all_gather_object(reports, _report(self.rank, error))
        if error is not None:
            raise error
        if any(reports):
            raise SaveError("; ".join(report for report in reports if report))


ALONE = Ranks(rank=0, count=1)


def all_ranks() -> Ranks:
    """All processes of the default process group; where there is none, this process."""
    return Ranks(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE


def first_error(*steps: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Call ``steps`` until one raises; return what the last one returned, and the exception."""
    value = None
    try:
        for step in steps:
            value = step()
    except Exception as error:
        return None, error
    return value, None


def _report(rank: int, error: Exception | None) -> str | None:
    return None if error is None else f"rank {rank} failed with {type(error).__name__}: {error}"
