"""HDF5 files of others: what was written and meant is read; what HDF5 makes up, or reads otherwise, is refused."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.hdf5 import arrays_of
from tests.support import refuses

X = np.arange(24, dtype=np.float32).reshape(12, 2) - 5
Y = np.arange(12) % 3
WHO = np.arange(12) // 2
Write = Callable[[h5py.File], object]


def first(name: str, values: np.ndarray, n: int, **options: Any) -> Write:
    """An array of which only the first n rows are written."""

    def write(file: h5py.File) -> None:
        made = file.create_dataset(name, values.shape, values.dtype, **options)
        if n:
            made[:n] = values[:n]

    return write


def marked(name: str, **attributes: Any) -> Write:
    return lambda file: [file[name].attrs.update({key: value}) for key, value in attributes.items()]


def allocated(when: int, fill: int) -> Write:
    def write(file: h5py.File) -> None:
        how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        how.set_chunk((4, 2))
        how.set_alloc_time(when)
        how.set_fill_time(fill)
        space = h5py.h5s.create_simple((12, 2))
        h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, how).write(h5py.h5s.ALL, h5py.h5s.ALL, X)

    return write


def compact(file: h5py.File) -> None:
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((12, 2))
    h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, how).write(h5py.h5s.ALL, h5py.h5s.ALL, X)


def a_column(file: h5py.File) -> None:
    file.create_dataset("features", X.shape, "f4", chunks=(4, 1))[:, 0] = X[:, 0]


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((12, 2), np.float32)
    layout[:] = h5py.VirtualSource("other.h5", "features", (12, 2))
    file.create_virtual_dataset("features", layout)


def grown(file: h5py.File) -> None:
    made = file.create_dataset("features", (4, 2), "f4", maxshape=(None, 2), chunks=(4, 2))
    made.resize(12, axis=0)
    made[:] = X


def not_finished(path: Path) -> None:
    """The mark of a writer that was stopped, in the superblock of the newest format."""
    data = bytearray(path.read_bytes())
    data[11] |= 5
    path.write_bytes(bytes(data))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


RIGHT: list[tuple[str, Write]] = [
    ("in one piece", first("features", X, 12)),
    ("in chunks", first("features", X, 12, chunks=(4, 2))),
    ("in chunks that are wider", first("features", X, 12, chunks=(5, 2), compression="gzip", fletcher32=True)),
    ("in chunks of columns", first("features", X, 12, chunks=(5, 1), compression="lzf", shuffle=True)),
    ("in the header", compact),
    ("in chunks that were made before", allocated(h5py.h5d.ALLOC_TIME_EARLY, h5py.h5d.FILL_TIME_ALLOC)),
    ("in chunks that were never filled", allocated(h5py.h5d.ALLOC_TIME_INCR, h5py.h5d.FILL_TIME_NEVER)),
    ("grown", grown),
    ("of another order of bytes", first("features", X.astype(">f8"), 12)),
    ("with a fill value that no row has", first("features", X, 12, chunks=(4, 2), fillvalue=-5)),
    ("beside an axis that was never written", lambda f: (f.update(features=X), first("band", Y, 0)(f))),
    ("beside a link", lambda f: f.update(features=X, elsewhere=h5py.ExternalLink("/etc/passwd", "x"))),
    ("of no number where some are missing", lambda f: (f.update(features=X), marked("features", _FillValue=np.nan)(f))),
]
WRONG: list[tuple[str, str, Write]] = [
    ("features were never written", "damaged", first("features", X, 0)),
    ("no chunk of features was written", "damaged", first("features", X, 0, chunks=(4, 2))),
    ("the last chunk was not written", "damaged", first("features", X, 8, chunks=(4, 2))),
    ("a column was not written", "damaged", a_column),
    ("rows of a fill value", "bad-record", first("features", X, 9, chunks=(4, 2), fillvalue=9.97e36)),
    (
        "labels were never written",
        "damaged",
        lambda f: (f.update(features=X), f.pop("labels"), first("labels", Y, 0)(f)),
    ),
    (
        "some labels were not written",
        "damaged",
        lambda f: (f.update(features=X), f.pop("labels"), first("labels", Y, 8, chunks=(4,))(f)),
    ),
    (
        "some persons were not written",
        "damaged",
        lambda f: (f.update(features=X), first("groups", WHO, 8, chunks=(4,))(f)),
    ),
    ("scaled", "unsupported", lambda f: (f.update(features=X), marked("features", scale_factor=0.5)(f))),
    ("moved", "unsupported", lambda f: (f.update(features=X), marked("features", add_offset=np.array([3.0]))(f))),
    ("with gaps", "unsupported", lambda f: (f.update(features=X), marked("features", _FillValue=-999.0)(f))),
    ("labels with gaps", "unsupported", lambda f: (f.update(features=X), marked("labels", missing_value=2)(f))),
    ("of MATLAB", "unsupported", lambda f: (f.update(features=X), marked("features", MATLAB_class=b"double")(f))),
    ("other files' values", "damaged", virtual),
]


def made(place: Path, write: Write) -> Path:
    with h5py.File(place / "a.h5", "w", libver="latest") as file:
        file["labels"] = Y
        write(file)
    return place / "a.h5"


def read(source: Path, *names: str) -> list[np.ndarray]:
    with ExitStack() as stack:
        arrays = arrays_of(source, stack)
        return [arrays[name].read(0, 12) for name in names]


def test_arrays_are_read_however_they_are_stored(tmp_path: Path) -> None:
    for name, write in RIGHT:
        x, y = read(made(tmp_path, write), "features", "labels")
        assert (x.tolist(), y.tolist()) == (X.tolist(), Y.tolist()), name


def test_what_was_never_written_or_means_something_else_is_refused(tmp_path: Path) -> None:
    for name, code, write in WRONG:
        source = made(tmp_path, write)
        with h5py.File(source) as file:
            names = sorted(set(file) & {"features", "labels", "groups"})
        with pytest.raises(UserError) as caught:
            read(source, *names)
        assert (caught.value.code, caught.value.fields["path"]) == (code, str(source)), name


def test_arrays_of_groups_at_any_depth_have_their_whole_names(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        file["of/a/model/features"] = X
        # A way around leads nowhere new.
        file["of/again"] = file["of"]

    source = made(tmp_path, write)
    with ExitStack() as stack:
        assert sorted(arrays_of(source, stack)) == ["labels", "of/a/model/features"]
    assert read(source, "of/a/model/features")[0].tolist() == X.tolist()


def test_a_file_whose_writer_was_stopped_is_refused(tmp_path: Path) -> None:
    for spoil in (not_finished, cut):
        source = made(tmp_path, lambda file: file.update(features=X))
        spoil(source)
        with refuses("damaged", path=str(source)):
            read(source, "features")
