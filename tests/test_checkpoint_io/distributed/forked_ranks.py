"""Checks on ranks that are forked for each check, so that one that hangs or dies ends alone and the others go on."""

import faulthandler
import functools
import json
import os
import socket
import sys
import time
from pathlib import Path

import colossalai
import forked
import torch
import torch.distributed as dist
from cpu_accelerator import supply_cpu_accelerator
from stock_in_the_background import supply_what_stock_needs

SECONDS_BEFORE_A_HANG = int(os.environ.get("SECONDS_BEFORE_A_HANG", "60"))


def main(checks):
    """Run each of ``checks``, by name (ranks, check), with a folder of its own and print its outcome as a line of JSON.

    The names to run may be given after the folder: FOLDER [NAME...]
    """
    torch.set_num_threads(1)
    supply_cpu_accelerator()
    supply_what_stock_needs()
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(checks)
    for position, name in enumerate(names):
        ranks, check = checks[name]
        of_check = folder / str(position)
        (of_check / "work").mkdir(parents=True)
        began = time.monotonic()
        errors = _errors(check, ranks, of_check)
        seconds = round(time.monotonic() - began, 2)
        sys.stdout.write(json.dumps({"name": name, "errors": errors, "seconds": seconds}) + "\n")


def _errors(check, ranks, folder):
    port = _free_port()
    work = functools.partial(_work, check, ranks, port, folder)
    codes = [forked.exit_code(process) for process in [forked.start(work, rank) for rank in range(ranks)]]
    return [_error_of(folder / str(rank), code) for rank, code in enumerate(codes)]


def _error_of(report, code):
    if report.exists():
        return json.loads(report.read_text())
    return f"hung or ended with {code}: {report.with_suffix('.log').read_text()[-4000:]}"


def _work(check, ranks, port, folder, rank):
    log = (folder / f"{rank}.log").open("w")
    os.dup2(log.fileno(), sys.stderr.fileno())
    os.dup2(log.fileno(), sys.stdout.fileno())
    faulthandler.dump_traceback_later(SECONDS_BEFORE_A_HANG, exit=True)
    error = None
    try:
        if ranks > 1:
            colossalai.launch(rank, ranks, "localhost", port, verbose=False)
        check(folder / "work")
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    unfinished = folder / f"{rank}.tmp"  # a rank may be ended for hanging while it writes
    unfinished.write_text(json.dumps(error))
    unfinished.rename(folder / str(rank))
    if ranks > 1 and error is None:
        dist.barrier()
    os._exit(0)  # plugins destroy their process groups when they are collected, in an order of their own


def _free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]
