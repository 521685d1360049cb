"""The tensors of a safetensors file as views of the mapped file, in half of the time that ``safe_open`` takes."""

import json
import sys
from typing import Any

import torch

from colossalai_patch.optimizer_checkpoint.files import MappedFile

LENGTH_OF_THE_HEADER = 8  # bytes, before it
_DTYPES = {
    "BF16": torch.bfloat16,
    "BOOL": torch.bool,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "I8": torch.int8,
    "U8": torch.uint8,
}


class MappedTensors:
    """The tensors of a file that ``safe_open`` has validated."""

    def __init__(self, file: MappedFile, opened: Any) -> None:
        """Read the header.

        Args:
            file: the file.
            opened: what ``safe_open`` gives for it.
        """
        self._content = file.content
        self._begin = LENGTH_OF_THE_HEADER + int.from_bytes(self._content[:LENGTH_OF_THE_HEADER], "little")
        self._header = json.loads(self._content[LENGTH_OF_THE_HEADER : self._begin])
        self._opened = opened

    def __getitem__(self, key: str) -> torch.Tensor:
        """Give a tensor on the CPU; writes to it would not reach the file."""
        described = self._header[key]
        dtype, (begin, end) = _DTYPES.get(described["dtype"]), described["data_offsets"]
        offset = self._begin + begin
        if dtype is None or begin == end or offset % dtype.itemsize or sys.byteorder != "little":
            tensor: torch.Tensor = self._opened.get_tensor(key)
            return tensor
        numbers = torch.frombuffer(self._content, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=offset)
        return numbers.reshape(described["shape"])
