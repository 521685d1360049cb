"""A checkpoint written again in another form: streamed, compared with its source, and committed as a save is."""

import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from colossalai_patch.optimizer_checkpoint.checked_file import CheckedFile, FileRecord, finish_file
from colossalai_patch.optimizer_checkpoint.commit import OPTIMIZER, DirectoryTarget
from colossalai_patch.optimizer_checkpoint.comparison import compare
from colossalai_patch.optimizer_checkpoint.content import bytes_of, with_tensors
from colossalai_patch.optimizer_checkpoint.errors import SaveError
from colossalai_patch.optimizer_checkpoint.index import GROUP_FILE_KEY, SAVED_BY_KEY
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN, Progress
from colossalai_patch.optimizer_checkpoint.ranks import ALONE
from colossalai_patch.optimizer_checkpoint.safetensors_metadata import described, key_of
from colossalai_patch.optimizer_checkpoint.save import Save, begin_save
from colossalai_patch.optimizer_checkpoint.shard import State, as_it_is
from colossalai_patch.optimizer_checkpoint.source import Source, open_source
from colossalai_patch.optimizer_checkpoint.targets import FileTarget
from colossalai_patch.optimizer_checkpoint.values import bytes_of_state

BYTES_OF_A_SHARD = 2**30  # as ColossalAI's default of 1024 MB
MEGABYTE = 2**20
PARAM_GROUPS = "param_groups"

States = dict[ParamId, State]
Advance = Callable[[int], object]


@dataclass(frozen=True)
class Format:
    """One of the two formats of files with states, with the names that ColossalAI gives them.

    Attributes:
        suffix: what the names end in.
        shards: what the names of shards begin with.
        index: what the name of the index begins with.
        write_shard: writes states by param id to a path, and tells of the bytes that are written.
        write_whole: writes a state dict to a path, and tells of the bytes that are written.
    """

    suffix: str
    shards: str
    index: str
    write_shard: Callable[[Path, States, Advance], FileRecord]
    write_whole: Callable[[Path, dict[str, Any], Advance], FileRecord]


@dataclass(frozen=True)
class OneFile:
    """An unsharded checkpoint to be written; in the format BIN it is what ``torch.load`` gives as a state dict."""

    file: Path
    format: Format
    prefix: None = None

    @property
    def target(self) -> FileTarget:
        """Where a save commits it."""
        return FileTarget(self.file.resolve())

    def write(self, source: Source, save: Save, path: Path, advance: Advance) -> None:
        """Write the file below ``path``, the stand-in of the target."""
        state_dict = {"state": dict(source.states(as_it_is)), PARAM_GROUPS: source.param_groups}
        _put(save, path, lambda: self.format.write_whole(path, state_dict, advance))


@dataclass(frozen=True)
class Sharded:
    """A sharded checkpoint to be written.

    Attributes:
        directory: where its index will be.
        format: the format of its shards; the group file is a ``.bin``, as ColossalAI writes and reads it.
        shard_bytes: the most bytes of state in a shard, unless one parameter has more.
        prefix: what is added to the names of its files.
    """

    directory: Path
    format: Format
    shard_bytes: int = BYTES_OF_A_SHARD
    prefix: str | None = None

    @property
    def target(self) -> DirectoryTarget:
        """Where a save commits it."""
        return DirectoryTarget(self.directory, OPTIMIZER, self.prefix or "")

    def write(self, source: Source, save: Save, path: Path, advance: Advance) -> None:
        """Write group file, shards and index into ``path``, the stand-in of the target."""
        group_file = path / f"{self._named('pytorch_optim_group')}.bin"
        _put(save, group_file, lambda: _write_torch(group_file, source.param_groups, UNSEEN.advance))
        weight_map: dict[str, str] = {}
        total = 0
        for number, states in enumerate(_cut(source, self.shard_bytes), start=1):
            shard = path / f"{self._named(self.format.shards)}-{number:05d}{self.format.suffix}"
            _put(save, shard, partial(self.format.write_shard, shard, states, advance))
            weight_map |= dict.fromkeys(map(str, states), shard.name)
            total += sum(map(bytes_of_state, states.values()))
        metadata = {GROUP_FILE_KEY: group_file.name, "total_size": total / MEGABYTE}
        if source.index is not None and source.index.saved_by is not None:
            metadata[SAVED_BY_KEY] = source.index.saved_by
        index = {"metadata": metadata, "weight_map": weight_map}
        (path / f"{self._named(self.format.index)}.json").write_text(json.dumps(index), encoding="utf-8")

    def _named(self, name: str) -> str:
        return f"{name}.{self.prefix}" if self.prefix else name


