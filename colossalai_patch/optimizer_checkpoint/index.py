"""The index of a checkpoint: a JSON file that names the group file and the shard of each parameter."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError


@dataclass(frozen=True)
class Index:
    """What an index file says, with the names of files made into paths.

    Attributes:
        group_file: the file that holds the parameter groups.
        weight_map: the shard that holds the state, by param id as text.
    """

    group_file: Path
    weight_map: dict[str, Path]

    @property
    def shard_files(self) -> list[Path]:
        """The shards, in the order in which they were saved."""
        return sorted(set(self.weight_map.values()))

    def shard_of(self, param_id: object) -> Path:
        """The shard that holds the state of ``param_id``."""
        return self.weight_map[str(param_id)]


def read_index(index_file: str | Path) -> Index:
    """Read the index of an optimizer checkpoint, as ColossalAI's ``CheckpointIndexFile`` writes it.

    Raises:
        CheckpointError: if the file is no index, or the index of something else than an optimizer.
        OSError: if the file cannot be read.
    """
    index_file = Path(index_file)
    try:
        content = json.loads(index_file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{index_file} is not the index of a checkpoint, since it is no JSON: {error}") from error
    weight_map, metadata = _object(content, "weight_map", index_file), _object(content, "metadata", index_file)
    if "param_groups" not in metadata:
        raise CheckpointError(
            f"{index_file} is not the index of an optimizer checkpoint, since its metadata names no group file under "
            "'param_groups'. Is it the index of a model checkpoint?"
        )
    if not all(isinstance(name, str) for name in (metadata["param_groups"], *weight_map.values())):
        raise CheckpointError(f"{index_file} is damaged: a file name in it is not a string. Use another checkpoint.")
    folder = index_file.parent
    return Index(folder / metadata["param_groups"], {key: folder / name for key, name in weight_map.items()})


def _object(content: Any, name: str, index_file: Path) -> dict[str, Any]:
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise CheckpointError(f"{index_file} is not the index of a checkpoint, since it has no object '{name}'.")
    return value
