"""Pickles that would run code, and ones that would fill the memory: each gives the bytes of one for a canary file."""

import io
import os
import pickle
import struct
import zipfile

import torch


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def touch(canary):
    return f"open({str(canary)!r}, 'w').close()"


def pickled(value, protocol=2):
    return pickle.dumps(value, protocol)


def with_global(module, name, *arguments):
    """A call of ``module.name`` that needs no import of the module here."""
    body = b"\x80\x02c" + f"{module}\n{name}\n".encode()
    return body + pickle.dumps(arguments, 2)[2:-1] + b"R."


def nested_load(canary):
    inner = io.BytesIO()
    pickle.Pickler(inner, 2).dump(Call(exec, touch(canary)))
    return pickled(Call(pickle.loads, inner.getvalue()))


def build_on_a_function(canary):
    """BUILD changes the attributes of what is on the stack: here of an admitted function."""
    state = pickle.dumps((None, {"__defaults__": (Call(exec, touch(canary)),)}), 2)[2:-1]
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + state + b"b."


CODE = {
    "os.system": lambda canary: pickled(Call(os.system, f"touch {canary}")),
    "builtins.eval": lambda canary: pickled(Call(eval, touch(canary))),
    "builtins.exec": lambda canary: pickled(Call(exec, touch(canary))),
    "exec in protocol 4": lambda canary: pickled(Call(exec, touch(canary)), 4),
    "exec in a state": lambda canary: pickled({0: {"step": Call(exec, touch(canary))}}),
    "exec as a key": lambda canary: pickled([(Call(exec, touch(canary)), 1)]),
    "subprocess.call": lambda canary: with_global("subprocess", "call", ["touch", str(canary)]),
    "pathlib.Path.touch": lambda canary: with_global("pathlib", "Path.touch", str(canary)),
    "torch.load": lambda canary: with_global("torch", "load", str(canary)),
    "a storage": lambda canary: with_global("torch.storage", "_load_from_bytes", nested_load(canary)),
    "pickle.loads": nested_load,
    "runpy": lambda canary: with_global("runpy", "run_path", str(canary)),
    "numpy reducer": lambda canary: with_global("numpy.testing._private.utils", "runstring", touch(canary), {}),
    "getattr": lambda canary: with_global("builtins", "getattr", "", "join"),
    "build on a function": build_on_a_function,
    "an instance": lambda canary: b"(S'touch " + str(canary).encode() + b"'\nios\nsystem\n.",
}


def memo_bomb(canary):
    """Names a memo index so high that an unpickler with a list for its memo takes gigabytes."""
    return b"\x80\x02N" + b"r" + struct.pack("<I", 2**32 - 2) + b"."


def laughs(canary):
    """Thirty lists, each holding the next one twice: walked through, a billion values."""
    value = []
    for _ in range(30):
        value = [value, value]
    return pickled(value)


def deep(canary):
    return b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b"."


def endless_bytes(canary):
    return b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x."


BOMBS = {"memo": memo_bomb, "billion laughs": laughs, "deep": deep, "endless bytes": endless_bytes}


def write_with_pickle(path, data):
    """A file in torch's zip format that holds the given pickle."""
    torch.save({}, path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    (pickle_name,) = [name for name in members if name.endswith("data.pkl")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, content in (members | {pickle_name: data}).items():
            file.writestr(name, content)
