"""NumPy's numbers in a pickle, made of their bytes alone."""

import pickle
from dataclasses import dataclass
from typing import Any

_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")


@dataclass(frozen=True)
class NumpyDtype:
    """Stands for the dtype of a number."""

    code: str


def numpy_dtype(code: str, align: bool, copy: bool) -> NumpyDtype:
    """Give what stands for ``numpy.dtype(code)``.

    Raises:
        pickle.UnpicklingError: if that is no dtype of plain numbers.
    """
    if code not in _DTYPES:
        raise pickle.UnpicklingError(f"{code!r:.80} is no dtype of plain numbers")
    return NumpyDtype(code)


def check_dtype_state(state: Any) -> None:
    """Make sure of what a pickle adds to a dtype: nothing but the byte order, which the bytes of one number are in.

    Raises:
        pickle.UnpicklingError: if it is another one than of nearly all machines, or there is more.
    """
    if not isinstance(state, tuple) or state not in ((3, order, None, None, None, -1, -1, 0) for order in "<|"):
        raise pickle.UnpicklingError("a dtype is not one of plain little-endian numbers")


def numpy_scalar(dtype: NumpyDtype, data: bytes) -> Any:
    """Give the number.

    Raises:
        ValueError: if the bytes are not those of one number.
        pickle.UnpicklingError: if they are no bytes, or NumPy is not installed.
    """
    if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a NumPy scalar is not made of a dtype and bytes")
    try:
        import numpy
    except ImportError as error:
        raise pickle.UnpicklingError("it holds a NumPy scalar, and NumPy is not installed") from error
    (number,) = numpy.frombuffer(data, numpy.dtype(f"<{dtype.code}"))
    return number


def bytes_of_text(text: str, encoding: str) -> bytes:
    """Give the bytes that a pickle of protocol 2 has as text.

    Raises:
        UnicodeEncodeError: if the text is none that stands for bytes.
        pickle.UnpicklingError: if the encoding is another one than pickles use for this.
    """
    if encoding != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("bytes are not written as Latin-1")
    return text.encode("latin1")


NUMPY_SCALARS = {
    ("_codecs", "encode"): bytes_of_text,
    ("numpy", "dtype"): numpy_dtype,
    ("numpy.core.multiarray", "scalar"): numpy_scalar,
    ("numpy._core.multiarray", "scalar"): numpy_scalar,
}
