"""HDF5 files that others made. Everything is checked before it is used.

h5py silently follows external links, raw external storage and virtual data sets. A hostile file could therefore make
dpfc read any file of the machine. So, before a single value is read, each data set must be a hard link to plain,
unfiltered storage in its own file, with the shape and the dtype that are stated elsewhere.
"""

import errno
import fcntl
import io
import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfc_cli.errors import UserError, damaged, missing, quoted
from dpfc_cli.files import NoPlainFileError, check_plain
from dpfc_cli.reading import unread

if TYPE_CHECKING:
    import h5py

DAMAGED = (RuntimeError, KeyError, ValueError, TypeError, OverflowError)
"""What h5py makes of HDF5's errors, beside OSError. OverflowError: the file sends HDF5 to a place beyond all files."""


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


@contextmanager
def opened_hdf5(path: Path) -> Iterator["h5py.File"]:
    """The HDF5 file, open for reading until the end of the block. Nobody may write to it meanwhile. UserError: it
    cannot be opened. The message tells a damaged file from one that we may not read now.
    """
    import h5py

    with ExitStack() as stack:
        try:
            check_plain(path)
            storage = stack.enter_context(_Whole(path))
            try:
                fcntl.flock(storage, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                # Some file systems have no locks. HDF5 takes its own in the same way.
                pass
            file = stack.enter_context(h5py.File(storage, "r"))
        except FileNotFoundError as error:
            what = f"{quoted(path)} cannot be used: it is missing."
            raise missing(what, _REMEDY) from error
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
    try:
        dataset = local_dataset(file, path, name)
        if dataset.id.get_create_plist().get_nfilters():
            raise broken(path, f"'{name}' is stored through filters, which dpfc does not run")
        if dataset.shape != shape or dataset.dtype != np.dtype(dtype):
            said = f"shape {dataset.shape} and dtype {dataset.dtype}"
            raise broken(path, f"'{name}' has {said}, not {shape} and {dtype}")
        size = math.prod(shape) * dataset.dtype.itemsize
        if size > min(dataset.id.get_storage_size(), path.stat().st_size):
            raise broken(path, f"'{name}' declares {size:,} bytes, which the file does not hold")
    except (OSError, *DAMAGED) as error:
        raise _failed(path, error, f"'{name}' is damaged") from error
    return dataset


def rows_of(dataset: "h5py.Dataset", path: Path, start: int, count: int) -> np.ndarray:
    try:
        return np.asarray(dataset[start : start + count])
    except (OSError, *DAMAGED) as error:
        raise _failed(path, error, "its values are damaged") from error


def local_dataset(group: "h5py.Group", path: Path, name: str) -> "h5py.Dataset":
    """The data set `name` of a group. Raises UserError unless its data lie in that very file."""
    import h5py

    link = group.get(name, getlink=True)
    if link is None:
        raise broken(path, f"it has no data set '{name}'")
    if not isinstance(link, h5py.HardLink):
        raise broken(path, f"'{name}' is a link to another place, which dpfc does not follow")
    dataset = group[name]
    if not isinstance(dataset, h5py.Dataset):
        raise broken(path, f"'{name}' is not a data set")
    if dataset.is_virtual or dataset.external is not None:
        raise broken(path, f"'{name}' keeps its data in other files, which dpfc does not follow")
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
        return unread(path, error, wrong="unreadable")
    # Whatever h5py makes of it, the system's own error is in the text.
    number = re.search(r"errno = (\d+)", str(error))
    return broken(path, why) if number is None else unread(path, OSError(code := int(number[1]), os.strerror(code)))


_REMEDY = (
    "Make the file again with the program that made it. 'dpfc extract' and 'dpfc import' do so once the folder of the "
    "set is deleted."
)


def broken(path: Path, why: str) -> UserError:
    return damaged(f"{quoted(path)} cannot be used: {why}.", _REMEDY)
