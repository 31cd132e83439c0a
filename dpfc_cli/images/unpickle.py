"""Reading CIFAR's pickles without trusting them.

A pickle is a program: it may name any importable function and call it. This reader lets it name five things, those
that integer arrays in protocol 2 need, and gives it none of them: each name stands for a small class of ours that
checks its arguments and remembers them. NumPy sees nothing but bytes whose type, order, shape and length have been
checked, so neither object arrays (pointers by the pickle's word) nor any other trick with dtypes arises. Everything
else that a pickle names is refused, by name, before it is imported.

A hostile pickle can still waste memory and time; it cannot act.
"""

import io
import pickle
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError

NDARRAY = "numpy.ndarray"
INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
ORDERS = {"<": "<", b"<": "<", ">": ">", b">": ">", "=": "=", b"=": "=", "|": "=", b"|": "="}
REMEDY = "Use the official archive of the data set; convert other copies to an image folder."


def read_pickle(data: bytes, name: str) -> dict[str, object]:
    """The dictionary that a pickle holds, keys as text, arrays of integers as NumPy arrays.

    Text that Python 2 wrote comes back as bytes. `name` is the file's, for messages. Raises UserError when the pickle
    asks for anything but plain containers and integer arrays, is truncated, or holds something other than a
    dictionary.
    """
    try:
        value = _Unpickler(io.BytesIO(data)).load()
        return {_text(key): item.values() if isinstance(item, _Array) else item for key, item in value.items()}
    except _ForbiddenError as refusal:
        raise UserError(f"'{name}' asks for {refusal}, which dpfc does not allow in a data file.", REMEDY) from None
    except Exception as error:
        raise UserError(
            f"'{name}' is no readable data file ({type(error).__name__}): truncated, damaged or of another format.",
            "Fetch the data set again.",
        ) from error


class _ForbiddenError(Exception):
    """What the pickle asked for and may not have."""


class _Sealed:
    """Something a pickle may call and may not alter: else a BUILD instruction could set attributes on our classes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise _ForbiddenError(f"a state for {type(self).__name__}")


class _Dtype(_Sealed):
    """Stands for `numpy.dtype`: the type of an integer, and nothing that has parts, sub-arrays or pointers."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        self.code = _text(code)
        self.order = "="
        if self.code not in INTEGERS:
            raise _ForbiddenError(f"values of type '{self.code}'")

    def __setstate__(self, state: object) -> None:
        _, order, *parts = _tuple(state, at_least=5)
        if any(part is not None for part in parts[:3]):
            raise _ForbiddenError("values with parts")
        if order not in ORDERS:
            raise _ForbiddenError("values of another byte order")
        self.order = ORDERS[order]

    def read(self, data: object, shape: tuple[int, ...], fortran: object = False) -> NDArray[np.integer]:
        """The values that `data` holds. Raises ValueError unless they fill the shape exactly."""
        if not isinstance(data, bytes):
            raise _ForbiddenError("an array that is not bytes")
        values: NDArray[np.integer] = np.frombuffer(data, np.dtype(self.order + self.code))
        return values.reshape(shape, order="F" if fortran else "C")


class _Array(_Sealed):
    """Stands for NumPy's `_reconstruct`: an empty array, filled by the state that follows."""

    __slots__ = ("array",)

    def __init__(self, kind: object, shape: object, typecode: object) -> None:
        if kind is not NDARRAY:
            raise _ForbiddenError("an array of another class")
        self.array: NDArray[np.integer] | None = None

    def __setstate__(self, state: object) -> None:
        _, shape, dtype, fortran, data = _tuple(state, at_least=5)
        if not isinstance(dtype, _Dtype):
            raise _ForbiddenError("an array without a type")
        shape = _tuple(shape)
        if any(type(length) is not int or length < 0 for length in shape):
            raise _ForbiddenError("an array without a shape")
        self.array = dtype.read(data, shape, fortran)

    def values(self) -> NDArray[np.integer]:
        if self.array is None:
            raise ValueError("an array without values")
        return self.array


class _Scalar(_Sealed):
    """Stands for NumPy's `scalar`: a plain integer."""

    __slots__ = ()

    def __new__(cls, dtype: object, data: object) -> Any:
        if not isinstance(dtype, _Dtype):
            raise _ForbiddenError("a number without a type")
        return int(dtype.read(data, ()))


class _Latin1(_Sealed):
    """Stands for `_codecs.encode`, by which Python 3 writes bytes in protocol 2: Latin-1 and no other codec."""

    __slots__ = ()

    def __new__(cls, text: object, codec: object) -> Any:
        if not isinstance(text, str) or _text(codec) != "latin1":
            raise _ForbiddenError(f"the codec {codec!r}")
        return text.encode("latin1")


ADMITTED: dict[tuple[str, str], object] = {
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy._core.multiarray", "scalar"): _Scalar,
    ("_codecs", "encode"): _Latin1,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        # Python 2's byte strings may not be text, and pixels are among them.
        super().__init__(stream, fix_imports=False, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise _ForbiddenError(f"{module}.{name}")
        return ADMITTED[module, name]

    def persistent_load(self, reference: object) -> NoReturn:
        raise _ForbiddenError("an object outside the file")


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise _ForbiddenError("a key or name that is not text")
    return value


def _tuple(value: object, at_least: int = 0) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or len(value) < at_least:
        raise _ForbiddenError("an array of another form")
    return value
