"""One checkpoint, read whole, though another process may save to the same place meanwhile.

A commit replaces the index with one rename and then removes the files of the index before, so a reader that has begun
with that one may find a file gone at any later moment. It begins again with the new index.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from colossalai_patch.optimizer_checkpoint.checksum import BYTES_AT_ONCE
from colossalai_patch.optimizer_checkpoint.errors import ReplacedError
from colossalai_patch.optimizer_checkpoint.index import named_by_index

Result = TypeVar("Result")

_logger = logging.getLogger(__name__)


def read_whole(read: Callable[[], Result], *checkpoints: str | Path) -> Result:
    """Call ``read``, and once more for each time that it fails and a save has replaced a checkpoint meanwhile.

    Args:
        read: finds the checkpoints and reads them; what it had read when it failed is of no effect.
        checkpoints: directories, indexes or files that it reads.

    Raises:
        Exception: what ``read`` raises although the checkpoints are still those that it began with.
    """
    while True:
        before = [_identity(Path(checkpoint)) for checkpoint in checkpoints]
        try:
            return read()
        except Exception as error:
            unchanged = [_identity(Path(checkpoint)) for checkpoint in checkpoints] == before
            if unchanged and not isinstance(error, ReplacedError):
                raise
            _logger.info("Read again, since a save has replaced the checkpoint: %s", error)


@contextmanager
def unchanged_files(checkpoint: str | Path) -> Iterator[None]:
    """Make sure that the body, which reads a checkpoint, reads nothing of another one.

    That is for checkpoints whose files are replaced under their names; under other names, they can only be gone.

    Args:
        checkpoint: an index, or a file that is a whole checkpoint; of a directory without an index, nothing is known.

    Raises:
        ReplacedError: if the index or a file that it names was replaced since the body began.
    """
    path = Path(checkpoint)
    before = _identities(path)
    yield
    if _identities(path) != before:
        raise ReplacedError(f"{path} was replaced while it was read. Load the checkpoint again.")


def _identities(path: Path) -> list[Any]:
    if not path.is_file():
        return []
    return [_identity_of_file(path), *(_identity_of_file(file) for file in named_by_index(path))]


def _identity(checkpoint: Path) -> Any:
    """What is another value after every save to ``checkpoint``."""
    if not checkpoint.is_dir():
        return _identity_of_file(checkpoint)
    indexes = sorted(checkpoint.glob("*.index*.json"))
    return [(index.name, _identity_of_file(index)) for index in indexes] or _identity_of_file(checkpoint)


def _identity_of_file(path: Path) -> Any:
    """Of an index with what it says: an inode may be that of a file that was removed."""
    try:
        if path.suffix != ".json" or not path.is_file():
            return _identity_by_stat(path.stat())
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(BYTES_AT_ONCE):
                digest.update(chunk)
            return (digest.digest(), *_identity_by_stat(os.fstat(file.fileno())))
    except (OSError, ValueError):  # the latter for a name that no file can have
        return None


def _identity_by_stat(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
