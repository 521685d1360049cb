"""What is in a checkpoint, without reading more of the states than their outlines and steps."""

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.shard import State
from colossalai_patch.optimizer_checkpoint.source import Source
from colossalai_patch.optimizer_checkpoint.values import dtype_of, form_of, values_of

STEP = "step"


@dataclass(frozen=True)
class ParamSummary:
    """One parameter.

    Attributes:
        param_id: its id.
        group: the number of its group; None if the checkpoint has a state for it and no group.
        state: dtype and shape by the name of the state; empty if it has none.
    """

    param_id: ParamId
    group: int | None
    state: dict[str, str]


@dataclass(frozen=True)
class Summary:
    """What is in a checkpoint.

    Attributes:
        checkpoint: its index, or its only file.
        form: ``sharded`` or ``one file``.
        file_format: ``bin`` or ``safetensors``.
        saved_by: the release that wrote it, if that is recorded.
        groups: one dict of options per parameter group; ``params`` is the number of its parameters.
        params: the parameters, in the order of the groups.
        names: how many states there are, by name and dtype.
        steps: the lowest and the highest step; None if no state has one.
        file_bytes: the size of each file in bytes, by its name.
        warnings: what is unusual.
    """

    checkpoint: str
    form: str
    file_format: str
    saved_by: str | None
    groups: list[dict[str, Any]]
    params: list[ParamSummary]
    names: dict[str, dict[str, int]]
    steps: tuple[float, float] | None
    file_bytes: dict[str, int]
    warnings: list[str]

    @property
    def with_state(self) -> int:
        """How many parameters have a state."""
        return sum(bool(param.state) for param in self.params)

    @property
    def without_state(self) -> int:
        """How many parameters have none."""
        return len(self.params) - self.with_state

    @property
    def total_bytes(self) -> int:
        """The size of all files in bytes, less the index."""
        return sum(self.file_bytes.values())

    def as_json(self) -> dict[str, Any]:
        """Everything but the single parameters."""
        counts = {name: getattr(self, name) for name in ("with_state", "without_state", "total_bytes")}
        return {name: value for name, value in asdict(self).items() if name != "params"} | counts

    def params_as_json(self) -> list[dict[str, Any]]:
        """The single parameters, in the order of the groups."""
        return [asdict(param) for param in self.params]


def summarize(source: Source) -> Summary:
    """Look through a checkpoint.

    Raises:
        CheckpointError: if a shard is damaged.
        OSError: if a shard cannot be read.
    """
    names: dict[str, Counter[str]] = defaultdict(Counter)
    steps: set[float] = set()

    def outline(param_id: ParamId, state: State) -> State:
        found = values_of(state)
        for name, value in found.items():
            names[name][dtype_of(value)] += 1
        steps.update(_step(found))
        return {name: form_of(value) for name, value in found.items()}

    outlines = dict(source.states(outline))
    group_of = {param_id: number for number, group in enumerate(source.param_groups) for param_id in group["params"]}
    ids = dict.fromkeys([*group_of, *outlines])
    range_of_steps = (min(steps), max(steps)) if steps else None
    without_group = len(outlines.keys() - group_of.keys())
    return Summary(
        checkpoint=str(source.path),
        form="one file" if source.index is None else "sharded",
        file_format=source.suffix.removeprefix("."),
        saved_by=None if source.index is None else source.index.saved_by,
        groups=[_options(group) for group in source.param_groups],
        params=[ParamSummary(param_id, group_of.get(param_id), outlines.get(param_id, {})) for param_id in ids],
        names={name: dict(dtypes) for name, dtypes in names.items()},
        steps=range_of_steps,
        file_bytes={path.name: path.stat().st_size for path in source.files},
        warnings=_warnings(range_of_steps, without_group),
    )


def options_that_differ(groups: list[dict[str, Any]]) -> list[str]:
    """The names of the options that do not have the same value in all groups."""
    names = dict.fromkeys(name for group in groups for name in group)
    return [name for name in names if any(group.get(name) != groups[0].get(name) for group in groups)]


def _step(values: State) -> list[float]:
    step = values.get(STEP)
    if isinstance(step, torch.Tensor) and step.numel() == 1:
        step = step.item()
    return [step] if isinstance(step, (int, float)) else []


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in group.items()} | {"params": len(group["params"])}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else form_of(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _warnings(steps: tuple[float, float] | None, without_group: int) -> list[str]:
    warnings = []
    if steps and steps[0] != steps[1]:
        warnings.append(f"the steps of the parameters differ: {steps[0]:g} to {steps[1]:g}")
    if without_group:
        warnings.append(f"{without_group} states belong to no parameter group")
    return warnings
