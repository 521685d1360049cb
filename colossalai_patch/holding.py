"""Loading the optimizer of a rank that holds a part of the parameters, or parts of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from torch.optim import Optimizer

from colossalai_patch.optimizer_checkpoint import (
    CheckpointError,
    ParamGroups,
    ParamId,
    State,
    StreamedStates,
    load_streamed,
    open_checkpoint,
    open_optimizer_file,
)
from colossalai_patch.slicing import Part, take_part


@dataclass(frozen=True)
class Holding:
    """What a rank holds of the parameters that the ranks train together.

    Attributes:
        group_ids: for each parameter group the ids of all its parameters, as the plugin recorded them.
        parts: which part of a parameter's states this rank keeps, by the ids of the parameters of its own optimizer.
    """

    group_ids: Sequence[Sequence[int]]
    parts: Mapping[ParamId, Part]

    def groups(self, saved: ParamGroups) -> ParamGroups:
        """The saved groups with the ids of this rank's parameters alone.

        Raises:
            CheckpointError: as ``check_groups``.
        """
        check_groups(saved, self.group_ids)
        return [group | {"params": [key for key in group["params"] if key in self.parts]} for group in saved]

    def keeps_of(self, states: StreamedStates) -> StreamedStates:
        """Have states say which share of them this rank keeps."""
        complete = sum(prod(part.complete) for part in self.parts.values())
        return replace(states, kept=sum(part.size for part in self.parts.values()) / max(1, complete))

    def take(self, param_id: ParamId, state: State) -> State | None:
        """What to keep of a state, copied; None if it is none of this rank's parameters."""
        part = self.parts.get(param_id)
        return None if part is None else take_part(part, state)


def check_groups(saved: ParamGroups, group_ids: Sequence[Iterable[int]]) -> None:
    """Make sure that saved groups are those that a plugin recorded.

    Raises:
        CheckpointError: if they differ in number, or hold other ids.
    """
    if len(saved) != len(group_ids):
        raise CheckpointError(
            f"The checkpoint has {len(saved)} parameter groups, and the optimizer has {len(group_ids)}. "
            "Make the optimizer with the groups that it was saved with."
        )
    for position, (group, ids) in enumerate(zip(saved, group_ids, strict=True)):
        if group["params"] != list(ids):
            raise CheckpointError(
                f"Parameter group {position} of the checkpoint holds {_ids(group['params'])}, and that of the "
                f"optimizer {_ids(list(ids))}. Make the optimizer with the groups that it was saved with; frozen "
                "parameters have ids in the checkpoints of all plugins but LowLevelZeroPlugin."
            )


def load_held_checkpoint(
    optimizer: Optimizer, holding: Holding, index_file: str | Path, low_cpu_mem_mode: bool, num_threads: int
) -> None:
    """Load this rank's part of a checkpoint, given its index, as ``load_optimizer_checkpoint`` loads a whole one.

    Of each shard, a rank reads the parts that it keeps.

    Raises:
        CheckpointError: if the checkpoint is not sound, or does not fit.
        OSError: if a file cannot be read.
    """
    checkpoint = open_checkpoint(index_file)
    groups = holding.groups(checkpoint.param_groups)
    states = checkpoint.states(low_cpu_mem_mode, num_threads, holding.take)
    load_streamed(optimizer, groups, holding.keeps_of(states), index_file)


def load_held_file(optimizer: Optimizer, holding: Holding, path: str | Path) -> None:
    """Load this rank's part of a checkpoint in one file.

    Raises:
        CheckpointError: if the checkpoint is not sound, or does not fit.
        OSError: if the file cannot be read.
    """
    param_groups, states = open_optimizer_file(path, holding.take)
    load_streamed(optimizer, holding.groups(param_groups), holding.keeps_of(states), path)


def _ids(ids: Sequence[ParamId]) -> str:
    return f"{len(ids)} parameters ({ids[0]} to {ids[-1]})" if ids else "no parameter"
