"""How two checkpoints differ, found parameter by parameter, so that neither need fit into memory."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN, Progress
from colossalai_patch.optimizer_checkpoint.shard import as_it_is
from colossalai_patch.optimizer_checkpoint.source import Source
from colossalai_patch.optimizer_checkpoint.values import bytes_of_state, form_of, numbers_in, values_of

FILES_OPEN_AT_ONCE = 2
NUMBERS_AT_ONCE = 2**20


@dataclass
class Difference:
    """How the values under one name differ.

    Attributes:
        params: how many parameters have different ones.
        absolute: the largest difference of two numbers, without its sign; NaN if one of them is NaN and the other is
            not, else infinite if one of them is infinite.
        relative: the largest of these differences divided by the larger of the two numbers, without its sign; NaN or
            infinite as ``absolute``.
    """

    params: int = 0
    absolute: float = 0.0
    relative: float = 0.0

    def add(self, absolute: float, relative: float) -> None:
        """Count one more parameter, with its largest differences."""
        self.params += 1
        self.absolute = _largest([self.absolute, absolute])
        self.relative = _largest([self.relative, relative])


@dataclass(frozen=True)
class Comparison:
    """How a second checkpoint differs from a first one.

    A state without values and a value None count as missing, since the safetensors format has no place for them.

    Attributes:
        groups: what differs in the parameter groups, one line each.
        only_in_first: the parameters with a state in the first alone.
        only_in_second: those with a state in the second alone.
        unlike: values that are missing in one, or have another type, dtype or shape, one line each.
        values: how numbers of the same type, dtype and shape differ, by name.
        equal_params: how many parameters have equal states.
    """

    groups: list[str]
    only_in_first: list[ParamId]
    only_in_second: list[ParamId]
    unlike: list[str]
    values: dict[str, Difference] = field(default_factory=dict)
    equal_params: int = 0

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.groups or self.only_in_first or self.only_in_second or self.unlike or self.values)

    def as_json(self) -> dict[str, Any]:
        """The attributes, after whether the two are equal."""
        return {"equal": self.equal} | asdict(self)


def compare(first: Source, second: Source, progress: Progress = UNSEEN) -> Comparison:
    """Compare groups and states of two checkpoints, of whatever formats and shard sizes.

    At most two files of each are open at a time. Numbers are equal if they have the same value, and NaN equals NaN.

    Args:
        first: the one checkpoint.
        second: the other one.
        progress: is told of the bytes of both that were compared.

    Raises:
        CheckpointError: if a file is damaged.
        OSError: if a file cannot be read.
    """
    progress.begin("comparing", first.bytes_of_states + second.bytes_of_states)
    values: dict[str, Difference] = defaultdict(Difference)
    only_in_first, unlike, equal, in_both = [], [], 0, set()
    states_of_second = _StatesById(second)
    for param_id, state in first.states(as_it_is):
        ours, theirs = _present(state), states_of_second.values(param_id)
        progress.advance(bytes_of_state(ours) + bytes_of_state(theirs))
        if not ours:
            continue
        if not theirs:
            only_in_first.append(param_id)
            continue
        in_both.add(param_id)
        lines = [f"parameter {param_id}: {line}" for line in _unlike(ours, theirs)]
        different = list(_different(ours, theirs))
        for name, absolute, relative in different:
            values[name].add(absolute, relative)
        unlike += lines
        equal += not (lines or different)
    others = [param_id for param_id in states_of_second.ids() if param_id not in in_both]
    only_in_second = [param_id for param_id in others if states_of_second.values(param_id)]
    groups = list(_group_differences(first.param_groups, second.param_groups))
    return Comparison(groups, only_in_first, only_in_second, unlike, dict(values), equal)


class _StatesById:
    """The states of a checkpoint by param id, of which the files last used stay open."""

    def __init__(self, source: Source) -> None:
        self._piece_of = {param_id: piece for piece in source.pieces for param_id in piece.param_ids}
        self._read = lru_cache(FILES_OPEN_AT_ONCE)(lambda piece: piece.read(as_it_is))

    def ids(self) -> Iterable[ParamId]:
        return self._piece_of

    def values(self, param_id: ParamId) -> dict[str, Any]:
        if param_id not in self._piece_of:
            return {}
        return _present(self._read(self._piece_of[param_id]).get(param_id, {}))


def _present(state: Any) -> dict[str, Any]:
    return {name: value for name, value in values_of(state).items() if value is not None}


def _unlike(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*ours, *theirs]):
        form, other = (form_of(values[name]) if name in values else "missing" for values in (ours, theirs))
        if form != other:
            yield f"{name} is {form} / {other}"
        elif not _has_numbers(ours[name]) and ours[name] != theirs[name]:
            yield f"{name} is {ours[name]!r:.40} / {theirs[name]!r:.40}"


def _different(ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield name, largest absolute and largest relative difference of the numbers that differ."""
    for name, value in ours.items():
        if not _has_numbers(value) or name not in theirs or form_of(value) != form_of(theirs[name]):
            continue
        pairs = zip(_numbers(value), _numbers(theirs[name]), strict=True)
        differences = [difference for pair in pairs if (difference := _largest_difference(*pair)) is not None]
        if differences:
            absolute, relative = zip(*differences, strict=True)
            yield name, _largest(absolute), _largest(relative)


def _has_numbers(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, int, float, complex))


def _numbers(value: Any) -> Iterator[torch.Tensor]:
    return numbers_in(value if isinstance(value, torch.Tensor) else torch.tensor(value), NUMBERS_AT_ONCE)


def _largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float] | None:
    """Give the largest absolute and relative difference, or None if all are equal."""
    if torch.equal(_bits(ours), _bits(theirs)):  # many times sooner than the numbers, and mostly so
        return None
    wide = torch.complex128 if ours.is_complex() else torch.float64
    if ours.is_complex() or ours.is_floating_point():
        ours, theirs = ours.to(wide), theirs.to(wide)
    different = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    if not different.any():
        return None
    ours, theirs = ours[different].to(wide), theirs[different].to(wide)
    absolute = (ours - theirs).abs()
    relative = absolute / torch.maximum(ours.abs(), theirs.abs())
    return float(absolute.max()), float(relative.where(absolute.isfinite(), absolute).max())


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.contiguous().view(torch.uint8)


def _largest(differences: Sequence[float]) -> float:
    """Give the largest, which is NaN if any is; ``max`` would depend on their order."""
    return float(torch.tensor(differences, dtype=torch.float64).max())


def _group_differences(ours: ParamGroups, theirs: ParamGroups) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"{len(ours)} groups / {len(theirs)} groups"
    for number, (group, other) in enumerate(zip(ours, theirs, strict=False)):
        if group["params"] != other["params"]:
            yield f"group {number}: other parameters, {len(group['params'])} / {len(other['params'])}"
        for name in dict.fromkeys([*group, *other]):
            if name != "params" and not _same_option(group.get(name), other.get(name)):
                yield f"group {number}: {name} is {group.get(name)!r} / {other.get(name)!r}"


def _same_option(ours: Any, theirs: Any) -> bool:
    values, others = values_of({"": ours}), values_of({"": theirs})
    return not list(_unlike(values, others)) and not list(_different(values, others))
