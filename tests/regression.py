"""Runs the regression suite with the patch off and on, prints both counts, and fails unless they are as expected."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

SUITE = Path(__file__).parent / "test_checkpoint_io" / "test_sharded_optimizer_replacement.py"
EXPECTED = {"off": (16, 9), "on": (0, 25)}


def count(patch):
    """How many cases fail and pass with ``COLOSSALAI_PATCH`` set to ``patch``."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(SUITE)]
        subprocess.run(command, env=os.environ | {"COLOSSALAI_PATCH": patch}, stdout=subprocess.DEVNULL, check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    failed = int(suite.get("failures")) + int(suite.get("errors"))
    return failed, int(suite.get("tests")) - failed - int(suite.get("skipped"))


def main():
    counts = {patch: count(patch) for patch in EXPECTED}
    for patch, (failed, passed) in counts.items():
        print(f"COLOSSALAI_PATCH={patch:<3}  {failed:2} failed, {passed:2} passed")
    return 0 if counts == EXPECTED else f"expected {EXPECTED}"


if __name__ == "__main__":
    sys.exit(main())
