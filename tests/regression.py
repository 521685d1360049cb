"""Runs a regression suite with the patch off and on, prints both counts, and fails unless they are as expected.

python tests/regression.py            the loaders of GeneralCheckpointIO
python tests/regression.py plugins    those of the plugins, in real processes
"""

import sys

from suite_counts import TESTS, run_suite

# The file of each suite, and how many of its cases fail and pass with the patch off and on.
SUITES = {
    "general": ("test_sharded_optimizer_replacement.py", {"off": (16, 9), "on": (0, 25)}),
    "plugins": ("test_plugins.py", {"off": (278, 114), "on": (0, 392)}),
}


def main(name="general"):
    file, expected = SUITES[name]
    counts = {patch: run_suite(TESTS / "test_checkpoint_io" / file, COLOSSALAI_PATCH=patch) for patch in expected}
    for patch, count in counts.items():
        print(f"COLOSSALAI_PATCH={patch:<3}  {count.failed:3} failed, {count.passed:3} passed")
    as_expected = {patch: (count.failed, count.passed) for patch, count in counts.items()} == expected
    return 0 if as_expected else f"expected failures and passes: {expected}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
