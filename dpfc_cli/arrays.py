"""The arrays in files, by what their headers declare. Nothing is expanded before its size is known.

An archive of some kilobytes can hold arrays of many gigabytes: zeros compress a thousandfold, and honest features may
be zeros, too. So sizes are never limited as such. An array is read a few rows at a time, or its declared size is held
against the memory that is free. `zipfile` gives no more bytes than the archive declares for a member. Nothing is
unpickled.
"""

import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits
from dpfc_cli.reading import unread

BROKEN = (
    *(ValueError, TypeError, OverflowError, EOFError, LookupError, RuntimeError, SyntaxError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What reading a damaged archive or header raises, beside OSError."""
Rows = Callable[[int, int], np.ndarray]
"""rows(start, stop): the rows [start, stop)."""
NPY = ".npy"


@dataclass(frozen=True)
class Array:
    """An array in a file. dtype: or the name of a type that NumPy does not have."""

    shape: tuple[int, ...]
    dtype: Any
    read: Rows

    def whole(self, path: Path, name: str) -> np.ndarray:
        """All rows. UserError if memory cannot hold them. path, name: for its message."""
        check_fits(path, f"'{name}'", math.prod(self.shape) * self.dtype.itemsize, copies=2)
        return self.read(0, self.shape[0])


Format = Callable[[Path, ExitStack], dict[str, Array]]
"""Opens a file, which the stack closes."""


def sliced(array: Any) -> Rows:
    """The rows of what can be sliced, as NumPy arrays."""
    return lambda start, stop: np.asarray(array[start:stop])


def arrays_in(
    path: Path, stack: ExitStack, formats: Mapping[str, Format] | None = None, remedy: str = "Write it again."
) -> dict[str, Array]:
    """The arrays in a file, by name. Nothing is said of what they hold. stack: it closes the file. formats: by the end
    of the file's name; None: `FORMATS`. remedy: what to do if the file is damaged. UserError: it cannot be read.
    Reading an array raises it, too.
    """

    def guarded(read: Rows) -> Rows:
        def rows(start: int, stop: int) -> np.ndarray:
            with reading(path, remedy):
                return read(start, stop)

        return rows

    with reading(path, remedy):
        check_plain(path)
        found = (FORMATS if formats is None else formats)[path.suffix.lower()](path, stack)
    return {name: replace(array, read=guarded(array.read)) for name, array in found.items()}


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Turn whatever a library raises for a damaged file into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise unread(path, error, f"a complete {path.suffix.lower()} file", remedy) from error


def npy(path: Path, _: ExitStack) -> dict[str, Array]:
    # np.load would accept other formats under this name, too.
    with path.open("rb") as file:
        header(file)
    array = np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    return {path.stem: Array(array.shape, array.dtype, sliced(array))}


def npz(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The arrays of an archive, by name without `.npy`."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive")
    archive = stack.enter_context(zipfile.ZipFile(path))
    found: dict[str, Array] = {}
    for each in archive.infolist():
        name = each.filename.removesuffix(NPY)
        if name == each.filename:
            continue
        if name in found:
            raise ValueError(f"it holds '{name}' twice")
        member = _Member(path, archive, each)
        found[name] = Array(member.shape, member.dtype, member.rows)
        stack.callback(member.close)
    return found


def safetensors(path: Path, stack: ExitStack) -> dict[str, Array]:
    from safetensors import safe_open

    widths = {"F": (16, 32, 64), "I": (8, 16, 32, 64), "U": (8, 16, 32, 64)}
    kinds = {f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind, own in widths.items() for bits in own}
    kinds["BF16"] = np.dtype(ml_dtypes.bfloat16)
    file = stack.enter_context(safe_open(path, framework="numpy"))
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    # A type that is not in `kinds` stays a name: the error about it then says which type it is.
    types: dict[str, Any] = {name: kinds.get(part.get_dtype(), part.get_dtype()) for name, part in slices.items()}
    return {name: Array(tuple(part.get_shape()), types[name], sliced(part)) for name, part in slices.items()}


FORMATS: dict[str, Format] = {NPY: npy, ".npz": npz, ".safetensors": safetensors}


class _Member:
    """One array of an archive."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        self._path, self._archive, self._member = path, archive, member
        self._at = 0
        self._file: IO[bytes] | None = None
        self._held: np.ndarray | None = None
        try:
            with archive.open(member) as file:
                self.shape, self._fortran, self.dtype = header(file)
                at = file.tell()
            self._size = math.prod(self.shape) * self.dtype.itemsize
            if at + self._size != member.file_size:
                raise ValueError(f"it declares {self._size:,} bytes of numbers, and holds {member.file_size - at:,}")
        except BROKEN as error:
            raise ValueError(f"'{member.filename}': {error}") from error

    def rows(self, start: int, stop: int) -> np.ndarray:
        """The rows [start, stop). Reading forwards reads the archive once."""
        if self._fortran and len(self.shape) > 1:
            if self._held is None:
                check_fits(self._path, f"'{self._member.filename}'", self._size, copies=2)
                self._held = self._columns()
            return self._held[start:stop]
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        if self._file is None or start < self._at:
            self._begin()
        assert self._file is not None
        while self._at < start:
            step = min(start - self._at, max(1, _PIECE // max(width, 1)))
            _exactly(self._file, step * width)
            self._at += step
        stop = min(stop, self.shape[0])
        self._at = stop
        found = np.frombuffer(_exactly(self._file, (stop - start) * width), self.dtype).reshape(-1, *self.shape[1:])
        if stop == self.shape[0]:
            # The checksum is compared at the end.
            self._file.read(1)
        return found

    def _columns(self) -> np.ndarray:
        """The whole array, which is stored column by column."""
        self._begin()
        assert self._file is not None
        values = np.frombuffer(_exactly(self._file, self._size), self.dtype)
        self._file.read(1)
        return values.reshape(self.shape[::-1]).T

    def _begin(self) -> None:
        self.close()
        self._file = self._archive.open(self._member)
        header(self._file)
        self._at = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_PIECE = 2**22
"""Bytes that are passed over at a time."""


def header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and dtype, of the array at the beginning of a file.

    NumPy reads the header without running code. Headers of the later versions are for arrays of many fields; they may
    take gigabytes.

    Raises:
        ValueError and others of `BROKEN`: there is no such header, or its values make no sense.

    """
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it has an array that is not one of plain numbers")
    try:
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except MemoryError:
        # Python's parser says so of brackets that are nested too deeply.
        raise ValueError("its header is nested too deeply") from None
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("it has an array of Python objects, or of a negative shape")
    return shape, fortran, dtype


def _exactly(file: IO[bytes], count: int) -> bytes:
    found = file.read(count) if count else b""
    if len(found) != count:
        raise ValueError("it ends too early")
    return found
