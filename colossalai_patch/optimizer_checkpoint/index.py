"""The index of a checkpoint: a JSON file that names the group file and the shard of each parameter."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError, MissingFileError, NotACheckpointError
from colossalai_patch.optimizer_checkpoint.files import check_name
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId, as_param_id
from colossalai_patch.optimizer_checkpoint.shard import Shard

LARGEST_INDEX = 256 * 2**20  # bytes; a million parameters take some 50 MB
GROUP_FILE_KEY = "param_groups"
FILES_KEY = "files"
SAVED_BY_KEY = "saved_by"


@dataclass(frozen=True)
class Index:
    """What an index file says, with the names of files made into paths.

    Attributes:
        path: the index file.
        group_file: the file that holds the parameter groups.
        weight_map: the shard that holds the state, by param id.
        checksums: the xxh3_64 checksum in hexadecimal by file, for those where it is recorded.
        sizes: the size in bytes by file, for those where it is recorded.
        saved_by: the release that wrote the checkpoint, if that is recorded.
    """

    path: Path
    group_file: Path
    weight_map: dict[ParamId, Path]
    checksums: dict[Path, str] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)
    saved_by: str | None = None

    @property
    def shard_files(self) -> list[Path]:
        """The shards, in the order in which they were saved."""
        return sorted(set(self.weight_map.values()))

    def shards(self) -> list[Shard]:
        """The shards in the same order, with the parameters whose states each one holds."""
        param_ids = defaultdict(set)
        for param_id, file in self.weight_map.items():
            param_ids[file].add(param_id)
        return [Shard(file, frozenset(param_ids[file]), self.checksums.get(file)) for file in self.shard_files]

    def size_of_shards(self) -> int:
        """The bytes of all shards.

        Raises:
            OSError: if one of them cannot be looked at.
        """
        return sum(file.stat().st_size for file in self.shard_files)


def read_index(index_file: str | Path) -> Index:
    """Read the index of an optimizer checkpoint, as ColossalAI's ``CheckpointIndexFile`` writes it.

    Raises:
        NotACheckpointError: if the file is the index of something else than an optimizer.
        CheckpointError: if the file is no index, or names files outside of its directory.
        OSError: if the file cannot be read.
    """
    index_file = Path(index_file)
    content = _read_json(index_file)
    weight_map, metadata = _object(content, "weight_map", index_file), _object(content, "metadata", index_file)
    if GROUP_FILE_KEY not in metadata:
        raise NotACheckpointError(
            f"{index_file} is not the index of an optimizer checkpoint, since its metadata names no group file under "
            f"'{GROUP_FILE_KEY}'. Is it the index of a model checkpoint?"
        )
    folder = index_file.parent
    group_file = check_name(metadata[GROUP_FILE_KEY], folder)
    shard_files = _checked_once(weight_map.values(), folder)
    shard_by_id = {as_param_id(key): shard_files[name] for key, name in weight_map.items()}
    if len(shard_by_id) < len(weight_map):
        raise CheckpointError(f"{index_file} is damaged: it names a parameter twice. Use another checkpoint.")
    checksums, sizes = _recorded(metadata.get(FILES_KEY, {}), index_file)
    return Index(index_file, group_file, shard_by_id, checksums, sizes, metadata.get(SAVED_BY_KEY))


def is_optimizer_index(index_file: Path) -> bool:
    """Whether an index file names a group file; one that cannot be read as an index does not."""
    try:
        content = _read_json(index_file)
    except CheckpointError:
        return False
    metadata = content.get("metadata") if isinstance(content, dict) else None
    return isinstance(metadata, dict) and GROUP_FILE_KEY in metadata


def find_index(checkpoint: str | Path, prefix: str | None = None) -> Path | None:
    """Find the index of an optimizer checkpoint.

    Args:
        checkpoint: a directory, or a file, which is taken for what it is.
        prefix: the prefix that the checkpoint was saved with; needed where a directory holds several.

    Returns:
        The index file, or None if ``checkpoint`` is a file that is no index.

    Raises:
        NotACheckpointError: if there is no such index in the directory.
        CheckpointError: if there is more than one.
        MissingFileError: if there is no such directory or file.
    """
    checkpoint = Path(checkpoint)
    if checkpoint.is_file():
        return checkpoint if _is_index_name(checkpoint.name) else None
    if not checkpoint.is_dir():
        raise MissingFileError(f"{checkpoint} is neither a directory nor a file. Is the path right?")
    files = sorted(checkpoint.glob("*.index*.json"))
    found = [file for file in files if is_optimizer_index(file) or (len(files) == 1 and file.is_file())]
    if prefix:
        found = [file for file in found if file.name.endswith(f".index.{prefix}.json")]
    if len(found) == 1:
        return found[0]
    with_prefix = f" with the prefix {prefix!r}" if prefix else ""
    if not found:
        raise NotACheckpointError(
            f"{checkpoint} holds no index of an optimizer checkpoint{with_prefix}. Is the path right?"
        )
    names = ", ".join(file.name for file in found)
    raise CheckpointError(
        f"{checkpoint} holds the indexes of several optimizer checkpoints{with_prefix}: {names}. Say which one by its "
        "prefix, or give the path of its index."
    )


def named_by_index(path: Path) -> list[Path]:
    """The files that the index of any checkpoint, a model's too, names for its weights; of another file, none."""
    if not _is_index_name(path.name):
        return []
    try:
        names = set(_object(_read_json(path), "weight_map", path).values())
    except (CheckpointError, OSError, TypeError):
        return []  # whoever reads it says why
    return sorted(path.parent / name for name in names if isinstance(name, str))


def size_of_states(checkpoint: str | Path) -> int:
    """The bytes of the files that hold the states of a checkpoint, given its index or its only file.

    Raises:
        CheckpointError, OSError: as ``read_index``.
    """
    path = Path(checkpoint)
    return read_index(path).size_of_shards() if _is_index_name(path.name) else path.stat().st_size


def _is_index_name(name: str) -> bool:
    stem, separator, rest = name.partition(".index")
    return bool(stem and separator) and rest.startswith(".") and rest.endswith(".json")


def _checked_once(names: Iterable[Any], folder: Path) -> dict[str, Path]:
    """Check names, of which many are the same."""
    paths: dict[str, Path] = {}
    for name in names:
        if not isinstance(name, str) or name not in paths:
            paths[name] = check_name(name, folder)
    return paths


def _read_json(index_file: Path) -> Any:
    if not index_file.is_file():
        raise MissingFileError(f"{index_file} is not there, or not a regular file. Is the path right?")
    if index_file.stat().st_size > LARGEST_INDEX:
        raise CheckpointError(f"{index_file} is larger than {LARGEST_INDEX} bytes, too large for an index.")
    try:
        return json.loads(index_file.read_bytes(), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index_file} is not the index of a checkpoint, since it is no JSON: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands in an object twice")
    return content


def _object(content: Any, name: str, index_file: Path) -> dict[str, Any]:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise CheckpointError(f"{index_file} is not the index of a checkpoint, since it has no object '{name}'.")
    return value


def _recorded(files: Any, index_file: Path) -> tuple[dict[Path, str], dict[Path, int]]:
    try:
        checksums = {index_file.parent / name: str(recorded["xxh3"]) for name, recorded in files.items()}
        sizes = {index_file.parent / name: int(recorded["size"]) for name, recorded in files.items()}
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{index_file} is damaged: what it records of its files under '{FILES_KEY}' cannot be read ({error!r})."
        ) from error
    return checksums, sizes
