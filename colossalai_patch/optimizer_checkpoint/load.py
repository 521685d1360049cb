"""Loading an optimizer checkpoint: native does the work, this feeds it."""

import gc
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.checkpoint import open_checkpoint
from colossalai_patch.optimizer_checkpoint.collector import paused_collector
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.in_place import Outlines, give_up_state, rehearsal_of
from colossalai_patch.optimizer_checkpoint.out_of_memory import add_sizes, is_out_of_memory
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamIds
from colossalai_patch.optimizer_checkpoint.progress_bar import progress_bar
from colossalai_patch.optimizer_checkpoint.room import MEGABYTE, shortage, size_of
from colossalai_patch.optimizer_checkpoint.shapes import warn_of_foreign_shapes
from colossalai_patch.optimizer_checkpoint.shard import copy_state, copy_state_to_pinned_memory
from colossalai_patch.optimizer_checkpoint.states import StreamedStates
from colossalai_patch.optimizer_checkpoint.unchanged import unchanged_on_failure

RELEASE_OLD_STATE = "COLOSSALAI_PATCH_RELEASE_OLD_STATE"

# What native and the optimizers of torch raise when a state is not theirs.
OF_A_WRONG_STATE = (AttributeError, LookupError, TypeError, RuntimeError, ArithmeticError)


def load_optimizer_checkpoint(
    optimizer: Optimizer, index_file: str | Path, low_cpu_mem_mode: bool = True, num_threads: int = 1
) -> None:
    """Load a checkpoint, given its index, as ``optimizer.load_state_dict`` would load the same state in one piece.

    The parameter groups and the whole state are replaced, at the very end; when anything fails before, the optimizer
    is as it was. Where memory has no room for two states, the checkpoint is verified, and then replaces the old state
    while it is read. State tensors with the shape of another parameter are loaded, as natively, with one warning.

    Args:
        optimizer: the optimizer.
        index_file: the path of the index; group file and shards are beside it.
        low_cpu_mem_mode: hold at most two shards in host memory beside the finished state; otherwise read further
            ahead, and to pinned memory if native takes one state after the other to a CUDA device.
        num_threads: how many threads copy large states, at least; four do if there are as many cores.

    Raises:
        CheckpointError: if the checkpoint, or a file of it, is not sound.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        OSError: if a file cannot be read.
    """
    checkpoint = open_checkpoint(index_file)
    take = copy_state_to_pinned_memory if not low_cpu_mem_mode and _goes_to_cuda(optimizer) else copy_state
    states = checkpoint.states(low_cpu_mem_mode, num_threads, take)
    load_streamed(optimizer, checkpoint.param_groups, states, index_file)
    warn_of_foreign_shapes(optimizer, checkpoint)


def load_streamed(
    optimizer: Optimizer, param_groups: ParamGroups, states: StreamedStates, checkpoint: str | Path
) -> None:
    """Hand groups and states to ``optimizer.load_state_dict``, which reads the states while it goes through them.

    Args:
        optimizer: the optimizer, or anything with its ``load_state_dict``.
        param_groups: one dict per parameter group, ``params`` being the ids of its parameters in ``states``.
        states: the states; those under ids of no group are kept as natively.
        checkpoint: where they are from, for errors.

    Raises:
        CheckpointError, OSError: as ``states.items()`` and ``load_state_dict``.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        StateReleasedError: if the load failed after the old state had been given up; the optimizer has none.
        MemoryError, OSError, RuntimeError: if there is no memory, as whatever found that out says it.
    """
    with paused_collector(), unchanged_on_failure(optimizer), progress_bar(states.size) as bar:
        states = replace(states, advance=bar.update)
        because = _reason_to_give_up_state(optimizer, states)
        if because is None:
            because = _loaded_beside_the_old_state(optimizer, param_groups, states, checkpoint)
            if because is None:
                return
            gc.collect()  # what the attempt has made
            bar.reset()
        rehearsal = rehearsal_of(optimizer)
        _rehearse(rehearsal, param_groups, states, checkpoint)
        states = give_up_state(optimizer, rehearsal.param_groups, param_groups, states, because)
        _load(optimizer, param_groups, states, checkpoint)


