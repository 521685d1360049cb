"""Classes that a file may name: those that the script has allowed, as ``torch.load(weights_only=True)`` takes them."""

import enum
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_NEVER = ("sys", "os", "posix", "nt")  # as for torch, whatever was allowed


class ClassNotAllowedError(pickle.UnpicklingError):
    """A pickle asks for a class or function that is no plain value.

    Attributes:
        name: its module and name.
    """

    def __init__(self, name: str) -> None:
        """Take the module and name."""
        super().__init__(f"the pickle asks for {name}, which is no plain value")
        self.name = name


def allowed_by_the_script() -> dict[str, Any]:
    """What the script has allowed with ``torch.serialization``, by the names that a pickle has for it."""
    get = getattr(torch.serialization, "get_safe_globals", list)  # torch 2.5 brought it
    allowed = dict(_name_and_allowed(entry) for entry in get())
    return {name: value for name, value in allowed.items() if name.rpartition(".")[0] not in _NEVER}


def _name_and_allowed(entry: Any) -> tuple[str, Any]:
    """Take an entry of torch's, which is what was allowed, or a pair of that and a name for it."""
    if isinstance(entry, tuple):
        return entry[1], entry[0]
    return f"{entry.__module__}.{entry.__qualname__}", entry


def member_of_enum(module: str, name: str) -> Callable[[Any], enum.Enum] | None:
    """What gives a member of an enum by its value, if the enum is imported already; it runs no code of the enum."""
    found = sys.modules.get(module)
    named = vars(found).get(name) if isinstance(found, ModuleType) else None
    if type(named) is not enum.EnumMeta:
        return None
    members = vars(named)["_member_map_"].values()
    by_value = {member._value_: member for member in members if type(member._value_) in (int, str)}
    return by_value.__getitem__


def refusal_of_a_class(path: Path, name: str) -> str:
    """Say that a file holds something of this name, and what can be done."""
    allow = f"If you trust the class, allow it with torch.serialization.add_safe_globals([{name}]); if"
    begin = allow if hasattr(torch.serialization, "add_safe_globals") else "If"  # torch 2.5 brought it
    return (
        f"{path} holds a {name}, which is not read, since that could run code from the file. {begin} you trust the "
        "file, set COLOSSALAI_PATCH_TRUST_PICKLE=1."
    )
