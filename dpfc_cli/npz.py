"""The arrays in an .npz archive, by what their headers declare. Nothing is expanded before its size is known.

An archive of some kilobytes can hold arrays of many gigabytes: zeros compress a thousandfold, and honest features may
be zeros, too. So sizes are never limited as such. An array is read a few rows at a time, or its declared size is held
against the memory that is free. `zipfile` gives no more bytes than the archive declares for a member.
"""

import math
import tokenize
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits

BROKEN = (
    *(ValueError, TypeError, OverflowError, EOFError, LookupError, RuntimeError, SyntaxError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What reading a damaged archive or header raises, beside OSError."""


class Array:
    """One array of an archive.

    Attributes:
        shape: as its header declares it.
        dtype: as its header declares it.

    """

    def __init__(self, path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        self._path, self._archive, self._member = path, archive, member
        self._at = 0
        self._file: IO[bytes] | None = None
        self._held: np.ndarray | None = None
        try:
            with archive.open(member) as file:
                self.shape, self._fortran, self.dtype = header(file)
                at = file.tell()
            if at + self.nbytes != member.file_size:
                raise ValueError(f"it declares {self.nbytes:,} bytes of numbers, and holds {member.file_size - at:,}")
        except BROKEN as error:
            raise ValueError(f"'{member.filename}': {error}") from error

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The whole array. Raises UserError if memory cannot hold it, and what `BROKEN` lists for a damaged file."""
        check_fits(self._path, f"'{self._member.filename}'", self.nbytes, copies=2)
        with self._archive.open(self._member) as file:
            header(file)
            values = np.frombuffer(_exactly(file, self.nbytes), self.dtype)
            # The checksum is compared at the end.
            file.read(1)
        return values.reshape(self.shape[::-1]).T if self._fortran else values.reshape(self.shape)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """The rows [start, stop). Reading forwards reads the archive once. Raises as `read` does."""
        if self._fortran and len(self.shape) > 1:
            if self._held is None:
                self._held = self.read()
            return self._held[start:stop]
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        if self._file is None or start < self._at:
            self.close()
            self._file = self._archive.open(self._member)
            header(self._file)
            self._at = 0
        while self._at < start:
            step = min(start - self._at, max(1, _PIECE // max(width, 1)))
            _exactly(self._file, step * width)
            self._at += step
        stop = min(stop, self.shape[0])
        self._at = stop
        return np.frombuffer(_exactly(self._file, (stop - start) * width), self.dtype).reshape(-1, *self.shape[1:])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_PIECE = 2**22
"""Bytes that are passed over at a time."""


def opened(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The arrays of an archive, by name without `.npy`.

    Args:
        path: the archive.
        stack: it closes the archive.

    Raises:
        OSError: it cannot be read.
        ValueError and others of `BROKEN`: it is damaged, or holds something else than arrays of plain numbers.

    """
    check_plain(path)
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive")
    archive = stack.enter_context(zipfile.ZipFile(path))
    found: dict[str, Array] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            continue
        if name in found:
            raise ValueError(f"it holds '{name}' twice")
        found[name] = Array(path, archive, member)
        stack.callback(found[name].close)
    return found


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
