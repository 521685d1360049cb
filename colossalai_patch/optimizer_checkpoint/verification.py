"""Whether a checkpoint is sound: every file is looked at, and all that is wrong is told."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.checksum import check_checksum
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, NotACheckpointError
from colossalai_patch.optimizer_checkpoint.files import check_complete, check_file
from colossalai_patch.optimizer_checkpoint.index import Index, find_index, read_index
from colossalai_patch.optimizer_checkpoint.param_groups import read_param_groups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.progress import Progress
from colossalai_patch.optimizer_checkpoint.shard import State, Take, read_shard, take_states
from colossalai_patch.optimizer_checkpoint.single_file import map_optimizer_file
from colossalai_patch.optimizer_checkpoint.values import bytes_of_state, numbers_in, values_of

NUMBERS_AT_ONCE = 2**22
STAGE = "verifying"


@dataclass
class NotFinite:
    """Counts of numbers that are not finite, under one name.

    Attributes:
        nan: how many are not a number.
        infinite: how many are infinite.
        params: how many parameters have such a number.
    """

    nan: int = 0
    infinite: int = 0
    params: int = 0


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        checkpoint: the index, or the only file.
        files: how many files were looked at.
        checksums: how many of them have a recorded checksum.
        problems: what is wrong with the files.
        not_finite: the numbers that are not finite by the name of the state, if values were looked at.
    """

    checkpoint: Path
    files: int = 0
    checksums: int = 0
    problems: list[str] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong: neither with a file, nor, if they were looked at, with a number."""
        return not self.problems and not self.not_finite

    def as_json(self) -> dict[str, Any]:
        """The attributes, after whether the checkpoint is sound."""
        return {"sound": self.sound} | asdict(self) | {"checkpoint": str(self.checkpoint)}


def verify_files(checkpoint: str | Path, prefix: str | None, progress: Progress) -> Verification:
    """Check what the loader checks, and every checksum that is recorded.

    Args:
        checkpoint: a directory, an index file, or the file of an unsharded checkpoint.
        prefix: the prefix that it was saved with, if the directory holds several.
        progress: is told of the bytes that are read.

    Raises:
        NotACheckpointError: if it is something else.
        CheckpointError: if the directory holds several checkpoints.
    """
    return _verify(checkpoint, prefix, progress, lambda param_id, state: None)


def verify_values(checkpoint: str | Path, prefix: str | None, progress: Progress) -> Verification:
    """As ``verify_files``; besides, every number of the states is looked at, and those not finite are counted."""
    not_finite: dict[str, NotFinite] = defaultdict(NotFinite)

    def count(param_id: ParamId, state: State) -> None:
        for name, value in values_of(state).items():
            nan, infinite = _count_not_finite(value)
            if nan or infinite:
                found = not_finite[name]
                found.nan, found.infinite, found.params = found.nan + nan, found.infinite + infinite, found.params + 1

    found = _verify(checkpoint, prefix, progress, count)
    found.not_finite.update(not_finite)
    return found


def _verify(checkpoint: str | Path, prefix: str | None, progress: Progress, look: Take) -> Verification:
    index_file = find_index(checkpoint, prefix)
    if index_file is None:
        return _verify_file(Path(checkpoint), progress, look)
    try:
        index = read_index(index_file)
    except NotACheckpointError:
        raise
    except CheckpointError as error:
        return Verification(index_file, problems=[str(error)])
    return _verify_sharded(index, progress, look)


def _verify_file(path: Path, progress: Progress, look: Take) -> Verification:
    progress.begin(STAGE, path.stat().st_size)
    try:
        take_states(map_optimizer_file(path)["state"], _advancing(look, progress))
    except NotACheckpointError:
        raise
    except CheckpointError as error:
        return Verification(path, files=1, problems=[str(error)])
    return Verification(path, files=1)


def _verify_sharded(index: Index, progress: Progress, look: Take) -> Verification:
    take = _advancing(look, progress)
    reads: dict[Path, Callable[[], Any]] = {index.group_file: partial(read_param_groups, index.group_file)}
    reads |= {shard.path: partial(read_shard, shard, take) for shard in index.shards()}
    progress.begin(STAGE, sum(_size(file) for file in [*reads, *index.checksums]))
    problems = [
        problem
        for file, read in reads.items()
        for problem in _problem(partial(_check_whole, file, index, progress), read)
    ]
    return Verification(index.path, len(reads), len(index.checksums.keys() & reads.keys()), problems)


def _check_whole(file: Path, index: Index, progress: Progress) -> None:
    check_file(file, index.path.parent)
    check_complete(file, index.sizes.get(file))
    if file in index.checksums:
        check_checksum(file, index.checksums[file], progress.advance)


def _problem(*checks: Callable[[], Any]) -> list[str]:
    """Make the checks of one file until one fails."""
    try:
        for check in checks:
            check()
    except (CheckpointError, OSError) as error:
        return [str(error)]
    return []


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _advancing(look: Take, progress: Progress) -> Take:
    """Let ``progress`` follow while ``look`` goes through the states."""

    def look_and_advance(param_id: ParamId, state: State) -> None:
        look(param_id, state)
        progress.advance(bytes_of_state(state))

    return look_and_advance


def _count_not_finite(value: Any) -> tuple[int, int]:
    if isinstance(value, (float, complex)):
        value = torch.tensor(value)
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return 0, 0
    nan, infinite = 0, 0
    for part in numbers_in(value, NUMBERS_AT_ONCE):
        exact = part.float() if part.element_size() == 1 else part
        if not exact.isfinite().all():
            nan, infinite = nan + int(exact.isnan().sum()), infinite + int(exact.isinf().sum())
    return nan, infinite
