"""Loading an optimizer checkpoint: native does the work, this feeds it."""

from pathlib import Path

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.checkpoint import open_checkpoint
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups, ParamIds
from colossalai_patch.optimizer_checkpoint.states import States


def load_optimizer_checkpoint(
    optimizer: Optimizer, index_file: str | Path, low_cpu_mem_mode: bool = True, num_threads: int = 1
) -> None:
    """Load a checkpoint, given its index, as ``optimizer.load_state_dict`` would load the same state in one piece.

    The parameter groups and the whole state are replaced, at the very end; when anything fails before, the optimizer
    is as it was.

    Args:
        optimizer: the optimizer, or anything with its ``load_state_dict``.
        index_file: the path of the index; group file and shards are beside it.
        low_cpu_mem_mode: hold at most two shards in host memory beside the finished state.
        num_threads: how many shards are read at the same time, at least, without ``low_cpu_mem_mode``.

    Raises:
        CheckpointError: if the checkpoint, or a file of it, is not sound.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
        OSError: if a file cannot be read.
    """
    checkpoint = open_checkpoint(index_file)
    load_streamed(optimizer, checkpoint.param_groups, checkpoint.states(low_cpu_mem_mode, num_threads))


def load_streamed(optimizer: Optimizer, param_groups: ParamGroups, states: States) -> None:
    """Hand groups and states to ``optimizer.load_state_dict``, which reads the states while it goes through them.

    Args:
        optimizer: the optimizer, or anything with its ``load_state_dict``.
        param_groups: one dict per parameter group, ``params`` being the ids of its parameters in ``states``.
        states: the states; those under ids of no group are kept as natively.

    Raises:
        CheckpointError, OSError: as ``states.items()``.
        ValueError: as native, if the groups differ from the optimizer's in number or size.
    """
    if _uses_native(optimizer):
        groups = [group | {"params": ParamIds(group["params"])} for group in param_groups]
        optimizer.load_state_dict({"state": states, "param_groups": groups})
    else:
        optimizer.load_state_dict({"state": dict(states.items()), "param_groups": param_groups})


def _uses_native(optimizer: Optimizer) -> bool:
    """Whether nobody but native sees the state dict: an override or a pre-hook may take it for a real dict."""
    load_state_dict = getattr(optimizer.load_state_dict, "__func__", None)
    return load_state_dict is Optimizer.load_state_dict and not optimizer._optimizer_load_state_dict_pre_hooks
