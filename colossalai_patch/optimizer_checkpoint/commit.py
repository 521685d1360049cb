"""How a finished save takes the place of the checkpoint before it.

A save writes into a folder of its own. The commit moves its files from there to names that no other save has used, and
then replaces the index with one rename. Before that rename the directory holds the old checkpoint, after it the new
one, and never anything else.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.checked_file import FileRecord, finish_file
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.locks import waiting_for_lock
from colossalai_patch.optimizer_checkpoint.saved_index import (
    REPLACED_KEY,
    has_save_id,
    named_files,
    read_index_file,
    renamed,
    unique_name,
    write_index_file,
)
from colossalai_patch.optimizer_checkpoint.targets import make_directory, synchronize_directory

SUFFIXES = (".bin", ".safetensors")
SECONDS_FOR_A_COMMIT = 60  # a few renames; who holds the lock for longer hangs

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """The names of the files of one kind of checkpoint, without their prefix, as ColossalAI gives them.

    Attributes:
        kind: what is saved.
        indexes: what the name of the index begins with.
        keeps_names: whether files have the names of ColossalAI in the end, for the sake of those who look for them.
    """

    kind: str
    indexes: tuple[str, ...]
    keeps_names: bool


OPTIMIZER = Layout("optimizer", ("pytorch_optim.bin.index", "optimizer.safetensors.index"), keeps_names=False)
BIN_MODEL = Layout("model", ("pytorch_model.bin.index",), keeps_names=True)
SAFETENSORS_MODEL = Layout("model", ("model.safetensors.index",), keeps_names=True)


@dataclass(frozen=True)
class DirectoryTarget:
    """A sharded checkpoint: a directory with an index.

    Attributes:
        directory: the directory.
        layout: what is saved.
        prefix: what ColossalAI adds to the names of the files.
    """

    directory: Path
    layout: Layout
    prefix: str = ""

    @property
    def path(self) -> Path:
        """The path of the checkpoint."""
        return self.directory

    @property
    def label(self) -> str:
        """What the folder of a save is called by, beside those of other targets."""
        return self._prefixed(self.layout.kind)

    def replaced(self) -> list[Path]:
        """What a commit would replace or remove."""
        indexes = [path for path in self._indexes() if path.exists()]
        return [*indexes, *sorted(self.directory / name for name in self._indexed() or ())]

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
        """Remove what a dead save has moved here, unless an index names it, and say whether that was possible."""
        with self._locked() as is_locked:
            kept = self._indexed()
            if not is_locked or kept is None:
                return False
            for path in self.directory.glob(f"*-{save_id}-*"):
                if path.name not in kept and not path.name.startswith("."):
                    path.unlink(missing_ok=True)
        return True

    def commit(self, files: Path, save_id: str, records: Mapping[str, FileRecord]) -> None:
        """Make what was saved in ``files`` the checkpoint of this directory, and remove the one before.

        Commits to one target take turns where locks work. Where they do not, names that several saves use are left
        alone: a model's files keep the names that no other save has, and what had plain names before stays.

        Args:
            files: the folder that holds the saved files, with an index.
            save_id: eight hexadecimal digits that no other save has.
            records: what is known of the files; the others are read.

        Raises:
            OSError: if that fails before the index is replaced; the old checkpoint is as it was.
        """
        index_file = self._only_index(files)
        index = json.loads(index_file.read_bytes())
        index_file.unlink()
        names = {name: unique_name(name, save_id) for name in named_files(index)}
        index["metadata"]["files"] = {
            name: (records.get(name) or finish_file(files / name)).as_json() for name in names
        }
        others = [path for path in sorted(files.iterdir()) if path.is_file() and path.name not in {*names, *records}]
        for path in others:
            finish_file(path)
        with self._locked() as is_locked:
            older = {name for name in self._indexed() or () if (self.directory / name).exists()}
            final_index = self._replaced_index(index_file.name)
            index["metadata"][REPLACED_KEY] = sorted(older)
            self._replace(files, final_index, renamed(index, names), names)
            with self._errors_as_warnings():
                synchronize_directory(self.directory)
                for path in others:
                    path.replace(self.directory / path.name)
                if self.layout.keeps_names and is_locked:
                    self._give_names_back(files, final_index, index, names)
            with self._errors_as_warnings():
                self._remove(older, final_index, is_locked)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of this target, if that is possible."""
        with waiting_for_lock(self.directory / f".committing-{self.label}.lock", SECONDS_FOR_A_COMMIT) as is_locked:
            yield is_locked

    def _only_index(self, files: Path) -> Path:
        found = list(files.glob("*.index*.json"))
        if len(found) != 1:
            raise SaveError(f"{len(found)} indexes were written instead of one, so {self.directory} is as it was")
        return found[0]

    def _indexes(self) -> list[Path]:
        return [self.directory / f"{self._prefixed(name)}.json" for name in self.layout.indexes]

    def _replaced_index(self, name: str) -> Path:
        """The index that is there, whatever format its name tells, since with two none would be the valid one."""
        paths = [self.directory / name, *self._indexes()]
        return next((path for path in paths if path.exists()), paths[0])

    def _indexed(self) -> set[str] | None:
        """The files that the indexes name now, or that their commits were to remove; None if that cannot be told."""
        names: set[str] = set()
        for path in self._indexes():
            try:
                index = read_index_file(path)
                names.update(named_files(index), index["metadata"].get(REPLACED_KEY, ()))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                return None
        return {name for name in names if Path(name).name == name and Path(name).suffix in SUFFIXES}

    def _replace(self, files: Path, final_index: Path, index: Any, names: Mapping[str, str]) -> None:
        """Move the files here and then let the index name them, which is the one moment of the commit."""
        try:
            for name, unique in names.items():
                (files / name).replace(self.directory / unique)
            write_index_file(files / final_index.name, index)
            synchronize_directory(self.directory)
            (files / final_index.name).replace(final_index)
        except OSError:
            indexed = self._indexed()
            if indexed is not None and indexed.isdisjoint(names.values()):  # some file systems fail after a rename
                for unique in names.values():
                    with contextlib.suppress(OSError):
                        (self.directory / unique).unlink()
            raise

    def _give_names_back(self, files: Path, final_index: Path, index: Any, names: Mapping[str, str]) -> None:
        """Let every file have both of its names until the index holds the plain ones."""
        for name, unique in names.items():
            (files / name).hardlink_to(self.directory / unique)
            (files / name).replace(self.directory / name)
        index["metadata"][REPLACED_KEY] += names.values()
        write_index_file(files / final_index.name, index)
        synchronize_directory(self.directory)
        (files / final_index.name).replace(final_index)
        synchronize_directory(self.directory)
        for unique in names.values():
            (self.directory / unique).unlink(missing_ok=True)

    def _remove(self, older: set[str], final_index: Path, is_locked: bool) -> None:
        """Remove the files of the index that was replaced, and the index of another format beside it."""
        kept = named_files(json.loads(final_index.read_bytes()))
        for name in sorted(older.difference(kept)):
            if is_locked or has_save_id(name):
                (self.directory / name).unlink(missing_ok=True)
        for path in self._indexes():
            if is_locked and path != final_index:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _errors_as_warnings(self) -> Iterator[None]:
        """After the commit there is nothing to give up."""
        try:
            yield
        except OSError as error:
            _logger.warning("%s is saved in %s, but older files stay: %s", self.label, self.directory, error)

    def _prefixed(self, name: str) -> str:
        return f"{name}.{self.prefix}" if self.prefix else name
