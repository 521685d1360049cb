"""The zip files that ``torch.save`` writes: where their records are, and their usual content read without torch.

``torch.load(weights_only=True)`` takes 0.1 ms for each tensor. The unpickler here takes a third of that, and knows
plain values and plain tensors only; what it does not know is torch's to read or to refuse.
"""

import io
import mmap
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from colossalai_patch.optimizer_checkpoint.errors import CheckpointError
from colossalai_patch.optimizer_checkpoint.files import MappedFile
from colossalai_patch.optimizer_checkpoint.numpy_scalars import NUMPY_SCALARS, NumpyDtype
from colossalai_patch.optimizer_checkpoint.pickled_values import PlainUnpickler

SIGNATURE = b"PK\x03\x04"
_DIRECTORY = 0x10  # torch takes a record with this attribute for empty, and gives memory that nobody filled
_NOT_AS_IT_IS = 0x61  # encrypted, a patch, or strongly encrypted
_HEADER = struct.Struct("<4s5H3L2H")


@dataclass(frozen=True)
class Record:
    """Where a record of the file begins, how many bytes it has, and their CRC-32 by the directory."""

    offset: int
    size: int
    crc: int


@dataclass(frozen=True)
class Archive:
    """A file of ``torch.save``, mapped.

    Attributes:
        path: the file.
        content: its bytes; writes to them would not reach the file.
        records: its records by name, without the name of the folder that all are in.
    """

    path: str
    content: mmap.mmap | bytearray
    records: dict[str, Record]

    def bytes_of(self, name: str) -> memoryview:
        """The bytes of a record, as a view of the content."""
        record = self.records[name]
        return memoryview(self.content)[record.offset : record.offset + record.size]


def map_archive(file: MappedFile) -> Archive:
    """Make sure of what torch does not in a zip file: its records are whole, and stand where its directory says.

    Raises:
        CheckpointError: if they are not.
        OSError: if the file cannot be read.
    """
    path, content = file.path, file.content
    try:
        with zipfile.ZipFile(path) as zipped:
            entries = zipped.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{path} is not complete: the list of its records cannot be read. Was the save interrupted?"
        ) from error
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _NOT_AS_IT_IS for entry in entries):
        raise CheckpointError(f"{path} is compressed or encrypted, which torch.save never does. Do not use it.")
    records = {entry.orig_filename.partition("/")[2]: _record(content, entry, path) for entry in entries}
    if len(records) < len(entries):
        raise CheckpointError(f"{path} is damaged: two of its records have one name. Use another checkpoint.")
    if "constants.pkl" in records:  # before 2.6, torch.load makes a module of it in spite of weights_only
        raise CheckpointError(f"{path} is a TorchScript archive, which holds a program. Use another checkpoint.")
    return Archive(os.fspath(path), content, records)


def _record(content: mmap.mmap | bytearray, entry: zipfile.ZipInfo, path: Path) -> Record:
    name = entry.orig_filename.encode()
    header = content[entry.header_offset : entry.header_offset + _HEADER.size + len(name)]
    if header[:4] != SIGNATURE or header[_HEADER.size :] != name or entry.external_attr & _DIRECTORY:
        raise CheckpointError(f"{path} is damaged: {entry.orig_filename} is not where it should be.")
    *_, length_of_name, length_of_extra_field = _HEADER.unpack_from(header)
    if length_of_name != len(name):
        raise CheckpointError(f"{path} is damaged: the name of {entry.orig_filename} has two lengths.")
    record = Record(entry.header_offset + len(header) + length_of_extra_field, entry.file_size, entry.CRC)
    if record.offset + record.size > len(content):
        raise CheckpointError(f"{path} is not complete: it ends in {entry.orig_filename}. Was the save interrupted?")
    return record


