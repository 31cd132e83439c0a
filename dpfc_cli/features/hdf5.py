"""HDF5 files that others made. Everything is checked before it is used.

h5py silently follows external links, raw external storage and virtual data sets. A hostile file could therefore make
dpfc read any file of the machine. So, before a single value is read, each data set must be a hard link to plain,
unfiltered storage in its own file, with the shape and the dtype that are stated elsewhere.

Of what was never written, h5py makes up values, silently too. And what it reads is not always what the writer meant:
attributes say how numbers are packed, which of them stand for gaps, or that MATLAB has turned the array. Such arrays
are refused.
"""

import errno
import fcntl
import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfc_cli.arrays import FORMATS, Array, Rows, sliced
from dpfc_cli.errors import GUARDED, UserError, bad_record, damaged, quoted, unsupported
from dpfc_cli.files import NoPlainFileError, check_plain
from dpfc_cli.memory import check_fits, proved
from dpfc_cli.places import remote
from dpfc_cli.reading import INNOCENT, unread

if TYPE_CHECKING:
    import h5py

DAMAGED = (RuntimeError, KeyError, ValueError, TypeError, OverflowError)
"""What h5py makes of HDF5's errors, beside OSError. OverflowError: the file sends HDF5 to a place beyond all files."""
BUILT_IN = frozenset((1, 2, 3, 4, 5, 6, 32000))
"""HDF5's filters: deflate, shuffle, fletcher32, szip, nbit, scale-offset, and h5py's lzf."""
COMPRESSING = frozenset((1, 4, 5, 6, 32000))
MEANING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "MATLAB_class")
"""Attributes of netCDF and MATLAB that say that values mean something else. (NaN means gaps, and no feature is NaN.)"""


class _Whole(io.FileIO):
    """A file that gives all bytes that it is asked for, or fails.

    HDF5 takes zeros for what a file that ends early no longer holds, and says nothing. A head would be made of them.
    """

    def readinto(self, buffer: Any) -> int:
        rest = memoryview(buffer).cast("B")
        size = len(rest)
        while len(rest):
            read = super().readinto(rest)
            if not read and self.tell() < os.fstat(self.fileno()).st_size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if not read:
                raise OSError("the file ends early")
            rest = rest[read:]
        return size


class _Held(io.BytesIO):
    """The same of bytes in memory."""

    def readinto(self, buffer: Any) -> int:
        read = super().readinto(buffer)
        if read < memoryview(buffer).nbytes:
            raise OSError("the file ends early")
        return read


def _storage(path: Path, data: bytes | None) -> io.IOBase:
    """The file to read from. Raises OSError."""
    if (far := remote(path)) is not None:
        if data is None:
            check_fits(path, "the file", path.stat().st_size)
            data = far.bytes_from()
        return _Held(data)
    check_plain(path)
    file = _Whole(path)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # Some file systems have no locks. HDF5 takes its own in the same way.
        if isinstance(error, BlockingIOError):
            file.close()
            raise
    return file


@contextmanager
def opened_hdf5(path: Path, data: bytes | None = None) -> Iterator["h5py.File"]:
    """The HDF5 file, open for reading until the end of the block. Nobody may write to it meanwhile. data: its bytes, of
    a file at a URL; None: they are read into memory. UserError: it cannot be opened. The message tells a damaged file
    from one that we may not read now.
    """
    import h5py

    with ExitStack() as stack:
        try:
            storage = stack.enter_context(_storage(path, data))
            file = stack.enter_context(h5py.File(storage, "r"))
        except BlockingIOError as error:
            raise UserError(
                f"{quoted(path)} is locked: another program has it open for writing.",
                "Close it there, and try again.",
                code="busy",
            ) from error
        except (OSError, *DAMAGED) as error:
            raise _failed(path, error, "it is truncated or not HDF5") from error
        opened = stack.pop_all()
    try:
        yield file
    finally:
        # It was only read. If it cannot be closed, nothing is lost.
        with suppress(OSError, *DAMAGED):
            opened.close()


def plain_dataset(file: "h5py.File", path: Path, name: str, shape: tuple[int, ...], dtype: str) -> "h5py.Dataset":
    """The data set `name` of an open file. Raises UserError unless it is stored plainly, in that file, with this shape
    and dtype, and with all its values: HDF5 makes up what was never written.
    """
    with readable(path):
        dataset = local_dataset(file, path, name)
        if dataset.id.get_create_plist().get_nfilters():
            raise broken(path, f"'{name}' is stored through filters, which dpfc does not run")
        if dataset.shape != shape or dataset.dtype != np.dtype(dtype):
            said = f"shape {dataset.shape} and dtype {dataset.dtype}"
            raise broken(path, f"'{name}' has {said}, not {shape} and {dtype}")
        _check_whole(dataset, path, name)
    return dataset


# Arrays of others


def arrays_of(path: Path, stack: ExitStack) -> dict[str, Array]:
    """The arrays of an HDF5 file, in groups at any depth, by their whole names. What cannot be one, such as a link, is
    listed without a shape. Nothing is said of what is not read.
    """
    import h5py

    file, names, found = stack.enter_context(opened_hdf5(path)), list[str](), dict[str, Array]()
    with readable(path):
        # Each group is entered once, and no link is followed.
        file.visit_links(names.append)
        for name in names:
            held = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
            if isinstance(held, h5py.Dataset):
                kind = "numbers with names" if h5py.check_enum_dtype(held.dtype) is not None else held.dtype
                # A data set without a data space has no shape.
                found[name] = Array(held.shape or (), kind, stored_rows(held, path, name))
            elif not isinstance(held, h5py.Group):
                found[name] = Array((), "no array", sliced(()))
    return found


