"""All ranks do something, or none does."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from colossalai_patch.optimizer_checkpoint import CheckpointError


@contextmanager
def on_all_ranks_or_none() -> Iterator[None]:
    """Raise on every rank if the body raises on one; every process runs it, and none leaves it before the others.

    At the end of the body the ranks tell each other how it went, in one small collective over all processes. So nobody
    waits for a rank that has failed, and what the body did can be undone on all.

    Raises:
        Exception: what the body raised on this rank.
        CheckpointError: naming the ranks that failed and why, if this is none of them.
    """
    try:
        yield
    except Exception as error:
        _reasons_of_all_ranks(f"{type(error).__name__}: {error}")
        raise
    failed = [f"rank {rank}: {reason}" for rank, reason in enumerate(_reasons_of_all_ranks(None)) if reason is not None]
    if failed:
        raise CheckpointError(f"Nothing was loaded, on any rank, since a rank failed. {'; '.join(failed)}")


def _reasons_of_all_ranks(own: str | None) -> list[str | None]:
    reasons: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, own)
    return reasons
