"""Files to import are bounded by what they declare before a byte is expanded, and refused in words that help.

Features that compress well are honest: all zeros, say. So no ratio is refused. What is read in pieces may be of any
size; what must be held at once is compared with the memory that is free, and the set with the room on the disk.
"""

import io
import json
import os
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpfc_cli import memory
from dpfc_cli.errors import UserError
from dpfc_cli.extraction import importing
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.columns import Column
from dpfc_cli.sources import columns
from dpfc_cli.sources.classes import hub_class_names
from tests.hostile import altered, places

X, Y = np.ones((6, 2), np.float32), np.arange(6) % 2
BILLION = 10**9


@pytest.fixture(autouse=True)
def _a_small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 MB of memory and of disk are free, whatever the machine has that runs the tests."""
    monkeypatch.setattr(memory, "free_memory", lambda: 1e8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**8))


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The beginning of an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def hdf5(path: Path, features: dict[str, Any], labels: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("features", **features)
        file.create_dataset("labels", **labels)
    return path


# Bombs: the declared size is known before a byte is expanded


def billion_rows(place: Path) -> Path:
    features = {"shape": (BILLION, 100), "dtype": "float32", "chunks": (1024, 100), "compression": "gzip"}
    return hdf5(place / "a.h5", features, {"shape": (BILLION,), "dtype": "int64", "chunks": (1024,)})


def large_chunk(place: Path) -> Path:
    features = {"shape": (10**6, 100), "dtype": "float32", "chunks": (10**6, 100), "compression": "gzip"}
    return hdf5(place / "a.h5", features, {"data": np.zeros(10**6, np.int8)})


def endless_zip(place: Path) -> Path:
    """40 MB of labels in 40 kB."""
    y = header((5_000_000,), "<i8") + bytes(40_000_000)
    return archive(place / "a.npz", {"train_x.npy": npy(np.ones((5_000_000, 1), np.float16)), "train_y.npy": y})


def columns_first(place: Path) -> Path:
    """What lies column by column cannot be read row by row."""
    x = header((300_000, 100), "<f2").replace(b"'fortran_order': False", b"'fortran_order': True ") + bytes(60_000_000)
    return archive(place / "a.npz", {"train_x.npy": x, "train_y.npy": npy((np.arange(300_000) % 2).astype(np.int8))})


def sparse_labels(place: Path) -> Path:
    """A file of 8 GB that takes no room on the disk."""
    (place / "train_y.npy").write_bytes(header((BILLION,), "<i8"))
    os.truncate(place / "train_y.npy", len(header((BILLION,), "<i8")) + 8 * BILLION)
    (place / "train_x.npy").write_bytes(header((BILLION, 1), "<f4"))
    os.truncate(place / "train_x.npy", len(header((BILLION, 1), "<f4")) + 4 * BILLION)
    return place


def wide(place: Path) -> Path:
    """Two records of 40 MB."""
    beginning = header((2, 10_000_000), "<f4")
    (place / "train_x.npy").write_bytes(beginning)
    os.truncate(place / "train_x.npy", len(beginning) + 80_000_000)
    np.save(place / "train_y.npy", np.arange(2))
    return place


def long_lists(place: Path) -> Path:
    """A list of two million labels, and 99 of one."""
    lists = [[0]] * 99 + [[0] * 2_000_000]
    table = pa.table({"e": pa.array([[1.0]] * 100, pa.list_(pa.float32())), "labels": pa.array(lists)})
    pq.write_table(table, place / "a.parquet")
    return place / "a.parquet"


def long_features(place: Path) -> Path:
    """Twelve lists of 5 million equal numbers take some kilobytes."""
    values = pa.array(np.ones(5_000_000, np.float64))
    lists = pa.FixedSizeListArray.from_arrays(values, 5_000_000)
    with pq.ParquetWriter(place / "a.parquet", pa.schema([("e", lists.type), ("label", pa.int64())])) as writer:
        writer.write_table(pa.table({"e": lists, "label": [0]}))
    return place / "a.parquet"


MEMORY = [billion_rows, large_chunk, endless_zip, columns_first, sparse_labels, wide, long_lists, long_features]


@pytest.mark.parametrize("make", MEMORY, ids=[make.__name__ for make in MEMORY])
def test_what_memory_cannot_hold_is_refused_by_what_it_declares(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    source = make(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"says that .* takes .* GB of memory, and 0.1 GB are free") as caught:
            import_features(source, tmp_path / "set")
        assert tracemalloc.get_traced_memory()[1] < 90e6
    finally:
        tracemalloc.stop()
    assert caught.value.code == "memory"
    assert not (tmp_path / "set.partial").exists()


def test_a_set_that_the_disk_cannot_hold_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    features = {"shape": (10**6, 100), "dtype": "float32", "chunks": (1024, 100)}
    source = hdf5(tmp_path / "a.h5", features, {"data": np.arange(10**6) % 2})
    with pytest.raises(UserError, match=r"holds 1,000,000 records. They take 0.4 GB, and 0.1 GB are free") as caught:
        import_features(source, tmp_path / "new" / "set")
    assert caught.value.code == "unwritable"
    assert not (tmp_path / "new").exists()


def test_zeros_are_honest_and_are_imported_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MB in an archive of 40 kB, with 6 MB of memory."""
    monkeypatch.setattr(memory, "free_memory", lambda: 6e6)
    monkeypatch.setattr(importing, "BLOCK", 2**20)
    x = header((100_000, 100), "<f4") + bytes(40_000_000)
    labels = npy((np.arange(100_000) % 2).astype(np.int8))
    source = archive(tmp_path / "a.npz", {"train_x.npy": x, "train_y.npy": labels})
    del x
    tracemalloc.start()
    try:
        made, _ = import_features(source, tmp_path / "set", classes=("a", "b"))
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
    assert made.splits == {"train": 100_000}


