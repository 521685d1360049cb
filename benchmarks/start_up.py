"""What the start-up line costs every Python process: pairs of bare processes, with and without the import."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = str(Path(__file__).parents[1])
PAIRS = 60


def milliseconds(code):
    started = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, env=os.environ)
    return (time.perf_counter() - started) * 1000


def main():
    bare = f"import os, sys; sys.path.append({CHECKOUT!r})"
    pairs = [(milliseconds(bare), milliseconds(f"{bare}; import colossalai_patch")) for _ in range(PAIRS)]
    costs = [patched - plain for plain, patched in pairs]
    low, _, high = statistics.quantiles(costs, n=4)
    plain = statistics.median(plain for plain, _ in pairs)
    print(f"a bare process takes {plain:.1f} ms; the start-up line adds {statistics.median(costs):.2f} ms ", end="")
    print(f"(median of {PAIRS} pairs, quartiles {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