def convert(source: Source, destination: OneFile | Sharded, progress: Progress = UNSEEN) -> None:
    """Write a checkpoint again. What was at the destination is there until the result is found equal to the source.

    Host memory holds little beside pages of the source's mapped files, which the system may drop. A file that only
    torch can read, such as one in its format before 1.6, is read as a whole.

    Args:
        source: the checkpoint to be written.
        destination: in which form, and where; see ``one_file`` and ``sharded``.
        progress: is told of the bytes that were written, and then of those that were compared.

    Raises:
        SaveError: if the result differs from the source, or a file could not be written.
        CheckpointError: if the source is damaged.
        TypeError, ValueError: if the format has no place for a value.
        OSError: if a file cannot be read or written.
    """
    source.check_checksums()  # since what is written gets checksums of its own
    save = begin_save(destination.target, ALONE)

    def write(path: str) -> None:
        progress.begin("writing", source.bytes_of_states)
        destination.write(source, save, Path(path), progress.advance)
        if not compare(source, open_source(path, destination.prefix), progress).equal:
            raise SaveError(f"what was written differs from {source.path}, so nothing was changed")

    save.now(write)


def _put(save: Save, path: Path, write: Callable[[], FileRecord]) -> None:
    save.write_in_background(str(path), write, lambda: None).result()


def _cut(source: Source, shard_bytes: int) -> Iterator[States]:
    states: States = {}
    size = 0
    for param_id, state in source.states(as_it_is):
        state_bytes = bytes_of_state(state)
        if states and size + state_bytes > shard_bytes:
            yield states
            states, size = {}, 0
        states[param_id] = state
        size += state_bytes
    if states:
        yield states


def _write_torch(path: Path, content: Any, advance: Advance) -> FileRecord:
    def fill(file: CheckedFile) -> None:
        torch.save(with_tensors(content, _alone), file)  # type: ignore[arg-type]

    return CheckedFile(path, fill, advance).finish()


def _write_safetensors_shard(path: Path, states: States, advance: Advance) -> FileRecord:
    return _write_safetensors(path, _keyed(states), described(states), advance)


def _write_safetensors_whole(path: Path, state_dict: dict[str, Any], advance: Advance) -> FileRecord:
    values = _keyed(state_dict["state"]) | {PARAM_GROUPS: state_dict[PARAM_GROUPS]}
    return _write_safetensors(path, values, described(state_dict), advance)


def _keyed(states: States) -> dict[str, Any]:
    return {
        key_of(param_id, name): value
        for param_id, state in states.items()
        for name, value in state.items()
        if value is not None
    }


def _write_safetensors(path: Path, values: dict[str, Any], description: dict[str, Any], advance: Advance) -> FileRecord:
    tensors = {key: value for key, value in values.items() if isinstance(value, torch.Tensor)}
    others = {key: value for key, value in values.items() if key not in tensors}
    pickles = {key: _pickled(value) for key, value in others.items()}
    metadata = {"non_tensor_keys": list(others)} | description
    save_file(_apart(tensors) | pickles, path, {key: json.dumps(value) for key, value in metadata.items()})
    record = finish_file(path)
    advance(record.size)
    return record


def _pickled(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give each tensor contiguous memory that no other one has."""
    apart: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for key, tensor in tensors.items():
        own = _alone(tensor.contiguous())
        apart[key] = own.clone() if own.data_ptr() in taken else own
        taken.add(own.data_ptr())
    return apart


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor that is a part of larger memory, the whole of which would be saved."""
    if tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() == bytes_of(tensor):
        return tensor
    return tensor.clone()


BIN = Format(".bin", "pytorch_optim", "pytorch_optim.bin.index", _write_torch, _write_torch)
SAFETENSORS = Format(
    ".safetensors", "optimizer", "optimizer.safetensors.index", _write_safetensors_shard, _write_safetensors_whole
)
FORMATS = {"bin": BIN, "safetensors": SAFETENSORS}


def one_file(file: str | Path) -> OneFile:
    """Describe an unsharded checkpoint, in the format that its suffix says; all but one are ``torch.save``'s."""
    file = Path(file)
    return OneFile(file, SAFETENSORS if file.suffix == SAFETENSORS.suffix else BIN)


def sharded(
    directory: str | Path, source: Source, file_format: str | None, shard_bytes: int | None, prefix: str | None
) -> Sharded:
    """Describe a sharded checkpoint; what is None is as in the source, and ColossalAI's default for ``shard_bytes``."""
    name = file_format or source.suffix.removeprefix(".")
    return Sharded(Path(directory), FORMATS[name], shard_bytes or BYTES_OF_A_SHARD, prefix)
