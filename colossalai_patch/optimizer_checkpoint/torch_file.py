"""Files that ``torch.save`` wrote."""

import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError

_ZIP_SIGNATURE = b"PK\x03\x04"
_CLASS_NOT_ADMITTED = re.compile(r"GLOBAL ([\w.]+)")


def load_torch_file(path: Path) -> Any:
    """Read a file of ``torch.save`` without running code from it; all tensors come to the CPU.

    Raises:
        CheckpointError: if the file is damaged, or holds what ``torch.load(weights_only=True)`` does not admit.
        OSError: if the file cannot be read.
    """
    return _load(path, mapped=False)


def map_torch_file(path: Path) -> Any:
    """As ``load_torch_file``, but the tensors are views of the mapped file if its format (torch 1.6) allows that."""
    return _load(path, mapped=_is_zip(path))


def _load(path: Path, mapped: bool) -> Any:
    (_check_zip if _is_zip(path) else _check_legacy)(path)
    weights_only = not settings.trust_pickle()
    try:
        return torch.load(os.fspath(path), map_location="cpu", weights_only=weights_only, mmap=mapped)
    except OSError:
        raise
    except Exception as error:  # a crafted pickle can make an unpickler raise anything
        raise CheckpointError(_explanation(path, str(error))) from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_ZIP_SIGNATURE)) == _ZIP_SIGNATURE


def _check_zip(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as file:
            entries = file.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is not complete ({error}). Was the save interrupted?") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(f"{path} is compressed, which torch.save never does. Do not use it.")


def _check_legacy(path: Path) -> None:
    """A tar file runs code in spite of ``weights_only`` before torch 2.6."""
    if tarfile.is_tarfile(path):
        raise CheckpointError(f"{path} is in the tar format of torch before 0.1.10, which can run code. Do not use it.")


def _explanation(path: Path, error: str) -> str:
    not_admitted = _CLASS_NOT_ADMITTED.search(error)
    if not_admitted is None:
        reason = error.splitlines()[0] if error else "it cannot be unpickled"
        return f"{path} is damaged: {reason}. Use another checkpoint."
    name = not_admitted[1]
    return (
        f"{path} holds a {name}, which is not read, since that could run code from the file. If you trust the class, "
        f"allow it with torch.serialization.add_safe_globals([{name}]); if you trust the file, set "
        "COLOSSALAI_PATCH_TRUST_PICKLE=1."
    )
