"""What a save replaces that has no index: one file, or the files of a directory. Directories are made for both."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from colossalai_patch.optimizer_checkpoint.checked_file import FileRecord, finish_file


@dataclass(frozen=True)
class FileTarget:
    """An unsharded checkpoint: one file."""

    file: Path

    @property
    def directory(self) -> Path:
        """The directory that holds the file."""
        return self.file.parent

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.file

    @property
    def label(self) -> str:
        """What the folder of a save is called by, beside those of other targets."""
        return self.file.name

    def replaced(self) -> list[Path]:
        """What a commit would replace."""
        return [self.file] if self.file.exists() else []

    def prepare(self) -> None:
        """Make sure that there can be such a file.

        Raises:
            OSError: if there cannot.
        """
        if self.file.is_dir():
            raise IsADirectoryError(f"{self.file} is a directory, where the file of an unsharded checkpoint should be")
        if not self.directory.is_dir():
            raise NotADirectoryError(f"{self.file} cannot be saved, since {self.directory} is no directory")

    def stand_in(self, files: Path) -> Path:
        """The path in ``files`` that is written instead."""
        return files / self.file.name

    def remove_leftovers(self, save_id: str) -> bool:
        """Nothing of a dead save is outside of its folder."""
        return True

    def commit(self, files: Path, save_id: str, records: Mapping[str, FileRecord]) -> None:
        """Put the saved file into its place.

        Raises:
            OSError: if that fails; the old file is as it was.
        """
        saved = files / self.file.name
        if saved.name not in records:
            finish_file(saved)
        saved.replace(self.file)
        synchronize_directory(self.directory)


@dataclass(frozen=True)
class FolderTarget:
    """A directory of files that have no index, such as those of an adapter: each one is replaced by itself."""

    directory: Path

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.directory

    @property
    def label(self) -> str:
        """What the folder of a save is called by, beside those of other targets."""
        return "folder"

    def prepare(self) -> None:
        """Make the directory, if there is none.

        Raises:
            OSError: if there cannot be one.
        """
        make_directory(self.directory)

    def stand_in(self, files: Path) -> Path:
        """The path that is written instead: ``files`` itself."""
        return files

    def remove_leftovers(self, save_id: str) -> bool:
        """Nothing of a dead save is outside of its folder."""
        return True

    def commit(self, files: Path, save_id: str, records: Mapping[str, FileRecord]) -> None:
        """Put the saved files into their places.

        Raises:
            OSError: if that fails; each file is the new one or the old one.
        """
        saved = [path for path in sorted(files.rglob("*")) if path.is_file()]
        for path in saved:
            finish_file(path)
        for path in saved:
            final = self.directory / path.relative_to(files)
            final.parent.mkdir(parents=True, exist_ok=True)
            path.replace(final)
        synchronize_directory(self.directory)


def make_directory(directory: Path) -> None:
    """Make a directory, if there is none, and wait until its name is on disk.

    Raises:
        OSError: if there cannot be one.
    """
    if directory.is_dir():
        return
    if directory.exists():
        raise NotADirectoryError(f"{directory} is a file, where the directory of a checkpoint should be")
    directory.mkdir(parents=True, exist_ok=True)
    synchronize_directory(directory.parent)


def synchronize_directory(directory: Path) -> None:
    """Wait until the names in ``directory`` are on disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
