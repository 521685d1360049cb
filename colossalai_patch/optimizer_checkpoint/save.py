"""One save by this process: into a folder of its own, then committed, or given up.

Only processes that write have such a folder. Where several write one checkpoint, they share it. Each tells the first
one of its files when these are on disk; the first one commits, and tells the others how that went.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from colossalai_patch.optimizer_checkpoint.checked_file import CheckedFile, FileRecord, finish_file
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.messages import Messages
from colossalai_patch.optimizer_checkpoint.ranks import ALONE, SavingRanks
from colossalai_patch.optimizer_checkpoint.save_folder import SaveFolder, Target, make_folder
from colossalai_patch.optimizer_checkpoint.targets import FolderTarget

WRITERS = 4
OUTCOME = "outcome"

_logger = logging.getLogger(__name__)
_collecting: "dict[Path, Save]" = {}


class Save:
    """A save in progress, made by ``begin_save`` and used once: by ``now`` or by ``in_background``."""

    def __init__(self, target: Target, ranks: SavingRanks, save_id: str, folder: SaveFolder | None) -> None:
        self._target, self._ranks, self._id, self._folder = target, ranks, save_id, folder
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="checkpoint-writer")
        self._records: dict[str, Future[FileRecord]] = {}
        self._copied: list[Callable[[], None]] = []
        self._committed: Future[None] = Future()
        self._was_told = False

    def now(self, write: Callable[[str], None]) -> None:
        """Let ``write`` save to the path that it is given, and commit.

        Raises:
            Exception: what ``write`` raised on this rank.
            SaveError: if a file of this rank could not be written, or a rank failed that this one waits for.
        """
        with self._by_all_or_none():
            self._collect(write)
        with self._by_all_or_none():
            self._finish()
        self._close()

    def in_background(self, write: Callable[[str], None]) -> None:
        """Let ``write`` save to the path that it is given; its files may be written later, and then are committed.

        Raises:
            Exception: what ``write`` raised on this rank.
            SaveError: if ``write`` failed on a rank that this one waits for.
        """
        with self._by_all_or_none():
            self._collect(write)
        if self._folder is None:
            return
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-commit")
        self._committed = thread.submit(self._finish_and_close)
        thread.shutdown(wait=False)

    @property
    def writes(self) -> bool:
        """Whether this process writes files of the save."""
        return self._ranks.writer is not None

    def synchronize(self) -> None:
        """Wait until a save in the background is the checkpoint, or a later one is.

        Raises:
            SaveError: if the save failed; who waits once more is not told again.
        """
        try:
            self._wait()
        except Exception:
            if not self._was_told:
                self._was_told = True
                raise

    def _wait(self) -> None:
        if self._folder is not None:
            self._committed.result()
        elif self._ranks.waiting.groups:
            self._wait_for_outcome()

    def sync_before_step(self) -> None:
        """Wait until the tensors are copied and may change.

        Raises:
            SaveError: if the save has failed already.
        """
        for copied in self._copied:
            copied()
        if self._committed.done():
            self.synchronize()

    def write(self, path: str, fill: Callable[[CheckedFile], None]) -> None:
        """Fill a new file now, and wait in the background until it is on disk.

        As by the other writing methods, an error is raised when the files of this rank are complete and not here, where
        other ranks may be waiting for this one in a collective.
        """
        self._write(path, lambda: CheckedFile(Path(path), fill).finish)

    def write_by_path(self, path: str, write: Callable[[], None]) -> None:
        """Call ``write``, which makes the file at ``path``, now, and wait in the background until it is on disk."""

        def start() -> Callable[[], FileRecord]:
            write()
            return lambda: finish_file(Path(path))

        self._write(path, start)

    def write_index(self, path: str, write: Callable[[], None]) -> None:
        """Call ``write``, which makes an index at ``path``; the commit writes its own, so this one may go."""
        try:
            write()
        except Exception as error:
            self._keep(path, error)

    def write_in_background(
        self, path: str, write: Callable[[], FileRecord], copied: Callable[[], None]
    ) -> "Future[FileRecord]":
        """Let a thread call ``write``, which puts a file on disk; ``copied`` waits until its tensors may change."""
        self._copied.append(copied)
        self._records[path] = self._threads.submit(write)
        return self._records[path]

    def _write(self, path: str, start: Callable[[], Callable[[], FileRecord]]) -> None:
        try:
            self._records[path] = self._threads.submit(start())
        except Exception as error:
            self._keep(path, error)

    def _keep(self, path: str, error: Exception) -> None:
        self._records[path] = Future()
        self._records[path].set_exception(error)

    def _collect(self, write: Callable[[str], None]) -> None:
        path = self._folder.path if self._folder else None
        if path is None:
            write(os.fspath(self._target.path))
            return
        _collecting[path] = self
        try:
            write(os.fspath(self._target.stand_in(path)))
        finally:
            del _collecting[path]

    def _finish(self) -> None:
        if self._folder is None:
            return
        if self._ranks.writer != 0:
            self._tell(f"writer-{self._ranks.writer}", self._records_as_json)
            self._wait_for_outcome()
        elif self._ranks.waiting.groups:
            self._tell(OUTCOME, self._commit)
        else:
            self._commit()

    def _commit(self) -> None:
        assert self._folder is not None
        records = self._own_records()
        names = [f"writer-{writer}" for writer in range(1, self._ranks.writers)]
        for told in Messages(self._id).told(names, f"the writers of {self._target.path}") if names else ():
            if "error" in told:
                raise SaveError(f"{self._target.path} is as it was, since another rank failed with {told['error']}")
            records |= {name: FileRecord(**record) for name, record in told["result"].items()}
        self._target.commit(self._folder.path, self._id, records)

    def _own_records(self) -> dict[str, FileRecord]:
        return {Path(path).name: self._record(path) for path in self._records}

    def _records_as_json(self) -> dict[str, Any]:
        return {name: record.as_json() for name, record in self._own_records().items()}

    def _tell(self, name: str, work: Callable[[], Any]) -> None:
        """Do some work and tell the other ranks its result, or why it failed."""
        try:
            result = work()
        except Exception as error:
            Messages(self._id).tell(name, {"error": f"{type(error).__name__}: {error}"})
            raise
        Messages(self._id).tell(name, {"result": result})

    def _wait_for_outcome(self) -> None:
        (told,) = Messages(self._id).told([OUTCOME], f"the commit of {self._target.path}")
        if "error" in told:
            raise SaveError(f"{self._target.path} is as it was, since another rank failed with {told['error']}")

    def _record(self, path: str) -> FileRecord:
        try:
            return self._records[path].result()
        except (OSError, RuntimeError, SafetensorError) as error:
            raise SaveError(
                f"{path} cannot be written, so {self._target.path} is as it was: {error}{self._missing_room(error)}"
            ) from error

    def _missing_room(self, error: BaseException) -> str:
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return ""
        needed, free = sum(map(_size_of, self._records.values())), shutil.disk_usage(self._target.directory).free
        return (
            f". A save needs room beside the checkpoint that it replaces: the files of this process need {needed:,} "
            f"bytes in all, and {free:,} are free beside those that could be written."
        )

    def _finish_and_close(self) -> None:
        try:
            self._finish()
        except Exception:
            _logger.exception("A save in the background failed, and %s is as it was", self._target.path)
            raise
        finally:
            self._close()

    @contextlib.contextmanager
    def _by_all_or_none(self) -> Iterator[None]:
        try:
            with self._ranks.waiting.all_or_none(SaveError):
                yield
        except Exception:
            self._close()
            raise

    def _close(self) -> None:
        self._threads.shutdown(wait=True)
        if self._folder is not None:
            self._folder.close()


def begin_save(target: Target, ranks: SavingRanks = ALONE) -> Save:
    """Make the folder for a save, on the first rank that writes, and remove those of dead saves.

    Raises:
        OSError: if the target is something else than it should be, or the folder cannot be made or seen by a writer.
    """
    folder: SaveFolder | None = None
    try:
        with ranks.waiting.all_or_none(SaveError):
            if ranks.writer == 0:
                folder = make_folder(target)
        save_id = ranks.waiting.told(folder and folder.save_id)
        with ranks.waiting.all_or_none(SaveError):
            if ranks.writer:
                folder = SaveFolder(target, save_id)
                folder.check()
    except Exception:
        if folder is not None:
            folder.close()
        raise
    return Save(target, ranks, folder.save_id if folder else save_id, folder)


def _size_of(file: "Future[FileRecord]") -> int:
    """The bytes that a file has, or would have where it could not be written; 0 where nothing knows."""
    error = file.exception()
    size: int = getattr(error, "size", 0) if error else file.result().size
    return size


def save_adapter(checkpoint: str | Path, ranks: SavingRanks, write: Callable[..., None], *options: Any) -> None:
    """Let ``write(path, *options)`` save files that have no index, and put them into the directory ``checkpoint``.

    Raises:
        Exception: as ``Save.now``; each file in the directory is then the old one.
    """
    save = begin_save(FolderTarget(Path(checkpoint).absolute()), ranks)
    save.now(lambda path: write(path, *options))


def save_of(path: str | Path) -> Save | None:
    """The save of this process that is collecting the file at ``path``, or None."""
    return next((_collecting[folder] for folder in Path(path).parents if folder in _collecting), None)
