"""Optimizer states in the safetensors format, as ColossalAI's async saves write them.

The state ``NAME`` of the parameter ``ID`` is the tensor ``state.ID.NAME``. What is no tensor is a uint8 tensor that
holds a pickle, listed under ``non_tensor_keys`` in the metadata of the header; where ``plain_values`` there holds the
same value as JSON, the pickle is not looked at. ``states`` there has the names of each parameter's values in order,
also where there are none; a value None is in ``plain_values`` alone. A file that is a whole checkpoint has
``param_groups`` as well.
"""

import json
import pickle
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from colossalai_patch.optimizer_checkpoint import plain_values
from colossalai_patch.optimizer_checkpoint.allowed_classes import ClassNotAllowedError, refusal_of_a_class
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile
from colossalai_patch.optimizer_checkpoint.out_of_memory import is_out_of_memory
from colossalai_patch.optimizer_checkpoint.param_ids import ParamId, as_param_id
from colossalai_patch.optimizer_checkpoint.pickled_values import unpickle_plain
from colossalai_patch.optimizer_checkpoint.safetensors_metadata import PLAIN_VALUES, STATES, key_of
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
    entries, outline = _read(file)
    return _by_param_id(entries, outline, file.path)


def map_safetensors_state_dict(file: MappedFile) -> dict[str, Any]:
    """Give the state dict in a safetensors file that is a whole checkpoint; the tensors are views of the mapped file.

    Raises:
        CheckpointError: if the file is damaged, or a pickle in it holds more than plain values.
        OSError: if the file cannot be read.
    """
    entries, outline = _read(file)
    if PARAM_GROUPS not in entries:
        raise CheckpointError(f"{file.path} is not a whole optimizer checkpoint, since it has no parameter groups.")
    groups = entries.pop(PARAM_GROUPS)
    return {"state": _by_param_id(entries, outline, file.path), PARAM_GROUPS: groups}


def _read(file: MappedFile) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The values by key, and by param id the names of its values, if the file tells them."""
    try:
        with safe_open(file.path, framework="pt") as opened:
            file.check_still_there()
            metadata = opened.metadata() or {}
            outline = json.loads(metadata.get(STATES, "{}"))
            if not isinstance(outline, dict) or not all(isinstance(names, list) for names in outline.values()):
                raise ValueError(f"{STATES!r} in its header holds no lists of names")
            return _entries(MappedTensors(file, opened), opened.keys(), metadata), outline
    except CheckpointError:
        raise
    except ClassNotAllowedError as error:
        raise CheckpointError(refusal_of_a_class(file.path, error.name)) from error
    except OF_A_DAMAGED_FILE as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(
            f"{file.path} is damaged, or not to be trusted: {error}. Use another checkpoint."
        ) from error


def _entries(tensors: MappedTensors, keys: list[str], metadata: dict[str, str]) -> dict[str, Any]:
    pickled = set(json.loads(metadata.get("non_tensor_keys", "[]")))
    plain = json.loads(metadata.get(PLAIN_VALUES, "{}"))
    entries = {key: plain_values.decode(value, tensors.__getitem__) for key, value in plain.items()}
    for key in keys:
        if key in plain:
            continue
        entries[key] = unpickle_plain(tensors[key].numpy().tobytes()) if key in pickled else tensors[key]
    return entries


def _by_param_id(entries: dict[str, Any], outline: dict[str, list[Any]], path: Path) -> dict[ParamId, dict[str, Any]]:
    states: dict[ParamId, dict[str, Any]] = {}
    for param_id, names in outline.items():
        missing = next((name for name in names if key_of(param_id, name) not in entries), None)
        if missing is not None:
            raise CheckpointError(f"{path} is damaged: it lacks {missing!r} of parameter {param_id}.")
        states[as_param_id(param_id)] = {name: entries.pop(key_of(param_id, name)) for name in names}
    for key, value in entries.items():
        kind, _, rest = key.partition(".")
        param_id, separator, name = rest.partition(".")
        if kind != "state" or not separator:
            raise CheckpointError(f"{path} is damaged: the key {key!r} is not of the form state.ID.NAME.")
        states.setdefault(as_param_id(param_id), {})[name] = value
    return states
