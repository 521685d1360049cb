"""One save, by all the ranks that take part in it: into a folder of its own, then committed, or given up by all.

The files may be written in background threads, which cannot use collectives. So each rank, when its files are on disk,
leaves a part file in the folder, and the rank that finds the parts of all ranks commits.
"""

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from glob import escape
from pathlib import Path

from safetensors import SafetensorError

from colossalai_patch.optimizer_checkpoint.checked_file import CheckedFile, FileRecord, finish_file
from colossalai_patch.optimizer_checkpoint.commit import DirectoryTarget, FileTarget
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.ranks import Ranks

FOLDER = ".saving-"
WRITERS = 4

_logger = logging.getLogger(__name__)
_collecting: "dict[Path, Save]" = {}


class Save:
    """A save in progress, made by ``begin_save`` and used once: by ``now`` or by ``in_background``."""

    def __init__(self, target: FileTarget | DirectoryTarget, save_id: str, ranks: Ranks) -> None:
        self._target = target
        self._id = save_id
        self._ranks = ranks
        self._folder = target.directory / f"{FOLDER}{target.label}-{save_id}"
        self._files = self._folder / "files"
        self._held: int | None = _hold(self._folder)
        self._threads = ThreadPoolExecutor(WRITERS, thread_name_prefix="checkpoint-writer")
        self._records: dict[str, Future[FileRecord]] = {}
        self._copied: list[Callable[[], None]] = []
        self._committed: Future[None] = Future()

    def now(self, write: Callable[[str], None]) -> None:
        """Let ``write`` save to the path that it is given, and commit when all ranks are done.

        Raises:
            Exception: what ``write`` raised on this rank.
            SaveError: if a file of this rank could not be written, or another rank failed.
        """
        with self._by_all_or_none():
            self._collect(write)
            self._finish()
        self._close()

    def in_background(self, write: Callable[[str], None]) -> None:
        """Let ``write`` save to the path that it is given; its files may be written later, and then are committed.

        Raises:
            Exception: what ``write`` raised on this rank.
            SaveError: if ``write`` failed on another rank.
        """
        with self._by_all_or_none():
            self._collect(write)
        thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-commit")
        self._committed = thread.submit(self._finish_and_close)
        thread.shutdown(wait=False)

    def synchronize(self) -> None:
        """Wait until this rank has done its part of a save in the background.

        Raises:
            SaveError: if that failed.
        """
        self._committed.result()

    def sync_before_step(self) -> None:
        """Wait until the tensors are copied and may change.

        Raises:
            SaveError: if the save has failed already.
        """
        for copied in self._copied:
            copied()
        if self._committed.done():
            self.synchronize()

    def wait(self) -> None:
        """Wait until all ranks have done their parts of a save in the background.

        Raises:
            SaveError: if any of them failed.
        """
        with self._by_all_or_none():
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
        _collecting[self._files] = self
        try:
            write(os.fspath(self._target.stand_in(self._files)))
        finally:
            del _collecting[self._files]

    def _finish(self) -> None:
        records = {Path(path).name: self._record(path).as_json() for path in self._records}
        part = self._folder / f"{self._ranks.rank}.part"
        part.with_suffix(".tmp").write_text(json.dumps(records))
        part.with_suffix(".tmp").rename(part)
        if self._is_last():
            self._target.commit(self._files, self._id, self._all_records())
            shutil.rmtree(self._folder, ignore_errors=True)

    def _record(self, path: str) -> FileRecord:
        try:
            return self._records[path].result()
        except (OSError, RuntimeError, SafetensorError) as error:
            raise SaveError(f"{path} cannot be written, so {self._target.directory} is as it was: {error}") from error

    def _is_last(self) -> bool:
        """Whether all parts are there, and no other rank has found that out."""
        try:
            if len(list(self._folder.glob("*.part"))) < self._ranks.count:
                return False
            (self._folder / "commit").touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _all_records(self) -> dict[str, FileRecord]:
        parts = [json.loads(part.read_bytes()) for part in self._folder.glob("*.part")]
        return {name: FileRecord(**record) for part in parts for name, record in part.items()}

    def _finish_and_close(self) -> None:
        try:
            self._finish()
        except Exception:
            _logger.exception("A save in the background failed, and %s is as it was", self._target.directory)
            raise
        finally:
            self._close()

    @contextlib.contextmanager
    def _by_all_or_none(self) -> Iterator[None]:
        try:
            with self._ranks.all_or_none(SaveError):
                yield
        except Exception:
            self._close()
            if self._ranks.rank == 0:
                shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _close(self) -> None:
        self._threads.shutdown(wait=True)
        if self._held is not None:
            os.close(self._held)
        self._held = None


def begin_save(target: FileTarget | DirectoryTarget, ranks: Ranks) -> Save:
    """Make the folder for a save, on rank 0, and remove the folders of killed ones.

    Raises:
        OSError: if the target is something else than it should be, or the folder cannot be made or seen by a rank.
    """
    with ranks.all_or_none(SaveError):
        save_id = _make_folder(target) if ranks.rank == 0 else ""
    save_id, *_ = ranks.told_by_all(save_id)
    with ranks.all_or_none(SaveError):
        return Save(target, save_id, ranks)


def _make_folder(target: FileTarget | DirectoryTarget) -> str:
    """Make the folder of a save and return its id."""
    target.prepare()
    for folder in target.directory.glob(f"{FOLDER}{escape(target.label)}-" + "[0-9a-f]" * 8):
        if not _is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)
    save_id = secrets.token_hex(4)
    (target.directory / f"{FOLDER}{target.label}-{save_id}" / "files").mkdir(parents=True)
    return save_id


def save_of(path: str | Path) -> Save | None:
    """The save of this process that is collecting the file at ``path``, or None."""
    return next((_collecting[folder] for folder in Path(path).parents if folder in _collecting), None)


def _hold(folder: Path) -> int:
    """Lock a folder for as long as this process lives, where the file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _is_held(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
