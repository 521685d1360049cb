"""Load checkpoints with stock ColossalAI, then save over the sharded ones: stock_loads.py CHECKPOINT...

Run with COLOSSALAI_PATCH=off. Prints what is in each checkpoint before and after, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.checkpoint_io import GeneralCheckpointIO
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, set_number


def loaded_values(checkpoint):
    """All values in the states of an optimizer, and how many states; or in a model."""
    if "model" in checkpoint.name:
        model = torch.nn.Linear(30, 40)
        GeneralCheckpointIO().load_model(model, str(checkpoint))
        return sorted({value for parameter in model.parameters() for value in parameter.unique().tolist()})
    optimizer = make_optimizer()
    GeneralCheckpointIO().load_optimizer(optimizer, str(checkpoint))
    values = {value for state in optimizer.state.values() for value in state["exp_avg"].unique().tolist()}
    return [*sorted(values | {optimizer.param_groups[0]["lr"]}), len(optimizer.state)]


def files_after_a_save(checkpoint):
    for path in checkpoint.glob("*.index.json"):
        path.unlink()
    optimizer = make_optimizer()
    set_number(optimizer, 9)
    GeneralCheckpointIO().save_optimizer(
        optimizer, str(checkpoint), shard=True, size_per_shard=MEGABYTES_OF_A_SHARD, use_async=False
    )
    return sorted(path.name for path in checkpoint.iterdir())


def main():
    CpuAccelerator.synchronize = lambda self, device=None: None  # the release's raises: a CPU is not waited for
    checkpoints = [Path(argument) for argument in sys.argv[1:]]
    loaded = {path.name: loaded_values(path) for path in checkpoints}
    files = {path.name: files_after_a_save(path) for path in checkpoints if path.name == "bin"}
    sys.stdout.write(json.dumps({"loaded": loaded, "files": files}) + "\n")


if __name__ == "__main__":
    main()
