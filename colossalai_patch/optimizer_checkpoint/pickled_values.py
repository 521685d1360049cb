"""Values that ColossalAI pickles into a safetensors file as bytes, read back without running code from them."""

import collections
import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch._utils import _rebuild_tensor_v2

from colossalai_patch import settings
from colossalai_patch.optimizer_checkpoint.allowed_classes import (
    ClassNotAllowedError,
    allowed_by_the_script,
    member_of_enum,
)
from colossalai_patch.optimizer_checkpoint.numpy_scalars import NUMPY_SCALARS, NumpyDtype, check_dtype_state


def unpickle_plain(data: bytes) -> Any:
    """Decode a pickle of plain values (None, numbers, text, bytes, members of enums, containers of these) and tensors.

    What the script has allowed with ``torch.serialization.add_safe_globals`` is decoded too.
    With ``COLOSSALAI_PATCH_TRUST_PICKLE=1`` it decodes every pickle, which may run code.

    Raises:
        ClassNotAllowedError: if the pickle names anything else.
        pickle.UnpicklingError: if it is damaged.
    """
    if settings.trust_pickle():
        return pickle.loads(data)
    try:
        return _AllowingUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise pickle.UnpicklingError(f"the pickle is damaged ({type(error).__name__}: {error})") from error


def _load_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _in_python_3(module: str) -> str:
    """The name of a module, which pickles of protocol 2 have as in Python 2."""
    return "builtins" if module == "__builtin__" else module


def _with_check(opcode: bytes, check: Callable[[Any], None]) -> dict[int, Callable[[Any], None]]:
    """The dispatch of an opcode that first checks the unpickler."""
    load: Callable[[Any], None] = pickle._Unpickler.dispatch[opcode[0]]

    def checked(unpickler: Any) -> None:
        check(unpickler)
        load(unpickler)

    return {opcode[0]: checked}


def _check_type(target: Any, *types: type) -> None:
    """A tensor's items are numbers of the file, which others may share, and another class may do anything."""
    if type(target) not in types:
        raise pickle.UnpicklingError(f"the pickle sets items of a {type(target).__name__}")


def _check_dtype_state(unpickler: Any) -> None:
    if not isinstance(unpickler.stack[-2], NumpyDtype):
        raise pickle.UnpicklingError("the pickle sets attributes")
    check_dtype_state(unpickler.stack.pop())


_DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
_DICTS = (dict, collections.OrderedDict)
_SET_STATE: Callable[[Any], None] = pickle._Unpickler.dispatch[pickle.BUILD[0]]
_LEFT_OUT = (pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX)  # call a class, which no plain value needs
_CHECKED = (
    _with_check(pickle.SETITEM, lambda unpickler: _check_type(unpickler.stack[-3], *_DICTS))
    | _with_check(pickle.SETITEMS, lambda unpickler: _check_type(unpickler.metastack[-1][-1], *_DICTS))
    | _with_check(pickle.APPEND, lambda unpickler: _check_type(unpickler.stack[-2], list))
    | _with_check(pickle.APPENDS, lambda unpickler: _check_type(unpickler.metastack[-1][-1], list))
    | _with_check(pickle.ADDITEMS, lambda unpickler: _check_type(unpickler.metastack[-1][-1], set))
    | {pickle.BUILD[0]: _check_dtype_state}
)


class PlainUnpickler(pickle._Unpickler):
    """Admits what ``ADMITTED`` names, under which each use of the name finds what stands there.

    It is the unpickler in Python, since the one in C takes memory for the highest memo index that a pickle names.
    """

    ADMITTED: ClassVar[dict[tuple[str, str], Any]] = {
        ("builtins", "complex"): complex,
        ("builtins", "frozenset"): frozenset,
        ("builtins", "set"): set,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
        ("torch.storage", "_load_from_bytes"): _load_storage,
        ("torch", "Size"): torch.Size,
        ("torch", "device"): torch.device,
        **{("torch", str(dtype).removeprefix("torch.")): dtype for dtype in _DTYPES},
        **NUMPY_SCALARS,
    }
    dispatch: ClassVar = {
        opcode: function for opcode, function in pickle._Unpickler.dispatch.items() if bytes([opcode]) not in _LEFT_OUT
    } | _CHECKED

    def find_class(self, module: str, name: str) -> Any:
        """Give what a pickle asks for by its name, if it is admitted.

        Raises:
            ClassNotAllowedError: if it is not.
        """
        module = _in_python_3(module)
        found = self.ADMITTED.get((module, name)) or member_of_enum(module, name)
        if found is None:
            raise ClassNotAllowedError(f"{module}.{name}")
        return found


class _AllowingUnpickler(PlainUnpickler):
    """Admits what the script has allowed as well, by the rules of torch's own, which reads no pickle of protocol 4."""

    stack: list[Any]  # as pickle has it

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._allowed = allowed_by_the_script()
        self._found: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Give what the script has allowed by this name, or what is admitted."""
        allowed = self._allowed.get(f"{_in_python_3(module)}.{name}")
        found = super().find_class(module, name) if allowed is None else allowed
        self._found[id(found)] = found
        return found

    def check_call(self) -> None:
        """What is called is what a name stands for, and not, say, an object with ``__call__``."""
        function = self.stack[-2]
        if id(function) not in self._found:
            raise pickle.UnpicklingError(f"the pickle calls a {type(function).__name__}")

    def check_new(self) -> None:
        """What is made an instance of is an allowed class."""
        self._check_allowed(self.stack[-2])

    def set_state(self) -> None:
        """Set the attributes of an instance of an allowed class."""
        if isinstance(self.stack[-2], NumpyDtype):
            _check_dtype_state(self)
            return
        self._check_allowed(type(self.stack[-2]))
        _SET_STATE(self)

    def _check_allowed(self, made: Any) -> None:
        if not any(made is allowed for allowed in self._allowed.values()):
            raise pickle.UnpicklingError(f"the pickle makes or changes a {getattr(made, '__name__', made)!r:.80}")

    dispatch: ClassVar = (
        PlainUnpickler.dispatch
        | _with_check(pickle.REDUCE, check_call)
        | _with_check(pickle.NEWOBJ, check_new)
        | {pickle.BUILD[0]: set_state}
    )
