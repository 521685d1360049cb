"""What a load costs: the patch, stock, one file loaded natively, torch.distributed.checkpoint, filling fresh memory.

Each load runs in a process of its own, and ends when every page of the state was written to once, as the next step
will: stock's tensors of safetensors files are views, whose pages are read only then. The contenders take turns in
random order; ratios are of one turn, and the table has their medians and quartiles.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

SIZES = {"200x1M": (200, 1_000_000, 200), "4x50M": (4, 50_000_000, 200), "20000x1k": (20_000, 1_000, 40)}
OTHERS = ["stock", "one file", "dcp", "fill"]
PAIRS = 5
TARGETS = [  # in which cells, whom it is against, and how many times as long that takes at least
    ("200x1M bin fresh 1 rank", "stock", 1.6),
    ("200x1M bin fresh 1 rank", "fill", 0.75),
    ("", "stock", 0.95),
    ("20000x1k", "one file", 1.0),
]
SHARDS_BESIDE = 2


@dataclass(frozen=True)
class Cell:
    size: str
    layout: str
    trained: bool
    ranks: int

    def __str__(self):
        destination = "trained" if self.trained else "fresh"
        return f"{self.size:8} {self.layout:11} {destination:7} {self.ranks} rank{'s' * (self.ranks > 1)}"

    @property
    def gigabytes(self):
        parameters, numbers, _ = SIZES[self.size]
        return parameters * numbers * 2 * 4 / 1e9

    def has(self, contender):
        """Whether it takes part: dcp takes forty seconds for 20,000 parameters, so it has one cell of each layout."""
        return contender != "dcp" or self.size != "20000x1k" or (self.ranks == 1 and not self.trained)


CELLS = [
    Cell(size, layout, trained, ranks)
    for size in SIZES
    for layout in ("bin", "safetensors")
    for trained, ranks in ((False, 1), (True, 1), (False, 2))
]


class Server:
    """A process in which the patch is on or off, and which forks one that loads when it is asked to."""

    def __init__(self, patch):
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", Path(__file__).with_name("contenders.py")],
            env=os.environ | {"COLOSSALAI_PATCH": patch},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            if not line:
                raise RuntimeError("The benchmark's server has died.")
        return json.loads(line)


class Servers:
    def __init__(self):
        self.patched, self.stock = Server("on"), Server("off")

    def load(self, cell, contender, folder):
        parameters, numbers, _ = SIZES[cell.size]
        server = self.patched if contender == "patched" else self.stock
        return server.ask(
            do="load",
            contender=contender,
            folder=str(folder),
            layout=cell.layout,
            parameters=parameters,
            numbers=numbers,
            trained=cell.trained,
            ranks=cell.ranks,
        )


def measure(servers, cell, folder, others, pairs):
    """Load with each contender ``pairs`` times, after once for the page cache."""
    runs = {contender: [] for contender in ("patched", *filter(cell.has, others))}
    for turn in range(pairs + 1):
        for contender in random.sample(list(runs), len(runs)):
            figures = servers.load(cell, contender, folder)
            if turn:
                runs[contender].append(figures)
    return runs


def ratios(runs, contender):
    """How many times as long ``contender`` took as the patch: median and quartiles over the turns."""
    pairs = zip(runs["patched"], runs[contender], strict=True)
    low, middle, high = statistics.quantiles([theirs["seconds"] / ours["seconds"] for ours, theirs in pairs], n=4)
    return {"low": low, "median": middle, "high": high}


def summary(cell, runs):
    seconds = {contender: statistics.median(run["seconds"] for run in runs[contender]) for contender in runs}
    return {
        "cell": asdict(cell),
        "gigabytes": cell.gigabytes,
        "seconds": seconds,
        "times as long as patched": {
            contender: ratios(runs, contender) for contender in runs if contender != "patched"
        },
        "peak GB": {name: max(run["peak"] for run in runs[name]) / 1e9 for name in runs},
        "shards beside the state": {} if cell.trained else {name: max(map(shards_beside, runs[name])) for name in runs},
        "read GB": {name: max(run["read"] for run in runs[name]) / 1e9 for name in runs},
    }


def shards_beside(run):
    """How many shards the peak of a fresh load is above what the process keeps."""
    return (run["peak"] - run["state"]) / run["shard"]


def column(figures):
    return f"  {figures['median']:5.2f} ({figures['low']:4.2f}-{figures['high']:5.2f})" if figures else " " * 20


def line(cell, result, others):
    shown = "".join(column(result["times as long as patched"].get(contender)) for contender in others)
    speed = result["gigabytes"] / result["seconds"]["patched"]
    peak = result["peak GB"]["patched"] / result["gigabytes"]
    beside = "" if cell.trained else f"  {result['shards beside the state']['patched']:5.2f}"
    return f"{cell!s:38} {speed:5.2f} GB/s{shown}   {peak:5.2f}{beside}"


def targets(results):
    """Yield for each target what it is and how far the worst of its cells came, and whether that is enough."""
    cells = [(" ".join(str(Cell(**result["cell"])).split()), result) for result in results]
    for words, contender, least in TARGETS:
        ratios = [result["times as long as patched"].get(contender) for name, result in cells if words in name]
        if worst := min((figures["median"] for figures in ratios if figures), default=None):
            yield (
                f"{words or 'any cell'}: {contender} takes {worst:.2f} times as long; at least {least}",
                worst >= least,
            )
    beside = [result["shards beside the state"].get("patched", 0.0) for result in results]
    yield f"any cell: {max(beside):.2f} shards beside the state; at most {SHARDS_BESIDE}", max(beside) <= SHARDS_BESIDE


def draw(results, path):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 0.9 + 0.5 * len(results)))
    contenders = list(dict.fromkeys(contender for result in results for contender in result["seconds"]))
    height = 0.8 / len(contenders)
    for place, contender in enumerate(contenders):
        rows = [row for row, result in enumerate(results) if contender in result["seconds"]]
        speeds = [results[row]["gigabytes"] / results[row]["seconds"][contender] for row in rows]
        axes.barh([row + place * height for row in rows], speeds, height, label=contender)
    names = [str(Cell(**result["cell"])) for result in results]
    axes.set_yticks([row + 0.4 - height / 2 for row in range(len(results))], names, family="monospace")
    axes.invert_yaxis()
    axes.set_xlabel("GB/s of state, loaded and written to once (median; more is better)")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="how often each contender loads")
    parser.add_argument("--only", default="", help="only cells whose line holds all of these words")
    parser.add_argument("--against", nargs="+", default=OTHERS, choices=OTHERS, help="the other contenders")
    parser.add_argument("--output", type=Path, help="a folder for load.json and load.png")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if all(word in str(cell) for word in options.only.split())]
    servers, results = Servers(), []
    print(f"how many times as long as the patch, median (quartiles) of {options.pairs} turns")
    print("last: the peak of memory, in bytes of the tensors, and how many shards it is above what is there afterwards")
    print(f"{'':38} {'patched':10}" + "".join(f"  {name:^18}" for name in options.against) + "    peak  beside")
    for size, of_a_size in itertools.groupby(cells, key=lambda cell: cell.size):
        parameters, numbers, megabytes = SIZES[size]
        with tempfile.TemporaryDirectory(prefix="benchmark-", dir=Path.cwd()) as folder:
            servers.patched.ask(
                do="save", folder=folder, parameters=parameters, numbers=numbers, megabytes_of_a_shard=megabytes
            )
            for cell in of_a_size:
                results.append(summary(cell, measure(servers, cell, folder, options.against, options.pairs)))
                print(line(cell, results[-1], options.against), flush=True)
    for what, is_met in targets(results):
        print(f"{'met' if is_met else 'MISSED':6} {what}")
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "load.json").write_text(json.dumps(results, indent=1))
        draw(results, options.output / "load.png")


if __name__ == "__main__":
    main()
