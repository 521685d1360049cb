"""The files that an index names: inside its directory, regular, and there; and their content, mapped."""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path, PurePath

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, MissingFileError, ReplacedError


def check_name(name: str, folder: Path) -> Path:
    """Give the path of a file that an index in ``folder`` names, if the name stays inside the folder.

    Raises:
        CheckpointError: for an absolute name and one with ``..``.
    """
    pure = PurePath(str(name))
    if not isinstance(name, str) or pure.is_absolute() or ".." in pure.parts or not pure.parts or "\0" in name:
        raise CheckpointError(
            f"the index in {folder} names the file {name!r}, which is not inside that directory. Do not use it: "
            "no checkpoint is saved like that."
        )
    return folder / pure


def check_file(path: Path, folder: Path) -> None:
    """Make sure that ``path`` is a regular file, and one inside ``folder`` when symbolic links are followed.

    Raises:
        MissingFileError: if there is no such file.
        CheckpointError: if it is something else, or a link that leaves the folder.
        OSError: if that cannot be found out.
    """
    try:
        target = path.resolve(strict=True)
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{path} is missing, though the index of the checkpoint names it. Was the checkpoint copied as a whole?"
        ) from error
    except RuntimeError as error:
        raise CheckpointError(f"{path} is a symbolic link that leads to itself. Use another checkpoint.") from error
    if not target.is_relative_to(folder.resolve()):
        raise CheckpointError(f"{path} is a link to {target}, outside of the checkpoint. Copy the file instead.")
    if not target.is_file():
        raise CheckpointError(f"{path} is not a regular file. Use another checkpoint.")


def check_complete(path: Path, size: int | None) -> None:
    """Make sure that ``path`` is as long as it was when it was saved, where that is recorded.

    Raises:
        CheckpointError: if it is not.
        OSError: if the file cannot be looked at.
    """
    actual = path.stat().st_size
    if size is not None and actual != size:
        raise CheckpointError(
            f"{path} has {actual} bytes instead of the {size} that were saved. Was it copied as a whole?"
        )


@dataclass(frozen=True)
class MappedFile:
    """A file in memory.

    Attributes:
        path: the file.
        content: its bytes; writes to them would not reach the file. What is empty cannot be mapped.
        stat: what it was when it was mapped.
    """

    path: Path
    content: mmap.mmap | bytearray
    stat: os.stat_result

    def check_still_there(self) -> None:
        """Make sure that the file has not been replaced, for what else was read by its path.

        Raises:
            ReplacedError: if it has.
            OSError: if the file is gone.
        """
        if not os.path.samestat(self.stat, self.path.stat()):
            raise ReplacedError(f"{self.path} was replaced while it was read. Load the checkpoint again.")


def map_file(path: Path) -> MappedFile:
    """Map a file.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        stat = os.fstat(file.fileno())
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if stat.st_size else bytearray()
    return MappedFile(path, content, stat)
