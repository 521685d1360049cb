"""Runs the regression suite with the patch off and on, prints both counts, and fails unless they are as expected."""

import sys

from suite_counts import TESTS, run_suite

SUITE = TESTS / "test_checkpoint_io" / "test_sharded_optimizer_replacement.py"
EXPECTED = {"off": (16, 9), "on": (0, 25)}


def main():
    counts = {patch: run_suite(SUITE, COLOSSALAI_PATCH=patch) for patch in EXPECTED}
    for patch, count in counts.items():
        print(f"COLOSSALAI_PATCH={patch:<3}  {count.failed:2} failed, {count.passed:2} passed")
    as_expected = {patch: (count.failed, count.passed) for patch, count in counts.items()} == EXPECTED
    return 0 if as_expected else f"expected failures and passes: {EXPECTED}"


if __name__ == "__main__":
    sys.exit(main())
