"""Roll a trained optimizer back to FOLDER with SPARE megabytes more than the process has, and compare: FOLDER SPARE.

A third argument is the error that is expected instead; the optimizer is then as it was.
"""

import copy
import gc
import resource
import sys
from pathlib import Path

import torch
from colossalai.checkpoint_io import GeneralCheckpointIO
from load_under_a_limit import address_space

PARAMETERS, NUMBERS = 25, 2**20  # 200 MiB of state, in tensors of 4 MiB


def make_optimizer(value):
    """An AdamW whose states are ``value`` and what follows it, each tensor another number."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(NUMBERS)) for _ in range(PARAMETERS)])
    for number, parameter in enumerate(optimizer.param_groups[0]["params"], start=1):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(value)),
            "exp_avg": torch.full((NUMBERS,), float(value * number)),
            "exp_avg_sq": torch.full((NUMBERS,), float(value * number + 0.5)),
        }
    return optimizer


def holds(optimizer, value):
    """Whether the states are those of ``make_optimizer(value)``, without memory for them."""
    for number, state in enumerate(optimizer.state.values(), start=1):
        numbers = [float(value), float(value * number), float(value * number + 0.5)]
        found = [(float(state[name].min()), float(state[name].max())) for name in ("step", "exp_avg", "exp_avg_sq")]
        if found != [(number, number) for number in numbers]:
            return False
    return len(optimizer.state) == PARAMETERS


def warm_up(folder):
    """Load once, so that threads and what is imported late were there; the memory is given back."""
    GeneralCheckpointIO().load_optimizer(make_optimizer(3), folder)
    gc.collect()


def limit_to(spare):
    limit = int(address_space() + spare * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(folder, spare, expected_error="NoneType"):
    sound = folder + "-sound"
    warm_up(sound if Path(sound).exists() else folder)
    optimizer = make_optimizer(5)
    lr = optimizer.param_groups[0]["lr"] = 0.125
    groups = copy.deepcopy(optimizer.param_groups[0] | {"params": []})
    limit_to(float(spare))
    error = error_of(GeneralCheckpointIO().load_optimizer, optimizer, folder)
    print(type(error).__name__, error)
    assert type(error).__name__ == expected_error, error
    if error is None:
        assert holds(optimizer, 2)
        assert optimizer.param_groups[0]["lr"] != lr
    else:
        assert holds(optimizer, 5)
        assert optimizer.param_groups[0] | {"params": []} == groups


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
