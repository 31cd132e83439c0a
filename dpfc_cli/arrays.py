"""The arrays in files, by what their headers declare. Nothing is expanded before its size is known.

An archive of some kilobytes can hold arrays of many gigabytes: zeros compress a thousandfold, and honest features may
be zeros, too. So sizes are never limited as such. An array is read a few rows at a time, or (of an archive) its
declared size is held against the memory that is free. `zipfile` gives no more bytes than the archive declares for a
member. Nothing is unpickled.
"""

import io
import math
import shutil
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import ml_dtypes
import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.files import check_plain
from dpfc_cli.memory import check_fits
from dpfc_cli.places import remote
from dpfc_cli.reading import unread

BROKEN = (
    *(ValueError, TypeError, OverflowError, EOFError, LookupError, RuntimeError, SyntaxError),
    *(NotImplementedError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What reading a damaged archive or header raises, beside OSError."""
Rows = Callable[[int, int], np.ndarray]
"""rows(start, stop): the rows [start, stop)."""
NPY = ".npy"
FLOATS = tuple(map(np.dtype, (np.float16, np.float32, np.float64)))
"""What features are."""


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


def _here(path: Path, stack: ExitStack) -> Path:
    """A file at a URL as one of this machine, in a folder for this user alone ($TMPDIR) until the stack is closed."""
    if remote(path) is None:
        return path
    copy = Path(stack.enter_context(TemporaryDirectory(prefix="dpfc-"))) / path.name
    with path.open("rb") as source, copy.open("xb") as file:
        shutil.copyfileobj(source, file, 1 << 23)
    return copy


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
    # What is mapped stays when its name is gone.
    with ExitStack() as stack:
        path = _here(path, stack)
        # np.load would accept other formats under this name, too, and pass over what lies behind the array.
        with path.open("rb") as file:
            _sized(file, path.stat().st_size)
        array = np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    return {path.stem: Array(array.shape, array.dtype, sliced(array))}


def npz(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The arrays of an archive, by name without `.npy`. What else lies there is listed without a shape."""
    path = _here(path, stack)
    if not zipfile.is_zipfile(path):
        raise ValueError("it is not a zip archive")
    archive = stack.enter_context(zipfile.ZipFile(path))
    _check_alone(path, archive)
    found: dict[str, Array] = {}
    for each in archive.infolist():
        name = each.filename.removesuffix(NPY)
        if name in found:
            raise ValueError(f"it holds '{name}' twice")
        if name == each.filename:
            found[name] = Array((), "no array", sliced(()))
            continue
        try:
            with archive.open(each) as file:
                shape, dtype = _sized(file, each.file_size)
        except BROKEN as error:
            raise ValueError(f"'{each.filename}': {error}") from error
        found[name] = Array(shape, dtype, _held(path, archive, each, math.prod(shape) * dtype.itemsize))
    return found


def _check_alone(path: Path, archive: zipfile.ZipFile) -> None:
    """ValueError if something lies before or behind an archive: another one would be passed over."""
    with path.open("rb") as file:
        file.seek(-22 - len(archive.comment), io.SEEK_END)
        end = file.read(4)
    if end != b"PK\x05\x06" or min((each.header_offset for each in archive.infolist()), default=0):
        raise ValueError("something lies before or behind the archive in it")


def _held(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, size: int) -> Rows:
    """The rows of an array in an archive. It is read once, as a whole."""

    @cache
    def whole() -> np.ndarray:
        check_fits(path, f"'{member.filename}'", size)
        with archive.open(member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            # The checksum is compared at the end.
            file.read(1)
        return np.asarray(array)

    return lambda start, stop: whole()[start:stop]


def safetensors(path: Path, stack: ExitStack) -> dict[str, Array]:
    from safetensors import safe_open

    widths = {"F": (16, 32, 64), "I": (8, 16, 32, 64), "U": (8, 16, 32, 64)}
    kinds = {f"{kind}{bits}": np.dtype(f"{kind.lower()}{bits // 8}") for kind, own in widths.items() for bits in own}
    kinds |= {"BF16": np.dtype(ml_dtypes.bfloat16), "BOOL": np.dtype(np.bool_)}
    file = stack.enter_context(safe_open(_here(path, stack), framework="numpy"))
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    # A type that is not in `kinds` stays a name: the error about it then says which type it is.
    types: dict[str, Any] = {name: kinds.get(part.get_dtype(), part.get_dtype()) for name, part in slices.items()}
    return {name: Array(tuple(part.get_shape()), types[name], sliced(part)) for name, part in slices.items()}


FORMATS: dict[str, Format] = {NPY: npy, ".npz": npz, ".safetensors": safetensors}


def _sized(file: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype]:
    """As `header`, of a file of so many bytes. ValueError if it holds more or fewer numbers than it declares."""
    shape, dtype = header(file)
    declared, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if declared != held:
        raise ValueError(f"it declares {declared:,} bytes of numbers, and holds {held:,}")
    return shape, dtype


def header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array at the beginning of a file.

    NumPy reads the header without running code. Headers of the later versions are for arrays of many fields; they may
    take gigabytes.

    Raises:
        ValueError and others of `BROKEN`: there is no such header, or its values make no sense.

    """
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("it has an array that is not one of plain numbers")
    try:
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except MemoryError:
        # Python's parser says so of brackets that are nested too deeply.
        raise ValueError("its header is nested too deeply") from None
    if dtype.hasobject or min(shape, default=0) < 0:
        raise ValueError("it has an array of Python objects, or of a negative shape")
    return shape, dtype
