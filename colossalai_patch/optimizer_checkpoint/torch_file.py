"""Files that ``torch.save`` wrote."""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError

_ZIP_SIGNATURE = b"PK\x03\x04"


def load_torch_file(path: Path) -> Any:
    """Read a file of ``torch.save`` without running code from it; all tensors come to the CPU.

    Raises:
        CheckpointError: if the file is damaged, or holds what ``torch.load(weights_only=True)`` does not admit.
        OSError: if the file cannot be read.
    """
    return _load(path, mapped=False)


def map_torch_file(path: Path) -> Any:
    """As ``load_torch_file``, but the tensors are views of the mapped file where its format (a zip) allows that."""
    with path.open("rb") as file:
        mapped = file.read(len(_ZIP_SIGNATURE)) == _ZIP_SIGNATURE
    return _load(path, mapped)


def _load(path: Path, mapped: bool) -> Any:
    try:
        return torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=mapped)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
