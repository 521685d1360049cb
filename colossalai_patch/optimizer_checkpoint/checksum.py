"""Checksums of files: xxh3_64, in hexadecimal."""

from pathlib import Path

import xxhash

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError

BYTES_AT_ONCE = 2**20


def checksum(path: Path) -> str:
    """Give the checksum of a file.

    Raises:
        OSError: if the file cannot be read.
    """
    digest = xxhash.xxh3_64()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(BYTES_AT_ONCE):
            digest.update(chunk)
    return digest.hexdigest()


def check_checksum(path: Path, recorded: str) -> None:
    """Make sure that a file is as it was saved.

    Raises:
        CheckpointError: if its checksum is not the recorded one.
        OSError: if the file cannot be read.
    """
    if checksum(path) != recorded:
        raise CheckpointError(f"{path} is damaged: it is not the file that was saved. Use another checkpoint.")
