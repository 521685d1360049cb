"""Would ranks of one host load sooner if each read a part of a file and passed it on, instead of reading all of it?

Both ways fill fresh memory of the same size on every rank, from a file in the page cache; they take turns. Prints the
medians of the seconds and of the ratios.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
NUMBERS = 100_000_000
TURNS = 9


def read_all(path):
    return torch.from_file(str(path), size=NUMBERS).clone()


def read_a_part_and_pass_it_on(path):
    mapped, numbers = torch.from_file(str(path), size=NUMBERS), torch.empty(NUMBERS)
    for rank, part in enumerate(numbers.chunk(RANKS)):
        if rank == dist.get_rank():
            part.copy_(mapped.chunk(RANKS)[rank])
        dist.broadcast(part, src=rank)
    return numbers


def seconds(read, path):
    """How long the slowest rank takes."""
    dist.barrier()
    began = time.perf_counter()
    read(path)
    slowest = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


def compare(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    path = Path(folder, "numbers")
    turns = [(seconds(read_all, path), seconds(read_a_part_and_pass_it_on, path)) for _ in range(TURNS + 1)][1:]
    if rank == 0:
        whole, shared = (statistics.median(column) for column in zip(*turns, strict=True))
        low, ratio, high = statistics.quantiles([shared / whole for whole, shared in turns], n=4)
        print(f"{RANKS} ranks, {NUMBERS * 4 / 1e9:.1f} GB, {TURNS} turns: each reads all {whole:.2f} s, ", end="")
        print(f"each reads 1/{RANKS} and passes it on {shared:.2f} s: {ratio:.2f} ({low:.2f} to {high:.2f})")
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=Path.cwd()) as folder:
        torch.rand(NUMBERS).numpy().tofile(Path(folder, "numbers"))
        mp.spawn(compare, (folder,), nprocs=RANKS)


if __name__ == "__main__":
    main()
