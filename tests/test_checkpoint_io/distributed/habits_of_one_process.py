"""What scripts do beside saving, without a plugin, in a process each: habits_of_one_process.py FOLDER [NAME...]"""

import gc
import os
from pathlib import Path

import torch
from alone import alone, assert_restores, step
from checkpoints import in_order
from colossalai.booster import Booster
from colossalai.checkpoint_io import GeneralCheckpointIO
from colossalai.utils import safetensors
from comparison import assert_same
from forked_ranks import main
from safetensors.torch import load_file
from scripts import (
    KINDS,
    MODEL,
    MODEL_FILE,
    SHARDED,
    content,
    files_below,
    for_each,
    load,
    methods_of,
    named,
    overriding,
    save,
)
from topologies import Run

BACKGROUND = {"at_once": False, "in_the_background": True}


def a_function_of_the_script_stands_for_torch_save(kind, folder):
    run, original, written = alone(), torch.save, []

    def own_save(value, file, *arguments, **options):
        written.append(value)
        original(value, file, *arguments, **options)

    torch.save = own_save
    path = save(run, kind, folder)
    torch.save = original
    assert len(written) == len([name for name in files_below(folder) if name.endswith(".bin")])
    assert_restores(run, kind, path)


def a_function_that_stands_for_torch_save_is_given_paths(kind, folder):
    run, original, names = alone(), torch.save, []

    def own_save(value, path, *arguments, **options):
        names.append(os.path.basename(path))  # noqa: PTH119
        original(value, path, *arguments, **options)

    torch.save = own_save
    save(run, kind, folder)
    torch.save = original
    assert all(name.endswith(".bin") for name in names), names
    assert names


def the_garbage_collector_stays_off(when, folder):
    gc.disable()
    run = alone()
    for kind in SHARDED:  # stock cannot save an optimizer in a file, in the background, that it saved in shards before
        path = save(run, kind, folder, use_async=BACKGROUND[when])
        run.booster.checkpoint_io._sync_io()
        assert not gc.isenabled()
        load(run, kind, path)
        assert not gc.isenabled()


def the_garbage_collector_stays_on(folder):
    run = alone()
    for kind in KINDS:
        load(run, kind, save(run, kind, folder))
        assert gc.isenabled()


def averaged_weights_are_saved_directly(folder):
    averaged, writer = {"a": torch.ones(30, 40), "b": torch.zeros(7, dtype=torch.bfloat16)}, None
    for epoch in range(3):
        if writer is not None:
            writer.synchronize()
        for tensor in averaged.values():
            tensor.add_(epoch)
        writer = safetensors.save(str(folder / "averaged.safetensors"), averaged)
    writer.synchronize()
    assert_same(in_order(load_file(folder / "averaged.safetensors")), averaged)


def averaged_weights_are_saved_without_a_copy(folder):
    megabytes = 256
    averaged = {str(position): torch.ones(2**18 * megabytes // 16) for position in range(16)}
    before = _peak_of_memory()
    safetensors.save(str(folder / "averaged.safetensors"), averaged).synchronize()
    assert _peak_of_memory() - before < megabytes / 2


def _peak_of_memory():
    """Since the last call, in MB."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def a_class_of_the_script_overrides_one_method(kind, folder):
    run = alone()
    for method in methods_of(kind):
        own = overriding(GeneralCheckpointIO, method)
        run.booster.checkpoint_io = own()
        path = save(run, kind, folder)
        expected = content(run, kind)
        step(run)
        load(run, kind, path)
        assert_same(content(run, kind), expected)
        assert own.calls == [method]


def a_second_pair_is_saved_while_the_first_is_pending(kind, folder):
    first = alone()
    second = alone(seed=1, booster=first.booster)
    paths = [save(run, kind, folder / str(position), use_async=True) for position, run in enumerate((first, second))]
    first.booster.checkpoint_io.synchronize()
    first.booster.checkpoint_io._sync_io()
    for run, path in zip((first, second), paths, strict=True):
        assert_restores(run, kind, path)


def a_helper_of_the_script_takes_none(folder):
    run = alone()
    model, optimizer, _, _, scheduler = Booster().boost(run.model, None, None, None, None)
    assert (optimizer, scheduler) == (None, None)
    for name, thing in {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler}.items():
        if thing is not None:
            getattr(run.booster, f"save_{name}")(thing, str(folder / name))
    assert files_below(folder) == ["model"]
    for name in ("model", "optimizer", "lr_scheduler"):
        try:
            getattr(run.booster, f"save_{name}")(None, str(folder / f"none-{name}"))
        except AttributeError:
            continue
        raise AssertionError(f"{name}: None is saved")
    assert files_below(folder) == ["model"]


def a_scheduler_is_saved_and_loaded(folder):
    run = alone()
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    scheduler.step()
    expected = scheduler.state_dict()
    for path in (str(folder / "scheduler"), str(folder / "scheduler.pt")):
        run.booster.save_lr_scheduler(scheduler, path)
        other = torch.optim.lr_scheduler.StepLR(alone().optimizer, 1)
        run.booster.load_lr_scheduler(other, path)
        assert other.state_dict() == expected


def a_booster_has_no_optimizer(kind, folder):
    booster = Booster()
    model, *_ = booster.boost(torch.nn.Linear(4, 5))
    run = Run(booster, model, None)
    path = save(run, kind, folder)
    expected = content(run, kind)
    torch.nn.init.zeros_(model.weight)
    load(run, kind, path)
    assert_same(content(run, kind), expected)


HABITS = {
    **for_each(a_function_of_the_script_stands_for_torch_save, KINDS, ranks=1),
    **for_each(a_function_that_stands_for_torch_save_is_given_paths, KINDS, ranks=1),
    **for_each(the_garbage_collector_stays_off, BACKGROUND, ranks=1),
    **named(the_garbage_collector_stays_on, ranks=1),
    **named(averaged_weights_are_saved_directly, averaged_weights_are_saved_without_a_copy, ranks=1),
    **for_each(a_class_of_the_script_overrides_one_method, KINDS, ranks=1),
    **for_each(a_second_pair_is_saved_while_the_first_is_pending, KINDS, ranks=1),
    **named(a_helper_of_the_script_takes_none, a_scheduler_is_saved_and_loaded, ranks=1),
    **for_each(a_booster_has_no_optimizer, (MODEL, MODEL_FILE), ranks=1),
}


if __name__ == "__main__":
    main(HABITS)
