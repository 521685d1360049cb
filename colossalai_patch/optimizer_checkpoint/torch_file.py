"""Files that ``torch.save`` wrote."""

import os
import re
import tarfile
from pathlib import Path
from typing import Any

import torch

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.allowed_classes import refusal_of_a_class
from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile, map_file
from colossalai_patch.optimizer_checkpoint.out_of_memory import is_out_of_memory
from colossalai_patch.optimizer_checkpoint.torch_archive import SIGNATURE, Archive, map_archive, unpickle_archive

_CLASS_NOT_ADMITTED = re.compile(r"GLOBAL ([\w.]+)")


def load_torch_file(path: Path) -> Any:
    """Read a file of ``torch.save`` without running code from it; all tensors come to the CPU.

    Raises:
        CheckpointError: if the file is damaged, or holds what ``torch.load(weights_only=True)`` does not admit.
        OSError: if the file cannot be read.
    """
    file = map_file(path)
    _checked(file)
    return _load(file)


def map_torch_file(file: MappedFile) -> tuple[Any, bool]:
    """As ``load_torch_file``, but the tensors are views of the mapped file if it is a zip file with plain content.

    Of other files, torch maps tensors without looking at the sizes of their records.

    Returns:
        What was saved, and whether its tensors are views; otherwise they have memory of their own.
    """
    archive = _checked(file)
    if archive is not None and not settings.trust_pickle():
        try:
            return unpickle_archive(archive), True
        except CheckpointError:
            raise
        except Exception as error:  # torch knows more types, and says what is wrong
            if is_out_of_memory(error):
                raise
    return _load(file), False


def is_zip(path: Path) -> bool:
    """Whether a file is of the kind that ``torch.save`` has written since torch 1.6.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(SIGNATURE)) == SIGNATURE


def _checked(file: MappedFile) -> Archive | None:
    """Make sure of what torch does not; a zip file's records are then known."""
    if is_zip(file.path):
        return map_archive(file)
    _check_legacy(file.path)
    return None


def _load(file: MappedFile) -> Any:
    """Have torch read a file, by its path, which must still be that of the file that was looked at."""
    weights_only = not settings.trust_pickle()
    try:
        content = torch.load(os.fspath(file.path), map_location="cpu", weights_only=weights_only, mmap=False)
    except OSError:
        raise
    except Exception as error:  # a crafted pickle can make an unpickler raise anything
        if is_out_of_memory(error):
            raise
        raise CheckpointError(_explanation(file.path, str(error))) from error
    file.check_still_there()
    return content


def _check_legacy(path: Path) -> None:
    """A tar file runs code in spite of ``weights_only`` before torch 2.6."""
    if tarfile.is_tarfile(path):
        raise CheckpointError(f"{path} is in the tar format of torch before 0.1.10, which can run code. Do not use it.")


def _explanation(path: Path, error: str) -> str:
    not_admitted = _CLASS_NOT_ADMITTED.search(error)
    if not_admitted is None:
        reason = error.splitlines()[0] if error else "it cannot be unpickled"
        return f"{path} is damaged: {reason}. Use another checkpoint."
    return refusal_of_a_class(path, not_admitted[1])
