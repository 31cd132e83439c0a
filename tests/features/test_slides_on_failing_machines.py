"""A machine that fails while slides are read makes no null records: the import stops."""

import errno
import itertools
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.hdf5 import _Whole
from tests.features.test_slides import D, imported, written

LARGE = 2**20
"""Patches of one slide: 40 MiB in one chunk, which zeros compress to a hundredth."""


@contextmanager
def little_memory(extra: int) -> Iterator[None]:
    """So many bytes more, and none beyond."""
    lines = Path("/proc/self/status").read_text().splitlines()
    now = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize"))
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + extra, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS has no effect elsewhere")
def test_a_slide_that_memory_cannot_hold_is_not_damaged(tmp_path: Path) -> None:
    """HDF5 says of both that a filter failed."""
    place = written(tmp_path)
    with h5py.File(place / "slide_3.h5", "w") as file:
        x = np.zeros((LARGE, D))
        file.create_dataset("features", data=x, chunks=x.shape, compression="gzip", compression_opts=1)
    # Enough for a block of patches, and not for the chunk.
    with little_memory(LARGE * 30), pytest.raises(MemoryError):
        imported(tmp_path, place, on_error="null", most_null=0.2)
    assert not (tmp_path / "set").exists()
    assert imported(tmp_path, place, on_error="null", most_null=0.2, warn=pytest.fail).splits == {"train": 6}


def test_a_chunk_that_is_damaged_makes_a_null_record(tmp_path: Path) -> None:
    place = written(tmp_path)
    with h5py.File(place / "slide_3.h5", "w") as file:
        file.create_dataset("features", data=np.ones((64, D)), chunks=(64, D), compression="gzip")
        at = file["features"].id.get_chunk_info(0)
    data = bytearray((place / "slide_3.h5").read_bytes())
    data[at.byte_offset : at.byte_offset + at.size] = bytes(at.size)
    (place / "slide_3.h5").write_bytes(data)
    told: list[str] = []
    imported(tmp_path, place, on_error="null", most_null=0.2, warn=told.append)
    assert told[1].startswith("slide_3: ")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM])
def test_a_disk_that_fails_stops_the_import(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each read of a slide, from its opening to its last value."""
    place, real = written(tmp_path), _Whole.readinto
    reads = itertools.count()
    failing = -1

    def readinto(self: Any, buffer: Any) -> int:
        if next(reads) == failing:
            raise OSError(number, os.strerror(number))
        return real(self, buffer)

    monkeypatch.setattr(_Whole, "readinto", readinto)
    imported(tmp_path, place)
    # Of the whole folder; the slides are alike.
    for at in range(next(reads) // 6):
        failing, reads = at, itertools.count()
        (tmp_path / "set" / "manifest.json").unlink(missing_ok=True)
        with pytest.raises(UserError) as stopped:
            imported(tmp_path, place, on_error="null", most_null=0.9, warn=pytest.fail)
        assert stopped.value.code == "unreadable"


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_slides_in_a_folder_that_cannot_be_listed_are_not_missing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = written(tmp_path, name="deeper/slide_{}.h5"), os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == "deeper":
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError) as stopped:
        imported(tmp_path, place, on_error="null", most_null=0.9)
    assert stopped.value.code == "unreadable"
