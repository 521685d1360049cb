"""Who is told how far a long task is."""

from typing import Protocol


class Progress(Protocol):
    """Is told how many bytes a stage of a task has, and then of those that are done."""

    def begin(self, stage: str, total: int) -> None:
        """Learn that a stage begins: its name, such as ``writing``, and about how many bytes it has."""

    def advance(self, count: int) -> None:
        """Learn that so many more bytes are done."""


class Unseen:
    """Progress that nobody wants to see."""

    def begin(self, stage: str, total: int) -> None:
        """Ignore it."""

    def advance(self, count: int) -> None:
        """Ignore it."""


UNSEEN = Unseen()
