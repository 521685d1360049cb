"""Checksums of files: xxh3_64, in hexadecimal."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import xxhash

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN

BYTES_AT_ONCE = 2**20
FEWEST_BYTES_AT_ONCE = 2**18


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


class ChecksumOfMapping:
    """The checksum of a mapped file, taken piece by piece, so that who copies a piece next finds it in the cache."""

    def __init__(self, file: MappedFile, recorded: str) -> None:
        """Begin with a file, and the checksum that it should have."""
        self._path, self._recorded = file.path, recorded
        self._content, self._done = memoryview(file.content), 0
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(file.content)) if file.content else 0
        self._digest = xxhash.xxh3_64()
        self._lock = Lock()

    def go_on(self, address: int) -> None:
        """Go on to an address in the mapping, if it is far enough ahead; several threads may do so."""
        end = address - self._address
        if self._done + FEWEST_BYTES_AT_ONCE <= end <= len(self._content):
            self._go_on(end)

    def finish(self) -> None:
        """Go on to the end, let go of the mapping, and compare.

        Raises:
            CheckpointError: if the checksum is not the recorded one.
        """
        self._go_on(len(self._content))
        self._content = memoryview(b"")
        _compare(self._path, self._digest.hexdigest(), self._recorded)

    def _go_on(self, end: int) -> None:
        with self._lock:
            if self._done < end:
                self._digest.update(self._content[self._done : end])
                self._done = end


def _compare(path: Path, actual: str, recorded: str) -> None:
    if actual != recorded:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {actual}, and was {recorded} when it was saved. "
            "Use another checkpoint."
        )
