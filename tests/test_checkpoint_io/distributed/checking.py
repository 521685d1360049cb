"""Checks in several processes, each with an outcome of its own, so that one start of the processes serves many."""

import copy
import faulthandler
import json
import os
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path

import colossalai
import torch
import torch.distributed as dist
from checkpoints import GROUP_FILE, INDEX_FILE, group_file_of
from cpu_accelerator import supply_cpu_accelerator

SECONDS_BEFORE_A_HANG = 60


def main(checks):
    """Run ``checks(folder, *names)``, which yields (name, check), and print the outcome of each as a line of JSON."""
    torch.set_num_threads(1)
    supply_cpu_accelerator()
    colossalai.launch_from_torch(verbose=False)
    for name, check in checks(Path(sys.argv[1]), *sys.argv[2:]):
        faulthandler.dump_traceback_later(SECONDS_BEFORE_A_HANG, exit=True)
        began = time.monotonic()
        errors = _errors_of_all_ranks(check)
        seconds = round(time.monotonic() - began, 2)
        if dist.get_rank() == 0:
            sys.stdout.write(json.dumps({"name": name, "errors": errors, "seconds": seconds}) + "\n")
            sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()
    dist.barrier()
    os._exit(0)  # plugins destroy their process groups when they are collected, in an order of their own


def of_each(checks_of):
    """Make of ``checks_of(topology, folder)`` what ``main`` runs; each topology gets a folder of its own."""

    def checks(folder, *topologies):
        for topology in topologies:
            on_rank_0((folder / topology).mkdir)
            yield from checks_of(topology, folder / topology)

    return checks


def together(function):
    """Call ``function`` on every rank and raise on all if it raises on one, so that no rank goes on alone."""
    errors = _errors_of_all_ranks(function)
    assert not any(errors), errors


def _errors_of_all_ranks(function):
    error = None
    try:
        function()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    errors = [None] * dist.get_world_size()
    dist.all_gather_object(errors, error)
    return errors


def on_rank_0(function, *arguments):
    if dist.get_rank() == 0:
        function(*arguments)
    dist.barrier()


def keep(run):
    """Remember what an optimizer holds; what comes back puts it back, whatever was loaded since."""
    inner, wrapper = run.inner, run.optimizer
    groups, state = inner.param_groups, {param: dict(values) for param, values in inner.state.items()}
    ids = copy.deepcopy(getattr(wrapper, "param_groups_backup", None))

    def put_back():
        inner.param_groups, inner.state = groups, defaultdict(dict, state)
        if ids is not None:
            wrapper.param_groups_backup = ids

    return put_back


def states_in(folder):
    index = json.loads((folder / INDEX_FILE).read_text())
    return {
        param_id: state
        for name in sorted(set(index["weight_map"].values()))
        for param_id, state in torch.load(folder / name, weights_only=True).items()
    }


def groups_in(folder):
    return torch.load(group_file_of(folder), weights_only=True)


def write(folder, groups, states):
    """Write a checkpoint of one shard, whatever it says."""
    folder.mkdir()
    shard = "pytorch_optim-00001.bin"
    torch.save(states, folder / shard)
    torch.save(groups, folder / GROUP_FILE)
    weight_map = {str(param_id): shard for param_id in states}
    index = {"metadata": {"param_groups": GROUP_FILE, "total_size": 0}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def copy_for_this_rank(folder, name):
    own = folder.with_name(f"{name}-rank-{dist.get_rank()}")
    shutil.copytree(folder, own)
    return own
