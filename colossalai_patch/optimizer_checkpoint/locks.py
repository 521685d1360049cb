"""Locks that are files: a process that ends, however it ends, lets go of them.

A lock file is removed by who holds its lock. So who takes the lock looks whether the file is still the one at the path.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS_BETWEEN_TRIES = 0.002


class FileLock:
    """A lock that this process holds."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Remember the lock file and the descriptor that holds its lock."""
        self._path, self._descriptor = path, descriptor

    def release(self) -> None:
        """Remove the lock file and let go of the lock."""
        with suppress(OSError):
            self._path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Let go of the lock, and leave the lock file to whoever takes it next."""
        os.close(self._descriptor)


def new_lock(path: Path) -> FileLock | None:
    """Make a lock file and take its lock.

    Returns:
        The lock, or None where the file system has no locks; then there is no lock file either.

    Raises:
        FileExistsError: if there is such a file, or another process took it for that of a dead one.
        OSError: if the file cannot be made.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileExistsError(f"another process holds {path}") from None
    except OSError:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()
        return None
    if not _is_at(path, descriptor):
        os.close(descriptor)
        raise FileExistsError(f"another process removed {path}")
    return FileLock(path, descriptor)


def lock_of_dead_process(path: Path) -> FileLock | None:
    """Take the lock of a lock file whose process has ended.

    Returns:
        The lock, or None wherever there is a doubt that the process has ended.
    """
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            return FileLock(path, descriptor)
    os.close(descriptor)
    return None


@contextmanager
def waiting_for_lock(path: Path, seconds: float) -> Iterator[bool]:
    """Hold the lock of a lock file during the body, which is told whether this was possible.

    Args:
        path: the lock file.
        seconds: how long to wait for the process that holds it.
    """
    lock = _wait(path, time.monotonic() + seconds)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()


def _wait(path: Path, deadline: float) -> FileLock | None:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return FileLock(path, descriptor)
            is_late = False
        except BlockingIOError:
            is_late = time.monotonic() > deadline
        except OSError:  # this file system has no locks
            is_late = True
        os.close(descriptor)
        if is_late:
            return None
        time.sleep(SECONDS_BETWEEN_TRIES)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
