"""Ways to load an optimizer checkpoint, each measured in a process forked for it from a server that imported torch.

A server reads one request per line from stdin, JSON, and answers with one line. It never computes anything itself, so
that what it forks starts as a fresh process would: without memory to reuse and without threads.
"""

import gc
import json
import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.checkpoint_io import GeneralCheckpointIO
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from colossalai_patch.optimizer_checkpoint.states import FEWEST_THREADS

PAGE = 4096
STATES = ("exp_avg", "exp_avg_sq")


class Model(torch.nn.Module):
    def __init__(self, parameters, numbers):
        super().__init__()
        self.parameters_ = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(numbers)) for _ in range(parameters))


def make_optimizer(parameters, numbers, trained):
    model = Model(parameters, numbers)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters() if trained else ():
        state = {name: torch.rand(numbers) for name in STATES}
        optimizer.state[parameter] = {"step": torch.tensor(1.0)} | state
    return model, optimizer


def load_with_colossalai(model, optimizer, folder, layout):
    CpuAccelerator.synchronize = lambda self, device=None: None  # stock waits for a device, which this one refuses
    GeneralCheckpointIO().load_optimizer(optimizer, str(folder / layout))


def load_one_file(model, optimizer, folder, layout):
    optimizer.load_state_dict(torch.load(folder / "one.pt", weights_only=True))


def load_with_dcp(model, optimizer, folder, layout):
    state_dict = {"optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state_dict, checkpoint_id=folder / "dcp", no_dist=True)
    set_optimizer_state_dict(model, optimizer, state_dict["optimizer"])


def fill_fresh_memory(model, optimizer, folder, layout):
    def filled(parameter):
        return parameter, {name: torch.empty_like(parameter, requires_grad=False).fill_(1.0) for name in STATES}

    with ThreadPoolExecutor(FEWEST_THREADS) as threads:
        state = dict(threads.map(filled, list(model.parameters())))
    optimizer.state.update(state)  # all at once, or the memory of the old state would be filled


LOADERS = {
    "patched": load_with_colossalai,
    "stock": load_with_colossalai,
    "one file": load_one_file,
    "dcp": load_with_dcp,
    "fill": fill_fresh_memory,
}


def touch(optimizer):
    """Write to every page of the state, as the first step after the load will."""
    for state in optimizer.state.values():
        for name in STATES:
            state[name].view(-1)[:: PAGE // state[name].element_size()].add_(1.0)


def save(folder, parameters, numbers, megabytes_of_a_shard):
    model, optimizer = make_optimizer(parameters, numbers, trained=True)
    folder = Path(folder)
    for layout in ("bin", "safetensors"):
        os.environ["COLOSSALAI_PATCH_SAVE_FORMAT"] = layout
        checkpoint = str(folder / layout)
        GeneralCheckpointIO().save_optimizer(optimizer, checkpoint, shard=True, size_per_shard=megabytes_of_a_shard)
    torch.save(optimizer.state_dict(), folder / "one.pt")
    dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id=folder / "dcp", no_dist=True)


def load(contender, folder, layout, parameters, numbers, trained, ready, go):
    model, optimizer = make_optimizer(parameters, numbers, trained)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, read_before = memory("VmRSS"), bytes_read()
    os.write(ready, b".")
    os.read(go, 1)
    began = time.perf_counter()
    LOADERS[contender](model, optimizer, Path(folder), layout)
    touch(optimizer)
    seconds = time.perf_counter() - began
    assert len(optimizer.state) == parameters
    gc.collect()
    return {
        "seconds": seconds,
        "peak": memory("VmHWM") - before,
        "state": memory("VmRSS") - before,
        "shard": max(file.stat().st_size for file in Path(folder, layout).iterdir()),
        "read": bytes_read() - read_before,
    }


def memory(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


def forked(function):
    """Start a process for ``function``; give its id and where its result, as JSON, can be read."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, os.fdopen(reading)
    try:
        os.write(writing, json.dumps(function()).encode())
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def loads_of_ranks(ranks, **request):
    """Load in as many processes at the same time, and give the figures of the slowest."""
    (ready, ready_end), (go_end, go) = os.pipe(), os.pipe()
    loads = [forked(lambda: load(ready=ready_end, go=go_end, **request)) for _ in range(ranks)]
    for _ in loads:
        os.read(ready, 1)
    os.write(go, b"." * ranks)
    results = [json.loads(result.read()) for _, result in loads]
    for process, _ in loads:
        os.waitpid(process, 0)
    for descriptor in (ready, ready_end, go_end, go):
        os.close(descriptor)
    return max(results, key=lambda result: result["seconds"])


def main():
    for line in sys.stdin:
        request = json.loads(line)
        if request.pop("do") == "save":
            process, result = forked(lambda: save(**request))  # noqa: B023
            result.read()
            os.waitpid(process, 0)
            answer = {}
        else:
            answer = loads_of_ranks(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
