"""The way to load where memory has no room for two states: look at all of the checkpoint, then give the old one up."""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint.content import with_tensors
from colossalai_patch.optimizer_checkpoint.old_tensors import tensors_of
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.shard import State
from colossalai_patch.optimizer_checkpoint.states import StreamedStates
from colossalai_patch.optimizer_checkpoint.unchanged import release_state

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outlines:
    """The states of a checkpoint without the numbers of their tensors, each shard being verified on the way.

    Attributes:
        states: the states.
    """

    states: StreamedStates

    def items(self) -> Iterator[tuple[ParamId, State]]:
        """Yield each param id with its state, whose tensors are empty unless they are single numbers.

        Raises:
            CheckpointError: if a shard is damaged, by whichever checksum there is.
            OSError: if a shard cannot be read.
        """
        for map_shard in self.states.shards:
            shard = map_shard()
            shard.verify()
            outlines = {param_id: with_tensors(state, _outline) for param_id, state in shard.states.items()}
            del shard
            yield from outlines.items()


def rehearsal_of(optimizer: Optimizer) -> Optimizer:
    """Make a stand-in for an optimizer, whose ``load_state_dict`` leaves the optimizer itself alone."""
    rehearsal: Optimizer = object.__new__(type(optimizer))
    vars(rehearsal).update(vars(optimizer))
    rehearsal._optimizer_load_state_dict_post_hooks = OrderedDict()
    return rehearsal


def give_up_state(
    optimizer: Optimizer, loaded_groups: ParamGroups, ids: ParamGroups, states: StreamedStates, because: str
) -> StreamedStates:
    """Release the state of an optimizer, and have the tensors of ``states`` take the memory that it had.

    Args:
        optimizer: the optimizer, in the body of ``unchanged_on_failure``.
        loaded_groups: the parameter groups that it is left with if the load fails from now on.
        ids: the parameter groups of the checkpoint.
        states: the states of the checkpoint, which must have been verified.
        because: why, for the log and for errors.
    """
    _logger.warning("The checkpoint was verified and is loaded in place of the optimizer's old state, %s.", because)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    old = tensors_of(release_state(optimizer, loaded_groups, because), params, ids)
    return replace(states, shards=[old.serve(map_shard) for map_shard in states.shards], shards_ahead=0)


def _outline(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.numel() == 1 else torch.empty(0, dtype=tensor.dtype)
