"""Nothing on stdout and stderr for a while, whoever writes: Python, its warnings and logs, C, or a child process."""

import contextlib
import ctypes
import faulthandler
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

_STDOUT, _STDERR = 1, 2


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what this process writes to its descriptors of stdout and stderr, until the block ends.

    A crash of the interpreter is still told on stderr, with the line that it happened in.
    """
    with contextlib.ExitStack() as stack:
        _flush()
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_crashes_told())
        stack.enter_context(_dropped(_STDOUT))
        stack.enter_context(_dropped(_STDERR))
        # Somebody may have replaced these two; and a log handler that keeps one of ours writes on behind the block.
        stack.enter_context(contextlib.redirect_stdout(_stream(_STDOUT)))
        stack.enter_context(contextlib.redirect_stderr(_stream(_STDERR)))
        stack.callback(_flush)  # what is still in a buffer belongs to the block
        yield


@contextlib.contextmanager
def _dropped(descriptor: int) -> Iterator[None]:
    kept = _copy(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        if nowhere != descriptor:
            os.dup2(nowhere, descriptor)
        yield
    finally:
        _put_back(kept, descriptor)
        if nowhere != descriptor:
            os.close(nowhere)


@contextlib.contextmanager
def _crashes_told() -> Iterator[None]:
    stderr = _copy(_STDERR)
    if stderr is None or faulthandler.is_enabled():
        yield
        return
    faulthandler.enable(stderr)
    try:
        yield
    finally:
        faulthandler.disable()
        os.close(stderr)


def _copy(descriptor: int) -> int | None:
    """Another descriptor of the same file; none if the process was started with this one closed."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _put_back(kept: int | None, descriptor: int) -> None:
    if kept is None:
        os.close(descriptor)
        return
    os.dup2(kept, descriptor)
    os.close(kept)


def _stream(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # None, gone, closed
            stream.flush()  # type: ignore[union-attr]
    ctypes.CDLL(None).fflush(None)
