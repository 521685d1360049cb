"""Nothing that is written in a silent block is shown, and everything else is."""

import ctypes
import faulthandler
import logging
import os
import subprocess
import sys
import warnings

import pytest

from colossalai_patch.silence import silence

WAYS_TO_WRITE = {
    "print": lambda text: print(text, end=""),
    "print to stderr": lambda text: print(text, end="", file=sys.stderr),
    "warnings": warnings.warn,
    "logging": logging.getLogger("library").error,
    "a handler of its own": lambda text: logging.StreamHandler().emit(logging.makeLogRecord({"msg": text})),
    "descriptor 1": lambda text: os.write(1, text.encode()),
    "descriptor 2": lambda text: os.write(2, text.encode()),
    "printf": lambda text: ctypes.CDLL(None).printf(text.encode()),
    "a child process": lambda text: subprocess.run([sys.executable, "-c", "print('a child')"], check=True),
}


@pytest.mark.parametrize("way", WAYS_TO_WRITE)
def test_what_is_written_in_the_block_is_not_shown(capfd, way):
    with silence():
        WAYS_TO_WRITE[way]("unwanted")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")


def test_more_than_a_pipe_holds_does_not_block(capfd):
    with silence():
        print("unwanted " * 1_000_000)
    assert capfd.readouterr() == ("", "")


def test_what_is_printed_before_and_behind_the_block_is_shown_in_order(capfd):
    print("before", end=" ")
    with silence():
        print("unwanted")
    print("behind", end="")
    assert capfd.readouterr() == ("before behind", "")


def test_an_error_ends_the_silence(capfd):
    with pytest.raises(SystemExit), silence():
        sys.exit(3)
    print("shown", end="")
    assert capfd.readouterr() == ("shown", "")


def test_a_log_handler_that_was_made_in_the_block_writes_behind_it(capfd):
    with silence():
        handler = logging.StreamHandler()
    handler.emit(logging.makeLogRecord({"msg": "shown"}))
    assert capfd.readouterr() == ("", "shown\n")


def test_no_descriptor_stays_open():
    code = """
import os
from colossalai_patch.silence import silence
counts = []
for _ in range(3):
    counts.append(len(os.listdir("/proc/self/fd")))
    with silence():
        pass
assert len(set(counts[1:])) == 1  # ctypes may keep one, the first time
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_process_without_stdout_or_stderr_runs_on(tmp_path, closed):
    code = (
        f"from colossalai_patch.silence import silence\nwith silence(): print(1)\nopen({str(tmp_path / 'end')!r}, 'w')"
    )
    subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, code], check=True)
    assert (tmp_path / "end").exists()


def test_a_crash_is_told_on_stderr():
    code = "import os; from colossalai_patch.silence import silence\nwith silence(): os.abort()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert result.stderr.startswith("Fatal Python error: Aborted")


def test_a_fault_handler_of_somebody_else_stays(request):
    assert faulthandler.is_enabled()  # pytest's
    with silence():
        assert faulthandler.is_enabled()
    assert faulthandler.is_enabled()
