"""All ranks load a checkpoint, or none does."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import torch.distributed as dist

from colossalai_patch.optimizer_checkpoint import CheckpointError, ParamId, State, States


class Agreement:
    """Makes a load fail on every rank when it fails on one, before any rank has changed anything.

    Every rank enters it, in one load, and gives ``load_state_dict`` its states through ``until_agreed``:

        with Agreement() as agreement:
            optimizer.load_state_dict({"state": agreement.until_agreed(states), "param_groups": groups})

    Native swaps the states in when it has read all of them; at that point the ranks tell each other, in one collective
    over all processes, that they got there. A rank that fails on the way tells the others its reason and raises it.
    """

    def __init__(self) -> None:
        self._was_sought = False

    def __enter__(self) -> "Agreement":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not self._was_sought:
            self._reasons(f"{type(error).__name__}: {error}")

    def until_agreed(self, states: States) -> States:
        """The same states; reading them to the end waits until every rank has come to its end.

        Its ``items()`` raises ``CheckpointError``, which names the ranks that failed and why, if any has.
        """
        return _AgreedStates(states, self)

    def seek(self) -> None:
        """Tell the others that this rank is ready.

        Raises:
            CheckpointError: if another rank is not.
        """
        failed = {rank: reason for rank, reason in enumerate(self._reasons(None)) if reason is not None}
        if failed:
            reasons = "; ".join(f"rank {rank}: {reason}" for rank, reason in failed.items())
            raise CheckpointError(f"The checkpoint was loaded on no rank, since it cannot be loaded on all. {reasons}")

    def _reasons(self, own: str | None) -> list[str | None]:
        self._was_sought = True
        reasons: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(reasons, own)
        return reasons


@dataclass(frozen=True)
class _AgreedStates:
    states: States
    agreement: Agreement

    def items(self) -> Iterator[tuple[ParamId, State]]:
        yield from self.states.items()
        self.agreement.seek()
