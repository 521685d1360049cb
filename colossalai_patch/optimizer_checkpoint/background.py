"""Writing a safetensors file from a copy of the tensors, in a background thread."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint import plain_values
from colossalai_patch.optimizer_checkpoint.checked_file import FileRecord, write_safetensors
from colossalai_patch.optimizer_checkpoint.save import save_of


@dataclass(frozen=True)
class BackgroundWriter:
    """A file that is being written: what ColossalAI expects of an asynchronous writer.

    Attributes:
        written: gives the record of the file, or raises why it could not be written.
        copied: waits until the tensors are copied and may change.
    """

    written: "Future[FileRecord]"
    copied: Callable[[], None]

    def synchronize(self) -> None:
        """Wait until the file is on disk, or raise why it is not: what ColossalAI asks of its writers."""
        self.written.result()

    def sync_before_step(self) -> None:
        """Wait until the tensors may change, as ColossalAI does before the next step."""
        self.copied()


def write_in_background(
    path: str, header: bytes, tensors: Mapping[str, torch.Tensor], copy: Callable[[str, torch.Tensor], torch.Tensor]
) -> BackgroundWriter:
    """Take tensors to host memory and let a thread write them.

    Args:
        path: the file. Inside a ``Save`` it belongs to that save.
        header: its header, padded, without its length.
        tensors: the tensors, in the order of the header.
        copy: gives a tensor in contiguous host memory: ``copied``, or ``copied_if_needed``.
    """
    copies = [copy(name, tensor) for name, tensor in tensors.items()]
    copied = _copy_marker(tensors)

    def write() -> FileRecord:
        copied()
        return write_safetensors(Path(path), header, copies)

    save = save_of(path)
    if save is not None:
        return BackgroundWriter(save.write_in_background(path, write, copied), copied)
    thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint-writer")
    written = thread.submit(write)
    thread.shutdown(wait=False)
    return BackgroundWriter(written, copied)


def by_alignment(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors in an order in which each starts at a multiple of its item size, as safetensors puts them."""
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))


def plain_forms(values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON forms of those values that have one without tensors."""
    forms = {}
    for key, value in values.items():
        try:
            forms[key] = plain_values.encode(value, _refuse_tensor)
        except TypeError:
            continue
    return forms


def _refuse_tensor(tensor: torch.Tensor) -> str:
    raise TypeError("a tensor has no plain form")


def copied_if_needed(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor itself where it is contiguous host memory, which must not change until it is written."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    return tensor.detach() if is_plain and tensor.is_contiguous() and not tensor.is_neg() else copied(name, tensor)


def copied(name: str, tensor: torch.Tensor, buffer: torch.Tensor | None = None) -> torch.Tensor:
    """Copy a tensor to host memory: to ``buffer`` where that fits."""
    tensor = tensor.detach()
    if buffer is None or not _fits(buffer, tensor):
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return buffer.copy_(tensor, non_blocking=tensor.is_cuda)


def _fits(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    return buffer.shape == tensor.shape and buffer.dtype == tensor.dtype and buffer.is_contiguous()


def _copy_marker(tensors: Mapping[str, torch.Tensor]) -> Callable[[], None]:
    """What waits for the copies from a device that were started so far; those from host memory are complete."""
    if not any(tensor.is_cuda for tensor in tensors.values()):
        return lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize
