"""Shards in the safetensors format, as ColossalAI's async saves write them.

The state ``NAME`` of the parameter ``ID`` is the tensor ``state.ID.NAME``. What is no tensor is a uint8 tensor that
holds a pickle, listed under ``non_tensor_keys`` in the metadata of the header.
"""

import json
import pickle
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.pickled_values import unpickle_plain


def map_safetensors_states(path: Path) -> dict[str, dict[str, Any]]:
    """Give the states in a safetensors shard by param id; the tensors are views of the mapped file.

    Raises:
        CheckpointError: if the file is damaged, or a pickle in it holds more than plain values.
        OSError: if the file cannot be read.
    """
    states: dict[str, dict[str, Any]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            pickled = set(json.loads((file.metadata() or {}).get("non_tensor_keys", "[]")))
            for key in file.keys():  # noqa: SIM118, since safe_open has no __iter__
                _, param_id, name = _split_key(key)
                value = file.get_tensor(key)
                plain = unpickle_plain(value.numpy().tobytes()) if key in pickled else value
                states.setdefault(param_id, {})[name] = plain
    except (SafetensorError, pickle.UnpicklingError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}. Use another checkpoint.") from error
    return states


def _split_key(key: str) -> tuple[str, str, str]:
    parts = key.split(".", 2)
    if len(parts) != 3 or parts[0] != "state":
        raise ValueError(f"the key {key!r} is not of the form state.ID.NAME")
    return parts[0], parts[1], parts[2]
