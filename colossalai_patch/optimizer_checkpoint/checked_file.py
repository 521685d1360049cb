"""Files whose size and checksum are known when they are written, and which are on disk when they are closed."""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import xxhash

from colossalai_patch.optimizer_checkpoint.checksum import checksum
from colossalai_patch.optimizer_checkpoint.progress import UNSEEN

_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """What the index says of a file, besides its name.

    Attributes:
        size: the number of its bytes.
        xxh3: the 64-bit xxh3 checksum of its bytes, in hexadecimal.
    """

    size: int
    xxh3: str

    def as_json(self) -> dict[str, int | str]:
        """What stands in the index, under the name of the file."""
        return asdict(self)


class UnwrittenFileError(OSError):
    """The file system refused to take a file; ``size`` says how many bytes it would have had."""

    def __init__(self, refusal: OSError, size: int) -> None:
        """Say what ``refusal`` says."""
        super().__init__(refusal.errno, refusal.strerror)
        self.size = size


class CheckedFile:
    """A new file for ``torch.save``, which needs ``write`` and ``flush`` of it."""

    def __init__(
        self, path: Path, fill: "Callable[[CheckedFile], None]", advance: Callable[[int], object] = UNSEEN.advance
    ) -> None:
        """Create the file and let ``fill`` write to it; ``advance`` is told of every number of bytes.

        When the file system refuses a write, ``fill`` goes on, so that the size is known that would have been needed.

        Raises:
            UnwrittenFileError: if the file system refuses; ``torch.save`` would say something else.
            OSError: if the file cannot be made.
        """
        self._advance = advance
        self._size = 0
        self._checksum = xxhash.xxh3_64()
        self._held_back = bytearray()
        self._refusal: OSError | None = None
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            fill(self)
            self.flush()
            if self._refusal is not None:
                raise UnwrittenFileError(self._refusal, self._size) from self._refusal
        except Exception:
            os.close(self._descriptor)
            raise

    def write(self, data: bytes | memoryview) -> int:
        """Take bytes and say how many; they are written when there are enough, at the latest by ``flush``."""
        data = memoryview(data).cast("B")
        self._checksum.update(data)
        self._size += len(data)
        self._advance(len(data))
        if len(self._held_back) + len(data) <= _CHUNK:
            self._held_back += data
        else:
            self.flush()
            self._put(data)
        return len(data)

    def flush(self) -> None:
        """Write what was held back to make few writes of many."""
        self._put(memoryview(self._held_back))
        self._held_back = bytearray()

    def _put(self, data: memoryview) -> None:
        try:
            while data and self._refusal is None:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._refusal = error

    def finish(self) -> FileRecord:
        """Wait until the file is on disk, close it, and say what was written to it.

        Raises:
            OSError: if it did not get there.
        """
        try:
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
        return FileRecord(self._size, self._checksum.hexdigest())


def finish_file(path: Path) -> FileRecord:
    """As ``CheckedFile.finish``, for a file that somebody else wrote.

    Raises:
        OSError: if it cannot be read, or did not get to the disk.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileRecord(path.stat().st_size, checksum(path))


def write_safetensors(path: Path, header: bytes, tensors: Iterable[torch.Tensor]) -> FileRecord:
    """Write a safetensors file and wait until it is on disk.

    Args:
        path: the file; what stands there is overwritten.
        header: the header, padded, without its length.
        tensors: the tensors in the order of the header, contiguous and in host memory.

    Raises:
        OSError: if the file cannot be written.
    """

    def fill(file: CheckedFile) -> None:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for tensor in tensors:
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)

    return CheckedFile(path, fill).finish()