ARRAYS = {**FORMATS, ".h5": arrays_of, ".hdf5": arrays_of}
"""The formats of files of arrays, by how their names end."""


def stored_rows(dataset: "h5py.Dataset", path: Path, name: str) -> Rows:
    """What reads rows of a data set of others; of 1 × n × d numbers, n rows. Before the first, `_check_stored`.

    Zeros may be honest. But rows that hold nothing but another value that the file declares for what was never written
    are refused.
    """
    checked = cache(partial(_check_stored, dataset, path, name))
    first = (0,) if dataset.ndim == 3 and len(dataset) == 1 else ()

    def read(start: int, stop: int) -> np.ndarray:
        with readable(path):
            checked()
        # HDF5 calls a lack of memory in a filter a failure of the filter, as it calls a damaged chunk.
        with proved(4 * math.prod(dataset.chunks or ()) * dataset.dtype.itemsize), readable(path):
            rows = np.asarray(dataset[(*first, slice(start, stop))])
        fill = dataset.fillvalue if rows.ndim > 1 and rows.dtype.kind == "f" else 0
        if fill and (rows == fill).all(axis=-1).any():
            raise bad_record(
                f"{quoted(path)}: '{name}' has rows of {fill} alone, which the file declares for what was never "
                f"written. {GUARDED}",
                "Write all rows, or make the array as long as what is written.",
            )
        return rows

    return read


def _check_stored(dataset: "h5py.Dataset", path: Path, name: str) -> None:
    """Raise UserError for a filter that is not built into HDF5, for chunks that memory cannot hold, for values that
    were never written, and for those that mean something else.

    HDF5 would load such a filter from a folder that an environment variable names. It expands a chunk as a whole, even
    if one row of it is read. Numbers that are compressed twice could expand by a factor of a million.
    """
    made = dataset.id.get_create_plist()
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    compressing = [number for number in filters if number in COMPRESSING]
    foreign = [number for number in filters if number not in BUILT_IN] or compressing[1:]
    if dataset.chunks is not None:
        check_fits(path, f"a chunk of '{name}'", math.prod(dataset.chunks) * dataset.dtype.itemsize, copies=3)
    if foreign:
        raise unsupported(
            f"{quoted(path)}: '{name}' is stored through filter {foreign[0]}, which dpfc does not run there.",
            "Write it without compression, or with gzip or lzf alone.",
        )
    said = next((key for key in MEANING if key in dataset.attrs and not _is_nan(dataset.attrs, key)), None)
    if said is not None:
        raise unsupported(
            f"{quoted(path)}: '{name}' has the attribute '{said}'. So its numbers are packed, have gaps, or are "
            "turned, and dpfc takes them as they are.",
            "Write the numbers that are meant, as h5py does: n × d features.",
        )
    _check_whole(dataset, path, name)


def _is_nan(attributes: "h5py.AttributeManager", key: str) -> bool:
    # Texts may lie in a heap, and HDF5 reads a damaged heap without end.
    return attributes.get_id(key).dtype.kind == "f" and bool(np.isnan(attributes[key]).all())


def _check_whole(dataset: "h5py.Dataset", path: Path, name: str) -> None:
    """Raise UserError if a part of a data set has no place in the file. HDF5 makes up what was never written."""
    if dataset.is_virtual or dataset.external is not None:
        raise broken(path, f"'{name}' keeps its data in other files, which dpfc does not follow")
    size = math.prod(dataset.shape) * dataset.dtype.itemsize
    if dataset.chunks is None:
        # That a file in memory ends early is noticed when it is read.
        held = math.inf if remote(path) is not None else path.stat().st_size
        whole = size <= min(dataset.id.get_storage_size(), held)
    else:
        parts = zip(dataset.shape, dataset.chunks, strict=True)
        whole = dataset.id.get_num_chunks() >= math.prod(-(-n // chunk) for n, chunk in parts)
    if not whole:
        raise broken(path, f"'{name}' declares {size:,} bytes, and not all of them were written")


def rows_of(dataset: "h5py.Dataset", path: Path, start: int, count: int) -> np.ndarray:
    with readable(path):
        return np.asarray(dataset[start : start + count])


def local_dataset(group: "h5py.Group", path: Path, name: str) -> "h5py.Dataset":
    """The data set `name` of a group. Raises UserError if it is none, or in another place."""
    import h5py

    link = group.get(name, getlink=True)
    if link is None:
        raise broken(path, f"it has no data set '{name}'")
    if not isinstance(link, h5py.HardLink):
        raise broken(path, f"'{name}' is a link to another place, which dpfc does not follow")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise broken(path, f"'{name}' is not a data set")
    return dataset


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise UserError for what h5py raises when it looks at a file. Code that uses values lies outside."""
    try:
        yield
    except (OSError, *DAMAGED) as error:
        raise _failed(path, error, "it is damaged") from error


def _failed(path: Path, error: Exception, why: str) -> UserError:
    """The error for a file that HDF5 could not read. why: what is wrong with it, if the disk is not."""
    if isinstance(error, OSError) and (error.errno or isinstance(error, NoPlainFileError)):
        return unread(path, error, remedy=_REMEDY if error.errno else INNOCENT, wrong="unreadable")
    # Whatever h5py makes of it, the system's own error is in the text.
    number = re.search(r"errno = (\d+)", str(error))
    return broken(path, why) if number is None else unread(path, OSError(code := int(number[1]), os.strerror(code)))


_REMEDY = (
    "Make the file again with the program that made it. 'dpfc extract' and 'dpfc import' do so once the folder of the "
    "set is deleted."
)


def broken(path: Path, why: str) -> UserError:
    return damaged(f"{quoted(path)} cannot be used: {why}.", _REMEDY)
