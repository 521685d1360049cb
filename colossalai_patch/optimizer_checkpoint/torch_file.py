"""Files that ``torch.save`` wrote."""

import pickle
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError


def load_torch_file(path: Path) -> Any:
    """Read a file of ``torch.save`` without running code from it; all tensors come to the CPU.

    Raises:
        CheckpointError: if the file is damaged, or holds what ``torch.load(weights_only=True)`` does not admit.
        OSError: if the file cannot be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
