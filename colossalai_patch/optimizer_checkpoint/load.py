"""Loading an optimizer checkpoint: native does the work, this feeds it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.checkpoint import open_checkpoint
from colossalai_patch.optimizer_checkpoint.collector import paused_collector
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, StateReleasedError
from colossalai_patch.optimizer_checkpoint.out_of_memory import add_sizes, is_out_of_memory
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamIds
from colossalai_patch.optimizer_checkpoint.progress_bar import progress_bar
from colossalai_patch.optimizer_checkpoint.shapes import warn_of_foreign_shapes
from colossalai_patch.optimizer_checkpoint.shard import copy_state, copy_state_to_pinned_memory
from colossalai_patch.optimizer_checkpoint.states import StreamedStates

# What native and the optimizers of torch raise when a state is not theirs.
OF_A_WRONG_STATE = (AttributeError, LookupError, TypeError, RuntimeError, ArithmeticError)


def load_optimizer_checkpoint(
    optimizer: Optimizer, index_file: str | Path, low_cpu_mem_mode: bool = True, num_threads: int = 1
) -> None:
    """Load a checkpoint, given its index, as ``optimizer.load_state_dict`` would load the same state in one piece.

    The parameter groups and the whole state are replaced, at the very end; when anything fails before, the optimizer
    is as it was. State tensors with the shape of another parameter are loaded, as natively, with one warning.

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
    """
    with paused_collector(), unchanged_on_failure(optimizer), progress_bar(states.size) as bar:
        if settings.release_old_state() and optimizer.state:
            _release_state(optimizer, param_groups)
        states = replace(states, advance=bar.update)
        if _uses_native(optimizer):
            groups = [group | {"params": ParamIds(group["params"])} for group in param_groups]
            state_dict = {"state": states, "param_groups": groups}
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


@contextmanager
def unchanged_on_failure(optimizer: Optimizer) -> Iterator[None]:
    """Put an optimizer's groups and state back if the body raises. A load makes new ones and leaves these alone.

    Raises:
        StateReleasedError: if the body raised after the state had been released.
        BaseException: what else the body raised.
    """
    before, had_state = dict(vars(optimizer)), bool(optimizer.state)
    try:
        yield
    except BaseException as error:
        vars(optimizer).clear()
        vars(optimizer).update(before)
        released = had_state and not optimizer.state
        if not released or isinstance(error, StateReleasedError) or not isinstance(error, Exception):
            raise
        raise StateReleasedError(
            f"{error} The optimizer now has the checkpoint's parameter groups and no state: its old state was released "
            "before, as COLOSSALAI_PATCH_RELEASE_OLD_STATE=1 asks. Load a sound checkpoint before training on."
        ) from error


def _release_state(optimizer: Optimizer, param_groups: ParamGroups) -> None:
    """Have native take over the groups, which it validates, and drop the state, in place: others refer to both."""
    state, groups = optimizer.state, optimizer.param_groups
    optimizer.load_state_dict({"state": {}, "param_groups": param_groups})
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.clear()
        group.update(loaded)
    state.clear()
    optimizer.state, optimizer.param_groups = state, groups


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
