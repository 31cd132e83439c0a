"""Reading CIFAR's pickles without trusting them.

A pickle is a program: it may name any importable function and call it. This reader lets it name five things only: those
that integer arrays in protocol 2 need. The pickle gets none of them. In the place of each stands a small class of ours,
which checks its arguments and stores them. NumPy sees only bytes, after their type, order, shape and length were
checked. So there are no object arrays, where the pickle would supply pointers, and no other tricks with dtypes. If a
pickle names anything else, it is refused before that is imported, and the message says what it named.

A hostile pickle can still waste memory and time. It cannot run code.
"""

import io
import pickle
import pickletools
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError

NDARRAY = "numpy.ndarray"
INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
ORDERS = {"<": "<", b"<": "<", ">": ">", b">": ">", "=": "=", b"=": "=", "|": "=", b"|": "="}
REMEDY = "Use the official archive of the data set, or convert your copy to an image folder."


def read_pickle(data: bytes, name: str) -> dict[str, object]:
    """Read a pickle that holds a dictionary.

    Args:
        data: the pickle's bytes.
        name: the file's name, for messages.

    Returns:
        The dictionary. Its keys are text, and arrays of integers are NumPy arrays. Text that Python 2 wrote is bytes.

    Raises:
        UserError: the pickle needs anything but plain containers and integer arrays, is cut off, or does not hold a
            dictionary (code "damaged").

    """
    try:
        _check_memo(data)
        value = _Unpickler(io.BytesIO(data)).load()
        return {_text(key): item.values() if isinstance(item, _Array) else item for key, item in value.items()}
    except _ForbiddenError as refusal:
        raise UserError(
            f"'{name}' asks for {refusal}, which dpfc does not allow in a data file.",
            REMEDY,
            code="damaged",
            path=name,
        ) from None
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(
            f"'{name}' cannot be read as a data file ({type(error).__name__}). It is cut off, damaged, or of another "
            "format.",
            "Fetch the data set again.",
            code="damaged",
            path=name,
        ) from error


def _check_memo(data: bytes) -> None:
    """Refuse a number in the table of remembered objects that no file of this size needs.

    Each instruction remembers one object at most, but it names the place itself. Python makes the table as long as
    that, so five bytes could take 32 GB.
    """
    for instruction, place, _ in pickletools.genops(data):
        if instruction.name in ("PUT", "LONG_BINPUT") and place is not None and int(place) > len(data):
            raise _ForbiddenError(f"the {place}th of its objects")


class _ForbiddenError(Exception):
    """The pickle asked for something that is not allowed."""


class _Sealed:
    """A class that a pickle may call but not change. (A BUILD instruction could set attributes on other classes.)"""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise _ForbiddenError(f"a state for {type(self).__name__}")


class _Dtype(_Sealed):
    """In the place of `numpy.dtype`: the type of an integer. It has no parts, sub-arrays or pointers."""

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
        """The values in `data`. Raises ValueError unless they fill the shape exactly."""
        if not isinstance(data, bytes):
            raise _ForbiddenError("an array that is not bytes")
        values: NDArray[np.integer] = np.frombuffer(data, np.dtype(self.order + self.code))
        return values.reshape(shape, order="F" if fortran else "C")


class _Array(_Sealed):
    """In the place of NumPy's `_reconstruct`: an empty array. The state that follows fills it."""

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
    """In the place of NumPy's `scalar`: a plain integer."""

    __slots__ = ()

    def __new__(cls, dtype: object, data: object) -> Any:
        if not isinstance(dtype, _Dtype):
            raise _ForbiddenError("a number without a type")
        return int(dtype.read(data, ()))


class _Latin1(_Sealed):
    """In the place of `_codecs.encode`, with which Python 3 writes bytes in protocol 2. Latin-1 is the only codec."""

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
        # Python 2's byte strings need not be text: pixels are byte strings too.
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
