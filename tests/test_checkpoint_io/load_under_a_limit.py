"""Load FOLDER with room for its state and SHARDS shards more than the process has before: FOLDER SHARDS."""

import resource
import sys
from pathlib import Path

import torch

from colossalai_patch.optimizer_checkpoint import load_optimizer_checkpoint, open_checkpoint

PARAMETERS, NUMBERS = 64, 2**19
SLACK = 24 * 2**20  # Python objects, and the stack of a thread


def make_optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(NUMBERS)) for _ in range(PARAMETERS)], foreach=False)


def address_space():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def main(folder, shards):
    index_file = Path(folder, "pytorch_optim.bin.index.json")
    index = open_checkpoint(index_file).index
    load_optimizer_checkpoint(make_optimizer(), index_file)  # so that threads and what is imported late were there once
    optimizer = make_optimizer()
    room = index.size_of_shards() * (1 + float(shards) / len(index.shard_files))
    limit = int(address_space() + room + SLACK)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    load_optimizer_checkpoint(optimizer, index_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
