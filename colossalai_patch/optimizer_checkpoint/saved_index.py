"""An index that is being committed: the names of its files, with and without the id of their save."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colossalai_patch.optimizer_checkpoint.checked_file import finish_file

REPLACED_KEY = "replaced"  # in the index: what its commit was to remove, in case that it was killed before
_NUMBER = r"(?:-stage-\d{5}(?:-\d{5})?-shard)?-\d{5}"
_UNIQUE_NAME = re.compile(rf".+-[0-9a-f]{{8}}{_NUMBER}\.\w+")
_NUMBERED_NAME = re.compile(rf"(.+?)({_NUMBER})(\.\w+)")


def unique_name(name: str, save_id: str) -> str:
    """Put the id of a save into the name of a file.

    The name still ends in five digits, those of a group file being zeros: the next save by stock ColossalAI removes
    files that are named so.
    """
    numbered = _NUMBERED_NAME.fullmatch(name)
    if numbered:
        return f"{numbered[1]}-{save_id}{numbered[2]}{numbered[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{stem}-{save_id}-00000.{suffix}"


def has_save_id(name: str) -> bool:
    """Whether a name holds the id of a save, so that no other save has it."""
    return _UNIQUE_NAME.fullmatch(name) is not None


def named_files(index: Any) -> list[str]:
    """The names of the files that belong to a checkpoint, by its index, each once."""
    group_files = [index["metadata"]["param_groups"]] if "param_groups" in index["metadata"] else []
    return list(dict.fromkeys([*group_files, *index["weight_map"].values()]))


def renamed(index: Any, names: Mapping[str, str]) -> Any:
    """Give an index that names its files by what ``names`` says."""
    metadata = index["metadata"] | {
        "files": {names[name]: record for name, record in index["metadata"]["files"].items()}
    }
    if "param_groups" in metadata:
        metadata["param_groups"] = names[metadata["param_groups"]]
    return {"metadata": metadata, "weight_map": {key: names[name] for key, name in index["weight_map"].items()}}


def read_index_file(path: Path) -> Any:
    """Read an index, once more if that fails: on NFS it does (ESTALE) where another machine has replaced the file."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError:
        return json.loads(path.read_bytes())


def write_index_file(path: Path, index: Any) -> None:
    """Write an index and wait until it is on disk."""
    path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    finish_file(path)
