"""One shard of a checkpoint: the states of some of the parameters."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.checksum import ChecksumByParts
from colossalai_patch.optimizer_checkpoint.content import bytes_of, check_bounds, copied_value
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId, as_param_id
from colossalai_patch.optimizer_checkpoint.safetensors_file import map_safetensors_states
from colossalai_patch.optimizer_checkpoint.torch_file import map_torch_file

State = dict[str, Any]
Take = Callable[[ParamId, State], State | None]

BYTES_OF_A_BATCH = 2**23


@dataclass(frozen=True)
class Shard:
    """A shard as the index describes it.

    Attributes:
        path: the file.
        param_ids: the parameters whose states it holds, by the index.
        checksum: the xxh3_64 checksum of the file in hexadecimal, if it is recorded.
    """

    path: Path
    param_ids: frozenset[ParamId]
    checksum: str | None = None


def no_check(part: float) -> None:
    """Check nothing."""


@dataclass(frozen=True)
class Batch:
    """Some states of a mapped shard.

    Attributes:
        states: the states by param id.
        size: the bytes of their tensors.
        check: makes sure of the part of the file up to here, and with the last batch of all of it.
    """

    states: dict[ParamId, State]
    size: int
    check: Callable[[], None]

    def taken(self, take: Take) -> dict[ParamId, State]:
        """Take what is wanted of the states.

        Raises:
            CheckpointError: if the file is found to be damaged.
            OSError: if the file cannot be read.
        """
        self.check()
        return take_states(self.states, take)


@dataclass(frozen=True)
class MappedShard:
    """A shard whose file is mapped.

    Attributes:
        states: the states by param id, in the order of the shard; their tensors are on the CPU and views of the file.
        check: makes sure of the file up to a part of it, between 0 and 1; at 1, of all of it.
    """

    states: dict[ParamId, State]
    check: Callable[[float], None] = no_check

    def batches(self) -> Iterator[Batch]:
        """Split the states, in order, into batches of ``BYTES_OF_A_BATCH`` or a little more, at least one."""
        groups = list(_in_groups(self.states))
        for number, (size, states) in enumerate(groups, start=1):
            yield Batch(states, size, partial(self.check, number / len(groups)))


def copy_state(param_id: ParamId, state: State) -> State:
    """Take the whole state: a copy in memory of its own, which outlives the mapped file."""
    copied: State = copied_value(state)
    return copied


def read_shard(shard: Shard, take: Take = copy_state) -> dict[ParamId, State]:
    """Read a shard of either format.

    Args:
        shard: the shard.
        take: gets each param id with its state, whose tensors are on the CPU and views of the mapped file, and returns
            what to keep of it, copied, or None to leave it out. Only the pages that it touches are read.

    Returns:
        What ``take`` returned by param id, in the order of the shard.

    Raises:
        CheckpointError, OSError: as ``map_shard``.
    """
    mapped = map_shard(shard, take)
    mapped.check(1)
    return take_states(mapped.states, take)


def map_shard(shard: Shard, take: Take = copy_state) -> MappedShard:
    """Map a shard of either format, for ``take`` to take its states from.

    Args:
        shard: the shard. Its checksum is checked if the whole of it will be read, that is, with ``copy_state``.
        take: what its states are for.

    Raises:
        CheckpointError: if the file is no shard, damaged, holds what cannot be read without running code, or holds
            other parameters than the index says.
        OSError: if the file cannot be read.
    """
    is_safetensors = shard.path.suffix == ".safetensors"
    states = map_safetensors_states(shard.path) if is_safetensors else map_torch_file(shard.path)
    if not isinstance(states, dict) or not all(isinstance(state, dict) for state in states.values()):
        raise CheckpointError(f"{shard.path} is no shard of an optimizer checkpoint: it holds no dict of states.")
    check_bounds(shard.path, states)
    states = {as_param_id(key): state for key, state in states.items()}
    _check_ids(shard, states.keys())
    states = {param_id: states[param_id] for param_id in states if param_id in shard.param_ids}
    if shard.checksum is None or take is not copy_state:
        return MappedShard(states)
    return MappedShard(states, ChecksumByParts(shard.path, shard.checksum).check)


def take_states(states: dict[ParamId, State], take: Take = copy_state) -> dict[ParamId, State]:
    """Take what is wanted of states whose tensors are views of a mapped file."""
    kept = ((param_id, take(param_id, state)) for param_id, state in states.items())
    return {param_id: state for param_id, state in kept if state is not None}


def _check_ids(shard: Shard, param_ids: Set[ParamId]) -> None:
    """The shard has what the index says. It may have more: both ends of a pipeline save a tied parameter.

    A safetensors shard may lack a parameter, since its format has no place for a state without values.
    """
    missing, more = shard.param_ids - param_ids, param_ids - shard.param_ids
    if missing and (more or shard.path.suffix != ".safetensors"):
        raise CheckpointError(
            f"{shard.path} does not hold the state of parameter {min(missing, key=str)}, though the index says so "
            f"({len(missing)} are missing, {len(more)} others are there). Is it a shard of another checkpoint?"
        )


def _in_groups(states: dict[ParamId, State]) -> Iterator[tuple[int, dict[ParamId, State]]]:
    group: dict[ParamId, State] = {}
    size = 0
    for param_id, state in states.items():
        group[param_id] = state
        size += sum(bytes_of(value) for value in state.values() if isinstance(value, torch.Tensor))
        if size >= BYTES_OF_A_BATCH:
            yield size, group
            group, size = {}, 0
    if group or not states:
        yield size, group
