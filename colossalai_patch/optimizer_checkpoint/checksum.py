"""Checksums of files: xxh3_64, in hexadecimal."""

import mmap
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import xxhash

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN

BYTES_AT_ONCE = 2**20


def checksum(path: Path, advance: Callable[[int], object] = UNSEEN.advance) -> str:
    """Give the checksum of a file.

    Args:
        path: the file.
        advance: is told of every number of bytes that were read.

    Raises:
        OSError: if the file cannot be read.
    """
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(BYTES_AT_ONCE):
            digest.update(chunk)
            advance(len(chunk))
    return digest.hexdigest()


def check_checksum(path: Path, recorded: str, advance: Callable[[int], object] = UNSEEN.advance) -> None:
    """Make sure that a file is as it was saved; ``advance`` as for ``checksum``.

    Raises:
        CheckpointError: if its checksum is not the recorded one.
        OSError: if the file cannot be read.
    """
    _compare(path, checksum(path, advance), recorded)


class ChecksumByParts:
    """The checksum of a file, taken part by part, so that who reads the same part next finds it in the cache."""

    def __init__(self, path: Path, recorded: str) -> None:
        """Begin.

        Args:
            path: the file.
            recorded: the checksum that it should have.

        Raises:
            OSError: if the file cannot be read.
        """
        self._path, self._recorded = path, recorded
        self._size, self._done = path.stat().st_size, 0
        self._digest = xxhash.xxh3_64()
        self._lock = Lock()

    def check(self, part: float) -> None:
        """Go on to a part of the file, between 0 and 1, from several threads if need be; at 1, compare.

        Raises:
            CheckpointError: if the checksum is not the recorded one.
            OSError: if the file cannot be read.
        """
        end = (
            self._size
            if part == 1
            else int(part * self._size) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        )
        with self._lock:
            if end > self._done:
                self._digest.update(self._mapped(end))
                self._done = end
        if part == 1:
            _compare(self._path, self._digest.hexdigest(), self._recorded)

    def _mapped(self, end: int) -> mmap.mmap:
        """Mapping spares a copy."""
        with self._path.open("rb") as file:
            return mmap.mmap(file.fileno(), end - self._done, access=mmap.ACCESS_READ, offset=self._done)


def _compare(path: Path, actual: str, recorded: str) -> None:
    if actual != recorded:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {actual}, and was {recorded} when it was saved. "
            "Use another checkpoint."
        )
