"""Optimizer states in the safetensors format, as ColossalAI's async saves write them.

The state ``NAME`` of the parameter ``ID`` is the tensor ``state.ID.NAME``. What is no tensor is a uint8 tensor that
holds a pickle, listed under ``non_tensor_keys`` in the metadata of the header; where ``plain_values`` there holds the
same value as JSON, the pickle is not looked at. A file that is a whole checkpoint has ``param_groups`` as well.
"""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from colossalai_patch.optimizer_checkpoint import plain_values
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile
from colossalai_patch.optimizer_checkpoint.out_of_memory import is_out_of_memory
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId, as_param_id
from colossalai_patch.optimizer_checkpoint.pickled_values import unpickle_plain
from colossalai_patch.optimizer_checkpoint.safetensors_tensors import MappedTensors

OF_A_DAMAGED_FILE = (
    *(SafetensorError, pickle.UnpicklingError, RecursionError),
    *(AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)
PARAM_GROUPS = "param_groups"


def map_safetensors_states(file: MappedFile) -> dict[ParamId, dict[str, Any]]:
    """Give the states in a safetensors shard by param id; the tensors are views of the mapped file.

    Raises:
        CheckpointError: if the file is damaged, or a pickle in it holds more than plain values.
        OSError: if the file cannot be read.
    """
    return _by_param_id(_entries(file), file.path)


def map_safetensors_state_dict(file: MappedFile) -> dict[str, Any]:
    """Give the state dict in a safetensors file that is a whole checkpoint; the tensors are views of the mapped file.

    Raises:
        CheckpointError: if the file is damaged, or a pickle in it holds more than plain values.
        OSError: if the file cannot be read.
    """
    entries = dict(_entries(file))
    if PARAM_GROUPS not in entries:
        raise CheckpointError(f"{file.path} is not a whole optimizer checkpoint, since it has no parameter groups.")
    groups = entries.pop(PARAM_GROUPS)
    return {"state": _by_param_id(iter(entries.items()), file.path), PARAM_GROUPS: groups}


def _entries(file: MappedFile) -> Iterator[tuple[str, Any]]:
    try:
        with safe_open(file.path, framework="pt") as opened:
            file.check_still_there()
            metadata = opened.metadata() or {}
            pickled = set(json.loads(metadata.get("non_tensor_keys", "[]")))
            plain = json.loads(metadata.get("plain_values", "{}"))
            tensors = MappedTensors(file, opened)
            for key in opened.keys():  # noqa: SIM118, since safe_open has no __iter__
                if key in plain:
                    yield key, plain_values.decode(plain[key], tensors.__getitem__)
                elif key in pickled:
                    yield key, unpickle_plain(tensors[key].numpy().tobytes())
                else:
                    yield key, tensors[key]
    except CheckpointError:
        raise
    except OF_A_DAMAGED_FILE as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(
            f"{file.path} is damaged, or not to be trusted: {error}. Use another checkpoint."
        ) from error


def _by_param_id(entries: Iterator[tuple[str, Any]], path: Path) -> dict[ParamId, dict[str, Any]]:
    states: dict[ParamId, dict[str, Any]] = {}
    for key, value in entries:
        kind, _, rest = key.partition(".")
        param_id, separator, name = rest.partition(".")
        if kind != "state" or not separator:
            raise CheckpointError(f"{path} is damaged: the key {key!r} is not of the form state.ID.NAME.")
        states.setdefault(as_param_id(param_id), {})[name] = value
    return states