def unpickle_archive(archive: Archive) -> Any:
    """Give what was saved, the tensors in it being views of the mapping.

    Raises:
        CheckpointError: if a tensor is not whole.
        Exception: any other, if the file is damaged, or holds something else than plain values and plain tensors.
    """
    reader = torch._C.PyTorchFileReader(archive.path)  # refuses what torch.load does not take for a file of torch.save
    reader.serialization_id()  # which torch 2.5 refuses if it is no text
    if ".storage_alignment" in archive.records:
        int(bytes(archive.bytes_of(".storage_alignment")))  # as torch.load since 2.7
    if sys.byteorder != "little" or bytes(archive.bytes_of("byteorder")) != b"little":
        raise pickle.UnpicklingError("the numbers have another byte order than here")
    content = _ArchiveUnpickler(archive).load()
    _check_values(content)
    return content


def _check_values(content: Any) -> None:
    """What a tensor is made of is no value. Torch makes other objects of it."""
    pending, seen = [content], set()
    while pending:
        value = pending.pop()
        if isinstance(value, (_Storage, torch.dtype, NumpyDtype)) or callable(value):
            raise pickle.UnpicklingError(f"a value is a {type(value).__name__}")
        if isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            pending += [*value, *value.values()] if isinstance(value, dict) else value


@dataclass(frozen=True)
class _Storage:
    """The numbers of a storage, as a flat tensor."""

    numbers: torch.Tensor


def _rebuilt_tensor(
    storage: _Storage,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    backward_hooks: OrderedDict[Any, Any],
) -> torch.Tensor:
    if requires_grad is not False or backward_hooks != OrderedDict():
        raise pickle.UnpicklingError("a tensor has hooks, or requires gradients")
    return storage.numbers.as_strided(shape, stride, offset)


_OPCODES = [
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE, pickle.BUILD, pickle.BINPERSID),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT, pickle.BINUNICODE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1),
    *(pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
]


class _ArchiveUnpickler(PlainUnpickler):
    ADMITTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch", "BFloat16Storage"): torch.bfloat16,
        ("torch", "BoolStorage"): torch.bool,
        ("torch", "ByteStorage"): torch.uint8,
        ("torch", "CharStorage"): torch.int8,
        ("torch", "DoubleStorage"): torch.float64,
        ("torch", "FloatStorage"): torch.float32,
        ("torch", "HalfStorage"): torch.float16,
        ("torch", "IntStorage"): torch.int32,
        ("torch", "LongStorage"): torch.int64,
        ("torch", "ShortStorage"): torch.int16,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuilt_tensor,
        **NUMPY_SCALARS,
    }

    # What torch.save writes for plain values, in protocol 2; torch does not admit all that a pickle may have.
    dispatch: ClassVar = {opcode: PlainUnpickler.dispatch[opcode] for opcode in b"".join(_OPCODES)}

    def __init__(self, archive: Archive) -> None:
        super().__init__(io.BytesIO(archive.bytes_of("data.pkl")))
        self._archive = archive
        self._storages: dict[str, _Storage] = {}

    def persistent_load(self, persistent_id: Any) -> _Storage:
        """Give a storage, which is what the first that asked for it by its key has it be."""
        match persistent_id:
            case ("storage", torch.dtype() as dtype, str(key), str(), int(numbers)) if type(persistent_id) is tuple:
                if key not in self._storages:
                    self._storages[key] = _Storage(self._numbers(self._archive.records[f"data/{key}"], dtype, numbers))
                return self._storages[key]
        raise pickle.UnpicklingError(f"{persistent_id!r:.80} is no storage")

    def _numbers(self, record: Record, dtype: torch.dtype, numbers: int) -> torch.Tensor:
        if record.size != numbers * dtype.itemsize:  # torch 2.5 does not look
            raise CheckpointError(
                f"{self._archive.path} is damaged: a tensor has {record.size} bytes in it, not as many as it needs."
            )
        if record.offset % dtype.itemsize:
            raise pickle.UnpicklingError("a storage is not aligned")
        if not numbers:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._archive.content, dtype=dtype, count=numbers, offset=record.offset)
