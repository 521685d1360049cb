"""What the README's table says of ColossalAI with the patch on and off: prints the outcome of each row as JSON.

COLOSSALAI_PATCH=off python tests/claims.py
python tests/claims.py
"""

import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from checkpoints import save_safetensors
from colossalai.accelerator.cpu_accelerator import CpuAccelerator
from colossalai.checkpoint_io import GeneralCheckpointIO
from colossalai.interface import OptimizerWrapper
from crafted_pickles import CODE
from forked import exit_code, result_of, start
from numbered_states import MEGABYTES_OF_A_SHARD, make_optimizer, saved_number, set_number
from safetensors.torch import load_file, save_file


def supply_what_stock_waits_for():
    """Stock cannot load on a CPU, and what it does after that would be hidden."""
    CpuAccelerator.synchronize = lambda self, device=None: None


def optimizer_of(number):
    optimizer = make_optimizer()
    set_number(optimizer, number)
    return optimizer


def save(number, folder, **options):
    GeneralCheckpointIO().save_optimizer(
        OptimizerWrapper(optimizer_of(number)), str(folder), shard=True, size_per_shard=MEGABYTES_OF_A_SHARD, **options
    )


def load(optimizer, folder):
    GeneralCheckpointIO().load_optimizer(optimizer, str(folder))


def momentum_after_a_rollback(folder):
    parameter = torch.nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)

    def step():
        parameter.grad = torch.ones(())
        optimizer.step()

    GeneralCheckpointIO().save_optimizer(OptimizerWrapper(optimizer), str(folder), shard=True)
    step()
    load(optimizer, folder)
    torch.nn.init.ones_(parameter)
    step()
    return round(parameter.item(), 2)


def a_truncated_shard(folder):
    save(1, folder)
    shard = max(folder.glob("pytorch_optim-*.bin"))
    os.truncate(shard, shard.stat().st_size // 2)
    optimizer = optimizer_of(3)
    try:
        load(optimizer, folder)
    except Exception:
        numbers = {group["lr"] for group in optimizer.param_groups}
        numbers |= {float(state["exp_avg"].max()) for state in optimizer.state.values()}
        return "optimizer unchanged" if numbers == {3.0} else "optimizer changed in part"
    return "loaded"


def code_in_a_shard(folder):
    folder.mkdir()
    save_safetensors(optimizer_of(1), folder)
    canary, shard = folder / "canary", min(folder.glob("pytorch_optim-*.safetensors"))
    tensors = load_file(shard)
    (key,) = [key for key in tensors if key.endswith(".step")]
    tensors[key] = torch.frombuffer(bytearray(CODE["builtins.exec"](canary)), dtype=torch.uint8)
    save_file(tensors, shard, metadata={"non_tensor_keys": json.dumps([key])})
    with suppress(Exception):
        load(make_optimizer(), folder)
    return "the code ran" if canary.exists() else "refused"


def a_kill_while_saving(folder):
    save(1, folder)

    def save_and_be_killed():
        saved, torch_save = [], torch.save

        def killing(*arguments, **options):
            if len(saved) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            saved.append(torch_save(*arguments, **options))

        torch.save = killing
        save(2, folder)

    exit_code(start(save_and_be_killed))
    number = result_of(saved_number, folder)
    if number == 1:
        return "the old checkpoint"
    return "a mixture of both" if "holds a mixture of" in str(number) else repr(number)


def a_save_over_a_loaded_file(folder):
    folder.mkdir()
    save_safetensors(optimizer_of(1), folder)

    def load_and_train_on():
        optimizer = make_optimizer()
        load(optimizer, folder)
        for shard in folder.glob("*.safetensors"):
            os.truncate(shard, 0)
        assert all(float(state["exp_avg"].max()) == 1 for state in optimizer.state.values())

    code = exit_code(start(load_and_train_on))
    return "the process trains on" if code == 0 else f"the process dies of {signal.Signals(-code).name}"


def an_asynchronous_save(folder):
    try:
        save(1, folder, use_async=True)
    except Exception as error:
        return type(error).__name__
    return "saved"


def a_load_without_a_device(folder):
    save(1, folder)
    try:
        load(make_optimizer(), folder)
    except Exception as error:
        return type(error).__name__
    return "loaded"


CLAIMS = (
    a_load_without_a_device,
    momentum_after_a_rollback,
    a_truncated_shard,
    a_kill_while_saving,
    a_save_over_a_loaded_file,
    code_in_a_shard,
    an_asynchronous_save,
)


def outcome_of(claim, folder):
    if claim is not a_load_without_a_device:
        supply_what_stock_waits_for()
    return claim(folder)


def main():
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as parent:
        outcomes = {claim.__name__: result_of(outcome_of, claim, Path(parent, claim.__name__)) for claim in CLAIMS}
    sys.stdout.write(json.dumps(outcomes, default=repr, indent=2) + "\n")


if __name__ == "__main__":
    main()
