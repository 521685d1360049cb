"""What a save costs against stock's: pairs of saves of the same optimizer, each over the save before it.

Stock runs in a process of its own, since the patch is on or off for a whole process; the two take turns. Prints the
medians of the ratios of seconds, with and without waiting for the disk, which stock does not do.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PARAMETERS = 64
PAIRS = 9
MEGABYTES_OF_A_SHARD = 100


def serve(folder, megabytes, fsync):
    """Save once for each line on stdin, and answer with the seconds that it took."""
    import time

    import torch
    from colossalai.checkpoint_io import GeneralCheckpointIO

    if not fsync:
        os.fsync = lambda descriptor: None
    numbers = megabytes * 2**20 // (PARAMETERS * 3 * 4)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.rand(numbers)) for _ in range(PARAMETERS)])
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {
            "step": torch.tensor(1.0),
            "exp_avg": torch.rand(numbers),
            "exp_avg_sq": torch.rand(numbers),
        }
    checkpoint_io = GeneralCheckpointIO()
    print("ready", flush=True)
    for _ in sys.stdin:
        os.sync()
        began = time.perf_counter()
        checkpoint_io.save_optimizer(optimizer, folder, shard=True, size_per_shard=MEGABYTES_OF_A_SHARD)
        print(time.perf_counter() - began, flush=True)


class Server:
    """A process that saves when it is asked to."""

    def __init__(self, folder, megabytes, fsync, **variables):
        arguments = ["--serve", folder, "--megabytes", str(megabytes), "--fsync", str(fsync)]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, *arguments],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        while self.process.stdout.readline() != "ready\n":
            pass

    def seconds_of_a_save(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, parent, megabytes, fsync, **variables):
    stock = Server(f"{parent}/stock-{name}", megabytes, fsync, COLOSSALAI_PATCH="off")
    patched = Server(f"{parent}/patched-{name}", megabytes, fsync, **variables)
    pairs = [(stock.seconds_of_a_save(), patched.seconds_of_a_save()) for _ in range(PAIRS + 1)][1:]
    stock.stop()
    patched.stop()
    ratios = [ours / theirs for theirs, ours in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    theirs, ours = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    print(f"{name:22} stock {theirs:5.2f} s, patched {ours:5.2f} s: {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=600, help="of the optimizer's parameters and states")
    parser.add_argument("--serve")
    parser.add_argument("--fsync", type=int)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.megabytes, options.fsync)
        return
    print(f"seconds of a save, patched / stock, median and quartiles of {PAIRS} pairs")
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=Path.cwd()) as parent:
        compare("without fsync", parent, options.megabytes, fsync=0)
        compare("with fsync", parent, options.megabytes, fsync=1)
        in_safetensors = {"COLOSSALAI_PATCH_SAVE_FORMAT": "safetensors"}
        compare("safetensors, no fsync", parent, options.megabytes, fsync=0, **in_safetensors)
        compare("safetensors, fsync", parent, options.megabytes, fsync=1, **in_safetensors)


if __name__ == "__main__":
    main()
