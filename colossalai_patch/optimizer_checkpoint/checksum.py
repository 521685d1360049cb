"""Checksums of files: xxh3_64, in hexadecimal."""

import mmap
from collections.abc import Callable
from pathlib import Path

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


def check_checksum_of_mapping(path: Path, recorded: str) -> None:
    """As ``check_checksum``, by mapping the file, which spares a copy: for who maps it next anyway."""
    digest = xxhash.xxh3_64()
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
    for begin in range(0, len(mapped), BYTES_AT_ONCE):
        digest.update(memoryview(mapped)[begin : begin + BYTES_AT_ONCE])
    _compare(path, digest.hexdigest(), recorded)


def _compare(path: Path, actual: str, recorded: str) -> None:
    if actual != recorded:
        raise CheckpointError(
            f"{path} is damaged: its checksum is {actual}, and was {recorded} when it was saved. "
            "Use another checkpoint."
        )
