"""One shard of a checkpoint: the states of some of the parameters."""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.as_saved import check_as_saved
from colossalai_patch.optimizer_checkpoint.checksum import ChecksumOfMapping, check_checksum
from colossalai_patch.optimizer_checkpoint.content import bytes_of, check_bounds, copied_value, unheeded
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile, map_file
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


@dataclass(frozen=True)
class Batch:
    """Some states of a mapped shard.

    Attributes:
        size: the bytes of their tensors.
        params: how many parameters' they are.
        taken: takes what is wanted of them; it raises ``CheckpointError`` if it finds the file to be damaged.
    """

    size: int
    params: int
    taken: Callable[[], dict[ParamId, State]]


def unchecked() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class MappedShard:
    """A shard whose file is mapped.

    Attributes:
        states: the states by param id, in the order of the shard; their tensors are on the CPU, and views of the file
            unless torch had to read it.
        take: takes what is wanted of a state.
        finish: makes sure of the file when all states are taken; before, they are not known to be what was saved.
        verify: makes sure of the file at once, by whichever checksum there is.
    """

    states: dict[ParamId, State]
    take: Take
    finish: Callable[[], None] = unchecked
    verify: Callable[[], object] = unchecked

    def batches(self) -> Iterator[Batch]:
        """Split the states, in order, into batches of ``BYTES_OF_A_BATCH`` or a little more; the last one finishes."""
        for size, states in _in_groups(self.states):
            yield Batch(size, len(states), partial(take_states, states, self.take))
        yield Batch(0, 0, partial(_finished, self.finish))


@dataclass(frozen=True)
class CopyState:
    """Takes the whole state, in memory of its own, which outlives the mapped file.

    Attributes:
        empty_like: gives the memory that a large tensor is copied to.
        before_reading: see ``copied_value``.
    """

    empty_like: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like
    before_reading: Callable[[int], object] = unheeded

    def __call__(self, param_id: ParamId, state: State) -> State:
        """Copy a state."""
        copied: State = self.copied(state)
        return copied

    def copied(self, value: Any) -> Any:
        """Copy a state, or a value of it."""
        return copied_value(value, self.before_reading, self.empty_like)


def as_it_is(param_id: ParamId, state: State) -> State:
    """Take a state as it is: what is a view of the mapped file is read when it is used."""
    return state


def pinned_like(tensor: torch.Tensor) -> torch.Tensor:
    """Give memory that a device copies from by itself, if there is more of it; torch's allocator uses it again."""
    try:
        return torch.empty_like(tensor, pin_memory=True)
    except RuntimeError:
        return torch.empty_like(tensor)


copy_state = CopyState()
copy_state_to_pinned_memory = CopyState(pinned_like)


def without_needless_copy(take: Take, are_views: bool) -> Take:
    """What does the same as ``take``; tensors that are no views of a file have memory of their own already."""
    return take if are_views or not isinstance(take, CopyState) else as_it_is


def read_shard(shard: Shard, take: Take = copy_state) -> dict[ParamId, State]:
    """Read a shard of either format.

    Args:
        shard: the shard.
        take: gets each param id with its state, whose tensors are on the CPU and may be views of the mapped file, and
            returns what to keep of it, copied, or None to leave it out. Only the pages that it touches are read.

    Returns:
        What ``take`` returned by param id, in the order of the shard.

    Raises:
        CheckpointError, OSError: as ``map_shard``.
    """
    mapped = map_shard(shard, take)
    states = take_states(mapped.states, mapped.take)
    mapped.finish()
    return states


def map_shard(shard: Shard, take: Take = copy_state) -> MappedShard:
    """Map a shard of either format, for ``take`` to take its states from.

    Args:
        shard: the shard. Its checksum is taken if the whole of it will be read, that is, with a ``CopyState``.
        take: takes what is wanted of a state.

    Raises:
        CheckpointError: if the file is no shard, damaged as far as can be told before all of it is read, holds what
            cannot be read without running code, or holds other parameters than the index says.
        OSError: if the file cannot be read.
    """
    checksum = shard.checksum if isinstance(take, CopyState) else None
    if checksum is not None and settings.trust_pickle():
        check_checksum(shard.path, checksum)
        checksum = None
    file = map_file(shard.path)
    try:
        states, are_views = _states(shard, file)
    except CheckpointError:
        if checksum is not None:
            check_checksum(shard.path, checksum)  # says more
        raise
    take = without_needless_copy(take, are_views)
    verify = partial(check_as_saved, shard.path, shard.checksum, mapped=file)
    if checksum is None:
        return MappedShard(states, take, verify=verify)
    checked = ChecksumOfMapping(file, checksum)
    if isinstance(take, CopyState):
        take = replace(take, before_reading=checked.go_on)
    return MappedShard(states, take, checked.finish, verify)


def take_states(states: dict[ParamId, State], take: Take = copy_state) -> dict[ParamId, State]:
    """Take what is wanted of states whose tensors may be views of a mapped file."""
    kept = ((param_id, take(param_id, state)) for param_id, state in states.items())
    return {param_id: state for param_id, state in kept if state is not None}


def _states(shard: Shard, file: MappedFile) -> tuple[dict[ParamId, State], bool]:
    """The states that the index speaks of, and whether their tensors are views of the mapped file."""
    is_safetensors = shard.path.suffix == ".safetensors"
    states, are_views = (map_safetensors_states(file), True) if is_safetensors else map_torch_file(file)
    if not isinstance(states, dict) or not all(isinstance(state, dict) for state in states.values()):
        raise CheckpointError(f"{shard.path} is no shard of an optimizer checkpoint: it holds no dict of states.")
    check_bounds(shard.path, states)
    states = {as_param_id(key): state for key, state in states.items()}
    _check_ids(shard, states.keys())
    return {param_id: states[param_id] for param_id in states if param_id in shard.param_ids}, are_views


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


def _finished(finish: Callable[[], None]) -> dict[ParamId, State]:
    finish()
    return {}


def _in_groups(states: dict[ParamId, State]) -> Iterator[tuple[int, dict[ParamId, State]]]:
    group: dict[ParamId, State] = {}
    size = 0
    for param_id, state in states.items():
        group[param_id] = state
        size += sum(bytes_of(value) for value in state.values() if isinstance(value, torch.Tensor))
        if size >= BYTES_OF_A_BATCH:
            yield size, group
            group, size = {}, 0
    if group:
        yield size, group
