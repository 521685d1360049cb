"""Faults at the file operations of a process: one of them fails, or kills the process."""

import errno
import os
import signal
import sys
from contextlib import contextmanager
from functools import wraps

CHANGES = {"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"}


class Fault:
    """Strikes in front of the file operation with the given number, counted from 0 below ``folder``."""

    def __init__(self, number, strike, folder):
        self.left = number
        self.strike = strike
        self.folder = str(folder)

    @property
    def struck(self):
        return self.left < 0

    def count(self):
        self.left -= 1
        if self.left == -1:
            self.strike()


_fault = None


@contextmanager
def fault_at(number, strike, folder):
    global _fault
    _fault = Fault(number, strike, folder)
    try:
        yield _fault
    finally:
        _fault = None


def fail():
    raise OSError(errno.EIO, "a fault for the test")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def supply_faults():
    """Let the file operations of this process be counted; nothing undoes it."""
    sys.addaudithook(_audit)
    os.write, os.fsync = _counted(os.write), _counted(os.fsync)


def _audit(event, arguments):
    if _fault and (event in CHANGES or (event == "open" and str(arguments[0]).startswith(_fault.folder))):
        _fault.count()


def _counted(function):
    @wraps(function)
    def count_and_call(*arguments):
        if _fault:
            _fault.count()
        return function(*arguments)

    return count_and_call
