"""Whether a file is as it was saved, by whichever checksum there is."""

import zlib
from collections.abc import Callable
from pathlib import Path

from colossalai_patch.optimizer_checkpoint.checksum import BYTES_AT_ONCE, check_checksum
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile, map_file
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN
from colossalai_patch.optimizer_checkpoint.torch_archive import map_archive
from colossalai_patch.optimizer_checkpoint.torch_file import is_zip


def check_as_saved(
    path: Path,
    recorded: str | None,
    advance: Callable[[int], object] = UNSEEN.advance,
    mapped: MappedFile | None = None,
) -> bool:
    """Make sure that a file is as it was saved: by the checksum in the index, or else by those that torch writes.

    Args:
        path: the file.
        recorded: its checksum by the index, if that has one.
        advance: is told of every number of bytes that were compared.
        mapped: the file, if it is mapped already.

    Returns:
        Whether there is a checksum of all that the file holds.

    Raises:
        CheckpointError: if the file is another one, or not complete.
        OSError: if it cannot be read.
    """
    if recorded is not None:
        check_checksum(path, recorded, advance)
        return True
    return is_zip(path) and _check_records(path, advance, mapped or map_file(path))


def _check_records(path: Path, advance: Callable[[int], object], mapped: MappedFile) -> bool:
    """Compare each record with its CRC-32, which is zero where torch was told not to compute any, or to skip data."""
    archive = map_archive(mapped)
    with_content = {name: record.crc for name, record in archive.records.items() if record.size}
    compared = {name: recorded for name, recorded in with_content.items() if recorded}
    for name, recorded in compared.items():
        actual = _crc32(archive.bytes_of(name), advance)
        if actual != recorded:
            raise CheckpointError(
                f"{path} is damaged: the CRC-32 of {name} in it is {actual:08x}, and was {recorded:08x} when it was "
                "saved. Use another checkpoint."
            )
    return compared == with_content


def _crc32(content: memoryview, advance: Callable[[int], object]) -> int:
    crc = 0
    for begin in range(0, len(content), BYTES_AT_ONCE):
        chunk = content[begin : begin + BYTES_AT_ONCE]
        crc = zlib.crc32(chunk, crc)
        advance(len(chunk))
    return crc
