"""The folder that one save writes its files to, beside the checkpoint that it will replace.

Beside the folder stands its lock file. Its name tells the machine: on some file systems, processes of other machines do
not see the lock. Where there is no lock, or a doubt, a folder counts as that of a living save.
"""

import hashlib
import secrets
import shutil
from glob import escape
from pathlib import Path

from colossalai_patch.optimizer_checkpoint.commit import DirectoryTarget
from colossalai_patch.optimizer_checkpoint.locks import FileLock, lock_of_dead_process, new_lock
from colossalai_patch.optimizer_checkpoint.targets import FileTarget, FolderTarget

FOLDER = ".saving-"
TRIES = 10
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Target = DirectoryTarget | FileTarget | FolderTarget


class SaveFolder:
    """The folder of a living save.

    Attributes:
        save_id: eight hexadecimal digits that no other save has.
        path: the folder.
    """

    def __init__(self, target: Target, save_id: str) -> None:
        """Describe the folder of a save to a target."""
        self.save_id, self.path = save_id, _path(target, save_id)

    def check(self) -> None:
        """Make sure that this process sees the folder, which another one has made.

        Raises:
            NotADirectoryError: if it does not.
        """
        if not self.path.is_dir():
            raise NotADirectoryError(
                f"{self.path} was made by another rank and is not seen by this one, which writes a part of the "
                "checkpoint. Save to a directory that all ranks share."
            )

    def close(self) -> None:
        """Leave the folder to the process that made it."""


class OwnFolder(SaveFolder):
    """A folder that this process makes or removes, and holds the lock of if there are locks."""

    def __init__(self, target: Target, save_id: str, lock: FileLock | None) -> None:
        """Describe the folder of a save to a target; ``lock`` is its lock."""
        super().__init__(target, save_id)
        self._lock = lock

    def make(self) -> None:
        """Make the folder.

        Raises:
            OSError: if that fails.
        """
        try:
            self.path.mkdir()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the folder with all that is in it, and then its lock file."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is None:
            return
        if self.path.exists():
            self._lock.let_go()  # the next save tries again
        else:
            self._lock.release()
        self._lock = None


def make_folder(target: Target) -> OwnFolder:
    """Make the folder for a save, and remove those of saves whose process has ended.

    Raises:
        OSError: if the target is something else than it should be, or the folder cannot be made.
    """
    target.prepare()
    _remove_dead_saves(target)
    for attempt in range(1, TRIES + 1):
        save_id = secrets.token_hex(4)
        try:
            lock = new_lock(_lock_file(target, save_id))
            # An id of its own where there are no locks: somebody may just have taken the first one for a dead save's.
            folder = OwnFolder(target, save_id if lock else secrets.token_hex(4), lock)
            folder.make()
            return folder
        except FileExistsError:
            if attempt == TRIES:
                raise
    raise AssertionError("the last attempt returns or raises")


def _remove_dead_saves(target: Target) -> None:
    digits = "[0-9a-f]" * 8
    for file in target.directory.glob(f"{escape(_path(target, '').name)}{digits}.{_machine()}.lock"):
        lock = lock_of_dead_process(file)
        if lock is None:
            continue
        save_id = file.name.removeprefix(_path(target, "").name)[:8]
        folder = OwnFolder(target, save_id, lock)
        if target.remove_leftovers(save_id):
            folder.close()
        else:
            lock.let_go()


def _path(target: Target, save_id: str) -> Path:
    return target.directory / f"{FOLDER}{target.label}-{save_id}"


def _lock_file(target: Target, save_id: str) -> Path:
    return target.directory / f"{_path(target, save_id).name}.{_machine()}.lock"


def _machine() -> str:
    """Eight digits that tell a running machine from others, and from itself after a restart."""
    try:
        boot_id = BOOT_ID.read_bytes()
    except OSError:
        boot_id = secrets.token_bytes(16)  # a machine that cannot be told: no other process finds the lock file
    return hashlib.sha256(boot_id).hexdigest()[:8]
