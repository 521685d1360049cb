"""A checkpoint in either form, sharded or one file, to go through file by file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from colossalai_patch.optimizer_checkpoint.as_saved import check_as_saved
from colossalai_patch.optimizer_checkpoint.checkpoint import open_checkpoint
from colossalai_patch.optimizer_checkpoint.index import Index, find_index
from colossalai_patch.optimizer_checkpoint.param_groups import ParamGroups
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId
from colossalai_patch.optimizer_checkpoint.shard import State, Take, read_shard, take_states
from colossalai_patch.optimizer_checkpoint.single_file import map_optimizer_file


@dataclass(frozen=True)
class Piece:
    """The states in one file.

    Attributes:
        path: the file.
        param_ids: whose states it holds.
        read: gives what its argument takes of each state, by param id; see ``read_shard``.
    """

    path: Path
    param_ids: frozenset[ParamId]
    read: Callable[[Take], dict[ParamId, State]]


@dataclass(frozen=True)
class Source:
    """An opened checkpoint, of which no state is read yet.

    Attributes:
        path: its index, or its only file.
        index: what the index says; None if it is one file.
        param_groups: one dict per parameter group, ``params`` being a list of param ids.
        pieces: its states, file by file.
    """

    path: Path
    index: Index | None
    param_groups: ParamGroups
    pieces: tuple[Piece, ...]

    @property
    def files(self) -> list[Path]:
        """The files that make up the checkpoint, less the index."""
        group_files = [] if self.index is None else [self.index.group_file]
        return [*group_files, *(piece.path for piece in self.pieces)]

    @property
    def suffix(self) -> str:
        """The suffix of the files that hold states: ``.safetensors``, or ``.bin`` for every other."""
        return ".safetensors" if any(piece.path.suffix == ".safetensors" for piece in self.pieces) else ".bin"

    @property
    def bytes_of_states(self) -> int:
        """The size of the files that hold states."""
        return sum(piece.path.stat().st_size for piece in self.pieces)

    def states(self, take: Take) -> Iterator[tuple[ParamId, State]]:
        """Yield what ``take`` keeps of each state, reading one file after the other."""
        for piece in self.pieces:
            yield from piece.read(take).items()

    def check_checksums(self) -> None:
        """Make sure that all files are as they were saved, where a checksum tells.

        Raises:
            CheckpointError: if one is not.
            OSError: if one cannot be read.
        """
        checksums = {} if self.index is None else self.index.checksums
        for file in self.files:
            check_as_saved(file, checksums.get(file))


def open_source(checkpoint: str | Path, prefix: str | None = None) -> Source:
    """Open a checkpoint: a directory, an index file, or the file of an unsharded checkpoint.

    Args:
        checkpoint: where it is.
        prefix: the prefix that it was saved with, if the directory holds several.

    Raises:
        CheckpointError: if there is none, or it is not sound as far as can be told without reading the states.
        OSError: if a file cannot be read.
    """
    index_file = find_index(checkpoint, prefix)
    if index_file is None:
        return _open_file(Path(checkpoint))
    opened = open_checkpoint(index_file)
    pieces = (Piece(shard.path, shard.param_ids, partial(read_shard, shard)) for shard in opened.index.shards())
    return Source(index_file, opened.index, opened.param_groups, tuple(pieces))


def _open_file(path: Path) -> Source:
    state_dict = map_optimizer_file(path)
    states = state_dict["state"]
    piece = Piece(path, frozenset(states), partial(take_states, states))
    return Source(path, None, state_dict["param_groups"], (piece,))
