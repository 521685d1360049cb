"""Runs a part of the suite in a process of its own, under other circumstances, and counts."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

TESTS = Path(__file__).parent


class Counts(NamedTuple):
    """How many cases failed with an assertion that does not hold, failed with another error, passed, were skipped."""

    mismatched: int
    raised: int
    passed: int
    skipped: int

    @property
    def failed(self):
        return self.mismatched + self.raised


def run_suite(*arguments, **variables):
    """Run pytest with these arguments and environment variables, and count the cases."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *map(str, arguments)]
        subprocess.run(command, env=os.environ | variables, stdout=subprocess.DEVNULL, check=False)
        cases = ElementTree.parse(report).getroot().findall(".//testcase")
    failures = [failure.get("message") for case in cases for failure in case.findall("failure") + case.findall("error")]
    skipped = sum(case.find("skipped") is not None for case in cases)
    mismatched = sum(message.startswith("AssertionError") for message in failures)
    passed = len(cases) - len(failures) - skipped
    return Counts(mismatched, len(failures) - mismatched, passed, skipped)