def _reason_to_give_up_state(optimizer: Optimizer, states: StreamedStates) -> str | None:
    """Say why the old state is given up for the new one, if that is known before anything is read."""
    wanted = settings.release_old_state()
    if wanted and optimizer.state and _uses_native(optimizer):
        return f"as {RELEASE_OLD_STATE}=1 asks"
    lacking = shortage(optimizer, states.size_kept) if _may_give_up_state(optimizer) else None
    return lacking and f"since the new one takes {lacking}"


def _loaded_beside_the_old_state(
    optimizer: Optimizer, param_groups: ParamGroups, states: StreamedStates, checkpoint: str | Path
) -> str | None:
    """Load and return None; or say why there is no memory to, the optimizer being as it was."""
    try:
        _load(optimizer, param_groups, states, checkpoint)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        old, new = size_of(optimizer), states.size_kept
        sizes = f"the state of {checkpoint} takes {new // MEGABYTE} MB beside the old one's {old // MEGABYTE} MB"
        if _may_give_up_state(optimizer):
            return f"since there was no memory ({str(error) or 'MemoryError'}): {sizes}"
        add_sizes(error, sizes)
        raise
    return None


def _may_give_up_state(optimizer: Optimizer) -> bool:
    """Whether the old state may be given up unasked; an override or a hook may look at it during a load."""
    return settings.release_old_state() is None and _uses_native(optimizer) and bool(optimizer.state)


def _rehearse(rehearsal: Optimizer, param_groups: ParamGroups, states: StreamedStates, checkpoint: str | Path) -> None:
    """Have a stand-in load the outlines, without the warnings, which the load itself gives."""
    outlines = Outlines(states)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load(rehearsal, param_groups, outlines, checkpoint)


def _load(
    optimizer: Optimizer, param_groups: ParamGroups, states: StreamedStates | Outlines, checkpoint: str | Path
) -> None:
    if _uses_native(optimizer):
        groups = [group | {"params": ParamIds(group["params"])} for group in param_groups]
        state_dict: dict[str, Any] = {"state": states, "param_groups": groups}
    else:
        state_dict = {"state": dict(states.items()), "param_groups": param_groups}
    load_state_dict(optimizer, state_dict, checkpoint)


def load_state_dict(optimizer: Optimizer, state_dict: dict[str, Any], checkpoint: str | Path) -> None:
    """Call ``optimizer.load_state_dict``; when it fails, the optimizer is as it was.

    Native swaps groups and state in before the optimizer's ``__setstate__`` looks at them, which may still fail.

    Raises:
        CheckpointError: if an optimizer without hooks and without a ``load_state_dict`` of its own cannot take them.
        Exception: whatever else ``optimizer.load_state_dict`` raises.
    """
    try:
        with unchanged_on_failure(optimizer):
            optimizer.load_state_dict(state_dict)
    except OF_A_WRONG_STATE as error:
        if is_out_of_memory(error) or not _uses_native(optimizer) or _post_hooks(optimizer):
            raise
        name, reason = type(optimizer).__name__, f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{name} cannot take the state of {checkpoint}: {reason}. Was it saved by another optimizer?"
        ) from error


def _goes_to_cuda(optimizer: Optimizer) -> bool:
    """Whether no state stays on the host, nor waits there for the others."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return _uses_native(optimizer) and all(param.is_cuda for param in params)


def _uses_native(optimizer: Optimizer) -> bool:
    """Whether nobody but native sees the state dict: an override or a pre-hook may take it for a real dict."""
    load_state_dict = getattr(optimizer.load_state_dict, "__func__", None)
    return load_state_dict is Optimizer.load_state_dict and not optimizer._optimizer_load_state_dict_pre_hooks


def _post_hooks(optimizer: Optimizer) -> Any:
    return optimizer._optimizer_load_state_dict_post_hooks
