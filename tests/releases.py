"""Runs the regression suite and a sample of the differential one on every release that the patch says it is tested on.

Each release is installed without its dependencies into a folder of its own, which stands before site-packages.
"""

import os
import subprocess
import sys
from pathlib import Path

from suite_counts import TESTS, run_suite

from colossalai_patch.overlay import TESTED_RELEASES

SUITE = TESTS / "test_checkpoint_io"
REGRESSION = [SUITE / "test_sharded_optimizer_replacement.py"]
SAMPLE = [SUITE / "test_equals_native.py", "-k", "float32-trained-trained"]


def installed(release, cache):
    """The folder of a release, installed if it is not there yet."""
    folder = cache / f"{TESTED_RELEASES[release]}-{release}"
    if not folder.exists():
        requirement = f"{TESTED_RELEASES[release]}=={release}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
        subprocess.run([*pip, folder.with_suffix(".partial"), requirement], check=True)
        folder.with_suffix(".partial").rename(folder)
    return folder


def check_that_it_is_imported(release, path):
    code = "from colossalai_patch.overlay import installed_release; print(installed_release())"
    command = [sys.executable, "-c", code]
    imported = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    if imported.stdout.strip() != release:
        raise SystemExit(f"{imported.stdout.strip()} is imported instead of {release}")


def main(cache):
    failed = 0
    for release in TESTED_RELEASES:
        path = str(installed(release, cache))
        check_that_it_is_imported(release, path)
        stock = run_suite(*REGRESSION, PYTHONPATH=path, COLOSSALAI_PATCH="off")
        patched = run_suite(*REGRESSION, PYTHONPATH=path)
        sample = run_suite(*SAMPLE, PYTHONPATH=path)
        print(
            f"ColossalAI {release}: regression suite: stock {stock.failed} failed and {stock.passed} passed, "
            f"patched {patched.failed} and {patched.passed}; sample: {sample.failed} and {sample.passed}",
            flush=True,
        )
        failed += patched.failed + sample.failed + (stock.failed == 0)
    return failed and f"{failed} failed"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
