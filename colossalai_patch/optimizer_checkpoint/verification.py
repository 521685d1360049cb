"""Whether a checkpoint is sound: every file is looked at, and all that is wrong is told."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.as_saved import check_as_saved
from colossalai_patch.optimizer_checkpoint.consistent import read_whole
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, MissingFileError, NotACheckpointError
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


@dataclass
class Verification:
    """What was found.

    Attributes:
        checkpoint: the index, or the only file.
        files: how many files were looked at: all that the checkpoint consists of but the index, or that one, if it is
            damaged.
        missing: how many of them are not there.
        without_checksum: how many of them have nothing to be compared with, so that a changed value cannot be found.
        problems: what is wrong with the files, a line for each that is not sound.
        not_finite: the numbers that are not finite by the name of the state, if values were looked at.
    """

    checkpoint: Path
    files: int = 0
    missing: int = 0
    without_checksum: int = 0
    problems: list[str] = field(default_factory=list)
    not_finite: dict[str, NotFinite] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong: neither with a file, nor, if they were looked at, with a number."""
        return not self.problems and not self.not_finite

    @property
    def damaged(self) -> int:
        """How many files are there, and not sound."""
        return len(self.problems) - self.missing

    def as_json(self) -> dict[str, Any]:
        """The attributes, after whether the checkpoint is sound."""
        also = {"checkpoint": str(self.checkpoint), "damaged": self.damaged}
        return {"sound": self.sound} | asdict(self) | also


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
    verify = partial(_verify, checkpoint, prefix, progress, lambda param_id, state: None)
    return _of_one_save(verify, checkpoint)


def verify_values(checkpoint: str | Path, prefix: str | None, progress: Progress) -> Verification:
    """As ``verify_files``; besides, every number of the states is looked at, and those not finite are counted."""
    return _of_one_save(partial(_verify_values, checkpoint, prefix, progress), checkpoint)


class _NotSoundError(Exception):
    """Has a checkpoint read again if it was replaced meanwhile, which may be all that is wrong with it."""

    def __init__(self, found: Verification) -> None:
        super().__init__(*found.problems)
        self.found = found


def _of_one_save(verify: Callable[[], Verification], checkpoint: str | Path) -> Verification:
    def sound() -> Verification:
        found = verify()
        if found.problems:
            raise _NotSoundError(found)
        return found

    try:
        return read_whole(sound, checkpoint)
    except _NotSoundError as error:
        return error.found


def _verify_values(checkpoint: str | Path, prefix: str | None, progress: Progress) -> Verification:
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
    found = Verification(index_file)
    with _counted(found):
        return _verify_sharded(read_index(index_file), progress, look)
    return found


def _verify_file(path: Path, progress: Progress, look: Take) -> Verification:
    _begin([path], progress)
    found = Verification(path)
    with _counted(found):
        _compare(found, path, None, progress)
        take_states(map_optimizer_file(path)["state"], _advancing(look, progress))
    return found


def _verify_sharded(index: Index, progress: Progress, look: Take) -> Verification:
    take = _advancing(look, progress)
    reads: dict[Path, Callable[[], Any]] = {index.group_file: partial(read_param_groups, index.group_file)}
    reads |= {shard.path: partial(read_shard, shard, take) for shard in index.shards()}
    _begin(reads, progress)
    found = Verification(index.path)
    for file, read in reads.items():
        with _counted(found):
            check_file(file, index.path.parent)
            check_complete(file, index.sizes.get(file))
            _compare(found, file, index.checksums.get(file), progress)
            read()
    return found


@contextmanager
def _counted(found: Verification) -> Iterator[None]:
    """Count a file, and what turns out to be wrong with it."""
    found.files += 1
    try:
        yield
    except NotACheckpointError:
        raise
    except (CheckpointError, OSError) as error:
        found.missing += isinstance(error, MissingFileError)
        found.problems.append(str(error))


def _compare(found: Verification, file: Path, recorded: str | None, progress: Progress) -> None:
    if not check_as_saved(file, recorded, progress.advance):
        found.without_checksum += 1
        progress.advance(_size(file))


def _begin(files: Iterable[Path], progress: Progress) -> None:
    """Every file is compared with its checksum, and then read."""
    progress.begin(STAGE, 2 * sum(_size(file) for file in files))


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
