"""Values that ColossalAI pickles into a safetensors file as bytes, read back without running code from them."""

import collections
import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch._utils import _rebuild_tensor_v2

from colossalai_patch import settings


def unpickle_plain(data: bytes) -> Any:
    """Decode a pickle of plain Python values (None, numbers, text, bytes, containers of these) and of tensors.

    With ``COLOSSALAI_PATCH_TRUST_PICKLE=1`` it decodes every pickle, which may run code.

    Raises:
        pickle.UnpicklingError: if the pickle is damaged, or names anything else.
    """
    if settings.trust_pickle():
        return pickle.loads(data)
    try:
        return PlainUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        raise pickle.UnpicklingError(f"the pickle is damaged ({type(error).__name__}: {error})") from error


def _load_storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _load_setitem(unpickler: Any) -> None:
    _check_dict(unpickler.stack[-3])
    pickle._Unpickler.dispatch[pickle.SETITEM[0]](unpickler)


def _load_setitems(unpickler: Any) -> None:
    _check_dict(unpickler.metastack[-1][-1])
    pickle._Unpickler.dispatch[pickle.SETITEMS[0]](unpickler)


def _check_dict(target: Any) -> None:
    """A tensor's items are numbers of the file, which others may share."""
    if not isinstance(target, dict):
        raise pickle.UnpicklingError(f"the pickle sets items of a {type(target).__name__}")


class PlainUnpickler(pickle._Unpickler):
    """Admits what ``ADMITTED`` names, under which each use of the name finds what stands there.

    It is the unpickler in Python, since the one in C takes memory for the highest memo index that a pickle names.
    """

    ADMITTED: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("builtins", "complex"): complex,
        ("builtins", "frozenset"): frozenset,
        ("builtins", "set"): set,
        ("collections", "OrderedDict"): collections.OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor_v2,
        ("torch.storage", "_load_from_bytes"): _load_storage,
    }
    # What is left out sets attributes of an object or calls a class, which no plain value needs.
    dispatch: ClassVar = {
        opcode: function
        for opcode, function in pickle._Unpickler.dispatch.items()
        if bytes([opcode]) not in (pickle.BUILD, pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX)
    } | {pickle.SETITEM[0]: _load_setitem, pickle.SETITEMS[0]: _load_setitems}

    def find_class(self, module: str, name: str) -> Any:
        """Give what a pickle asks for by its name, if it is admitted.

        Raises:
            pickle.UnpicklingError: if it is not.
        """
        if (module, name) not in self.ADMITTED:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which is no plain value")
        return self.ADMITTED[module, name]