def test_one_row_group_of_any_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Tables are often written with a row group of a million rows."""
    x = np.random.default_rng(0).normal(size=40 * 2**18).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x), 40)
    pq.write_table(
        pa.table({"x": lists, "label": np.arange(len(lists)) % 2}), tmp_path / "a.parquet", row_group_size=2**20
    )
    column, before, most = Column("x", 40, {tmp_path / "a.parquet": len(lists)}), pa.total_allocated_bytes(), 0
    for start in range(0, len(lists), 4_096):
        block = column.rows(start, start + 4_096)
        most = max(most, pa.total_allocated_bytes() - before)
    np.testing.assert_array_equal(block.ravel(), x[-len(block) * 40 :])
    assert most < 16e6 < x.nbytes


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_archive_is_read_the_same_in_pieces_of_any_size(
    tmp_path: Path, order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    np.savez(tmp_path / "a.npz", train_x=np.array(x, order=order), train_y=np.arange(50) % 2)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as file:
        for name in ("LICENSE", "README", "notes.txt"):
            file.writestr(name, "What is no array is passed over.")
    monkeypatch.setattr(importing, "ROWS", 7)
    made, _ = import_features(tmp_path / "a.npz", tmp_path / "set", classes=("a", "b"), shards=4)
    np.testing.assert_array_equal(made.arrays("train")[0], x)


# Lies: what is declared is not what is there


def _npz(**members: bytes) -> Callable[[Path], Path]:
    whole = {"train_x": npy(X), "train_y": npy(Y), **members}
    return lambda place: archive(place / "a.npz", {f"{name}.npy": data for name, data in whole.items()})


def _npy(data: bytes) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        (place / "train_x.npy").write_bytes(data)
        np.save(place / "train_y.npy", Y)
        return place

    return make


def encrypted(place: Path) -> Path:
    path = _npz()(place)
    data = bytearray(path.read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(magic)
        data[start + at] |= 1
    path.write_bytes(data)
    return path


def twice(place: Path) -> Path:
    path = _npz()(place)
    with zipfile.ZipFile(path, "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("train_x.npy", npy(2 * X))
    return path


def linked_in_a_loop(place: Path) -> Path:
    with h5py.File(place / "a.h5", "w") as file:
        file["labels"] = Y
        file["features"] = h5py.SoftLink("/features")
    return place / "a.h5"


def password_file(place: Path) -> Path:
    return hdf5(
        place / "a.h5", {"shape": (6, 2), "dtype": "float32", "external": [("/etc/passwd", 0, 48)]}, {"data": Y}
    )


def compressed_twice(place: Path) -> Path:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((6, 2))
    plist.set_deflate(9)
    plist.set_filter(h5py.h5z.FILTER_SCALEOFFSET, 0, (2, 0))
    with h5py.File(place / "a.h5", "w") as file:
        file["labels"] = Y
        space = h5py.h5s.create_simple((6, 2))
        try:
            h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, plist)
        except ValueError:
            plist.remove_filter(h5py.h5z.FILTER_SCALEOFFSET)
            plist.set_filter(h5py.h5z.FILTER_DEFLATE, 0, (9,))
            h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, space, plist)
    return place / "a.h5"


def _safetensors(header_: bytes, size: int | None = None) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        length = len(header_) if size is None else size
        (place / "a.safetensors").write_bytes(struct.pack("<Q", length) + header_ + bytes(8))
        return place / "a.safetensors"

    return make


LIES: dict[str, Callable[[Path], Path]] = {
    "an array of 10^18 numbers": _npz(train_x=header((10**9, 10**9), "<f4") + bytes(100)),
    "fewer numbers than declared": _npz(train_x=header((6, 2), "<f4") + bytes(40)),
    "more numbers than declared": _npz(train_x=header((6, 2), "<f4") + bytes(56)),
    "a negative shape": _npz(train_x=header((-6, -2), "<f4") + bytes(48)),
    "a shape of half": _npz(train_x=header((6, 2), "<f4").replace(b"(6, 2)", b"(6,.2)") + bytes(48)),
    "a header that is no header": _npz(train_x=b"\x93NUMPY\x01\x00\x05\x00((((("),
    "a header of gigabytes": _npz(train_x=b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 1000),
    "objects": _npz(train_x=header((6, 2), "|O") + bytes(96)),
    "not an array": _npz(train_x=b"text"),
    "encrypted": encrypted,
    "two of one name": twice,
    "npy: 10^18 numbers": _npy(header((10**9, 10**9), "<f4")),
    "npy: beyond what can be counted": _npy(header((10**30, 2), "<f4")),
    "npy: a negative shape": _npy(header((-6, -2), "<f4") + bytes(48)),
    "npy: objects": _npy(header((6, 2), "|O") + bytes(96)),
    "npy: a deep header": _npy(b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000),
    "hdf5: a loop of links": linked_in_a_loop,
    "hdf5: another file's bytes": password_file,
    "hdf5: compressed twice": compressed_twice,
    "safetensors: a header of exabytes": _safetensors(b"{}", 2**63),
    "safetensors: a deep header": _safetensors(b"[" * 100_000),
    "safetensors: overlapping": _safetensors(
        b'{"features":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},'
        b'"labels":{"dtype":"I32","shape":[1],"data_offsets":[2,6]}}'
    ),
    "safetensors: a shape of 10^18": _safetensors(
        b'{"features":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,8]}}'
    ),
}


@pytest.mark.parametrize("case", LIES)
def test_files_that_lie_are_damaged(tmp_path: Path, case: str) -> None:
    with pytest.raises(UserError) as caught:
        import_features(LIES[case](tmp_path), tmp_path / "set")
    assert caught.value.code in ("damaged", "unsupported")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("name", ["a.npz", "a.h5", "a.safetensors", "a.parquet", "arrays/train_x.npy"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "train_y.npy", Y)
    os.mkfifo(tmp_path / name)
    source = tmp_path / name
    with pytest.raises(UserError, match=r"regular file|no file"):
        import_features(source.parent if source.suffix == ".npy" else source, tmp_path / "set")


# Odd, but honest


def test_numbers_in_the_other_order_of_bytes_are_the_same_numbers(tmp_path: Path) -> None:
    made = []
    for order in "<>":
        place = tmp_path / {"<": "little", ">": "big"}[order]
        place.mkdir()
        np.save(place / "train_x.npy", X.astype(f"{order}f4"))
        np.save(place / "train_y.npy", Y.astype(f"{order}i4"))
        made.append(import_features(place, place / "set", classes=("a", "b")).features)
    np.testing.assert_array_equal(made[0].arrays("train")[0], made[1].arrays("train")[0])
    assert made[0].manifest.splits == made[1].manifest.splits


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint64(), pa.int8()])
@pytest.mark.parametrize("listed", [False, True])
def test_labels_of_any_width_are_read_from_parquet(tmp_path: Path, kind: Any, listed: bool) -> None:
    y = pa.array([[int(label)] for label in Y], pa.list_(kind)) if listed else pa.array(Y, kind)
    pq.write_table(pa.table({"e": pa.array(X.tolist(), pa.list_(pa.float32())), "label": y}), tmp_path / "a.parquet")
    made, _ = import_features(tmp_path / "a.parquet", tmp_path / "set", classes=("a", "b"))
    assert made.arrays("train")[1][:, 0].tolist() == Y.tolist()


NAMES = {"info": {"features": {"label": {"names": ["a", "b"]}}}}


@pytest.mark.parametrize("place", list(places(NAMES)), ids=lambda place: ".".join(map(str, place)) or "all")
def test_whatever_stands_in_the_schema_it_names_classes_or_nothing(place: tuple[str | int, ...]) -> None:
    assert hub_class_names({b"huggingface": json.dumps(NAMES).encode()}, "label") == ("a", "b")
    for text in altered(NAMES, place):
        found = hub_class_names({b"huggingface": text.encode()}, "label")
        assert found is None or all(type(name) is str for name in found)


@pytest.mark.parametrize("says", [3, 5])
def test_features_never_get_the_labels_of_others_because_a_row_group_lies(
    tmp_path: Path, says: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer says of the first of two row groups that it has other rows than the four that are there."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.ones((8, 2)).tolist()}), path, row_group_size=4)
    monkeypatch.setattr(columns, "rows_of", lambda file: [says, 8 - says])
    column = Column("x", 2, {path: 8})
    with pytest.raises(UserError, match="row group 0") as caught:
        column.rows(0, 8)
    assert caught.value.code == "damaged"


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_labels_of_any_width_are_read_from_safetensors(tmp_path: Path, kind: type) -> None:
    save_file({"features": X, "labels": Y.astype(kind)}, tmp_path / "a.safetensors")
    made, _ = import_features(tmp_path / "a.safetensors", tmp_path / "set", classes=("a", "b"))
    assert made.arrays("train")[1][:, 0].tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X, np.array([["cat", "dog"]] * 6), "the name of each record's class"),
        (X, Y.astype(float), "y.astype('int64')"),
        (X, Y[:5], "one row for each record"),
        (X, Y.reshape(6, 1, 1), "one row for each record"),
        (X, np.zeros((6, 0), int), "one row for each record"),
        (np.zeros((0, 2), np.float32), np.zeros(0, int), "at least one record"),
        (np.zeros((6, 0), np.float32), Y, "a feature of at least one dimension"),
        (np.ones(6, np.float32), Y, "a row for each record, and a column for each dimension"),
        (np.float32(1), Y, "a row for each record, and a column for each dimension"),
        (X.astype(np.int64), Y, "x.astype('float32')"),
        (X.astype(np.complex64), Y, "x.astype('float32')"),
        (X.astype("U4"), Y, "x.astype('float32')"),
        (X * np.nan, Y, "Correct the source"),
    ],
)
@pytest.mark.parametrize("form", ["npz", "h5"])
def test_what_is_wrong_with_arrays_is_said_with_what_to_do(
    tmp_path: Path, form: str, x: np.ndarray, y: np.ndarray, says: str
) -> None:
    path = tmp_path / f"a.{form}"
    if form == "npz":
        np.savez(path, train_x=x, train_y=y)
    else:
        with h5py.File(path, "w") as file:
            for name, array in (("train_x", x), ("train_y", y)):
                file[name] = array.astype("S") if array.dtype.kind == "U" else array
    with pytest.raises(UserError) as caught:
        import_features(path, tmp_path / "set")
    assert says in caught.value.remedy


def test_odd_types_of_hdf5_are_refused(tmp_path: Path) -> None:
    """Nothing, references, records of two numbers, enumerations, texts of any length, and fields of bits."""
    kinds = (h5py.ref_dtype, [("a", "f4"), ("b", "i8")], h5py.enum_dtype({"a": 0, "b": 1}), h5py.string_dtype())
    for i, kind in enumerate((None, *kinds, h5py.h5t.STD_B32LE)):
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            file["labels"] = Y
            if kind is None:
                file["features"] = h5py.Empty("f4")
            elif isinstance(kind, h5py.h5t.TypeID):
                h5py.h5d.create(file.id, b"features", kind, h5py.h5s.create_simple((6, 2)))
            else:
                file.create_dataset("features", (6, 2), kind)
        with pytest.raises(UserError) as caught:
            import_features(tmp_path / f"{i}.h5", tmp_path / "set")
        assert caught.value.code == "damaged"
