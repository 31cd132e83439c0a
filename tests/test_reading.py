"""A system that fails says nothing against a file: what it refuses is never called damage."""

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pyarrow as pa
import pytest

from dpfc_cli import arrays
from dpfc_cli.errors import Code, UserError
from dpfc_cli.features.hdf5 import ARRAYS, _Whole, arrays_of
from dpfc_cli.reading import readable
from tests.support import refuses


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def fail(*given: object, **others: object) -> NoReturn:
        raise error

    return fail


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "code"), [(system(errno.EIO), "unreadable"), (MemoryError(), "memory"), (KeyError("x"), "damaged")]
)
def test_what_fails_while_rows_are_read_is_told_by_its_reason(error: Exception, code: Code) -> None:
    with refuses(code), arrays.reading(Path("x.npz"), ""):
        raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (system(errno.EIO), "unreadable"),
        (system(errno.ENOMEM), "memory"),
        (pa.ArrowMemoryError("malloc of size 100 failed"), "memory"),
        (pa.ArrowInvalid("x"), "damaged"),
        (ValueError("x"), "damaged"),
    ],
)
def test_only_what_the_contents_are_to_blame_for_is_damage(tmp_path: Path, error: Exception, code: Code) -> None:
    path = tmp_path / "x.parquet"
    path.touch()
    with pytest.raises(UserError) as caught, readable(path, "parquet", "Fetch it again.", pa.ArrowException):
        raise error
    assert (caught.value.code, "need not be damaged" in caught.value.remedy) == (code, code != "damaged")


def test_a_disk_that_fails_in_the_middle_of_an_array_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 makes an error of its own of it."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["features"] = np.zeros((2**14, 8), np.float32)
    read = _Whole.readinto

    def failing(self: _Whole, buffer: Any) -> int:
        if len(memoryview(buffer).cast("B")) > 2**16:
            raise system(errno.EIO)
        return read(self, buffer)

    monkeypatch.setattr(_Whole, "readinto", failing)
    with ExitStack() as stack, refuses("unreadable", match=os.strerror(errno.EIO)):
        arrays_of(path, stack)["features"].read(0, 2**14)


def test_a_chunk_that_fails_to_expand_is_damaged_only_if_the_system_would_give_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 says "filter returned failure" of both."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (64, 8), "f4", chunks=(64, 8), compression="gzip", data=np.ones((64, 8)))
        start = file["features"].id.get_chunk_info(0).byte_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(8))
    with ExitStack() as stack:
        features = arrays.arrays_in(path, stack, ARRAYS)["features"]
        for given, code in ((True, "damaged"), (False, "memory")):
            if not given:
                monkeypatch.setattr("dpfc_cli.memory.mmap.mmap", raising(system(errno.ENOMEM)))
            with refuses(code):
                features.read(0, 1)
