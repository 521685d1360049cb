"""Counts the cases of the differential suites in which stock ColossalAI differs from native.

Stock raises whenever a state is loaded on a machine without an accelerator, so it is counted a second time with a CPU
accelerator that can be waited for, as it would be on a machine with one.
"""

from suite_counts import TESTS, run_suite

SUITES = [
    TESTS / "test_checkpoint_io" / name
    for name in ("test_equals_native.py", "test_native_rules.py", "test_unsharded_equals_native.py")
]


def main():
    for title, plugins in {"as it is": [], "with a CPU that can be waited for": ["-p", "waiting_for_the_cpu"]}.items():
        counts = run_suite(*plugins, *SUITES, COLOSSALAI_PATCH="off")
        print(f"stock {title}: {counts.mismatched} mismatches, {counts.raised} raise, {counts.passed} pass")


if __name__ == "__main__":
    main()
