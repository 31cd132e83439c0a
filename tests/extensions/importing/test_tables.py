"""Whatever the format and the layout, the same values make the same set, a few rows at a time; files are bounded by
what they declare before a byte is expanded.

Features that compress well are honest: all zeros, say. So no ratio is refused. What is read in pieces may be of any
size; what must be held at once is compared with the memory that is free.
"""

import io
import json
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpfc_cli.annotations import columns
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extensions.importing.columns import Column
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.extraction import arrays
from dpfc_cli.features.reader import FeatureSet
from tests.extensions.importing import formats
from tests.extensions.importing.formats import (
    LIBRARIES,
    Arrays,
    Write,
    hdf5,
    hdf5_flat,
    npy,
    npz,
    parquet,
    safetensors,
    vectors,
)
from tests.support import blobs, refuses, shards_of

pytestmark = pytest.mark.filterwarnings("ignore:nobody stated the classes", "ignore:Left out")
N, D = {"train": 100, "test": 20}, 6
FORMATS: dict[str, Write] = {
    "npy": npy,
    "npz": npz,
    "safetensors": safetensors,
    "safetensors by path": formats.safetensors_by_path,
    "hdf5": hdf5,
    "hdf5 flat": hdf5_flat,
    **{f"parquet {kind}": parquet(kind) for kind in ("list", "large", "fixed")},
    **LIBRARIES,
}


@pytest.fixture
def data() -> Arrays:
    """100 + 20 records of 23 + 7 persons. The first feature of a record is its number."""
    rng = np.random.default_rng(0)
    found: Arrays = {}
    for split, n in N.items():
        x = rng.normal(size=(n, D)).astype(np.float32)
        x[:, 0] = np.arange(n)
        persons, first = (23, 0) if split == "train" else (7, 23)
        who = first + np.concatenate((np.arange(persons), rng.integers(0, persons, n - persons)))
        found |= {f"{split}_x": x, f"{split}_y": np.arange(n) % 3, f"{split}_groups": rng.permutation(who)}
    return found


def without(data: Arrays, part: str) -> Arrays:
    return {name: array for name, array in data.items() if not name.endswith(part)}


def shards(found: FeatureSet) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(found.folder.glob("*.h5"))}


def listing(found: FeatureSet) -> object:
    return found.manifest.source["identity"]["listing"]


def made(write: Write, place: Path, data: Arrays, **options: Any) -> FeatureSet:
    place.mkdir(parents=True, exist_ok=True)
    with shards_of(34):
        return import_features(write(place, data), place / "set", **{"classes": 3, **options}).features


def a_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that the source is read more than once, and blocks cross row groups."""
    monkeypatch.setattr(arrays, "LEAST_HELD", 30 * D * 4)
    monkeypatch.setattr(arrays, "free_memory", lambda: 0.0)
    monkeypatch.setattr("dpfc_cli.extraction.arrays.ROWS", 9)
    monkeypatch.setattr("dpfc_cli.extensions.importing.columns.ROWS", 5)


def test_every_format_makes_the_same_set(tmp_path: Path, data: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    a_few_rows(monkeypatch)
    plain = without(data, "groups")
    first = made(npy, tmp_path / "first", plain)
    assert (first.manifest.origin, first.classes, first.manifest.dtype) == ("asserted", ("0", "1", "2"), "float32")
    for split in N:
        np.testing.assert_array_equal(first.arrays(split)[0], data[f"{split}_x"])
        np.testing.assert_array_equal(first.arrays(split)[1][:, 0], data[f"{split}_y"])
    for form, write in FORMATS.items():
        found = made(write, tmp_path / form, plain)
        assert (shards(found), listing(found)) == (shards(first), listing(first)), form
        assert found.manifest == FeatureSet(found.folder).manifest
        # The source's precision decides the set's.
        if form in ("npy", "hdf5", "parquet fixed"):
            dtype = np.float64 if form == "hdf5" else np.float16
            given = {name: array.astype(dtype) if name.endswith("x") else array for name, array in plain.items()}
            found = made(write, tmp_path / f"{form} {dtype.__name__}", given)
            assert found.manifest.dtype == ("float16" if dtype == np.float16 else "float32")


# Persons


def texts(groups: np.ndarray) -> list[str]:
    return [str(value) for value in groups]


GROUPS: list[tuple[str, Callable[[np.ndarray], Any]]] = [
    *((form, lambda groups: groups) for form in ("npy", "npz", "safetensors", "hdf5 flat", "parquet list")),
    ("npz", lambda groups: groups.astype(str)),
    ("hdf5 flat", lambda groups: np.array([f" {value}" for value in groups], "S")),
    ("NumPy", lambda groups: groups.astype(str).astype(object)),
    ("parquet fixed", texts),
    ("parquet large", lambda groups: pa.array(texts(groups), pa.large_string())),
    ("parquet list", lambda groups: pa.array(texts(groups)).dictionary_encode()),
]


def regrouped(data: Arrays, convert: Callable[[np.ndarray], Any]) -> Arrays:
    return {name: convert(array) if name.endswith("groups") else array for name, array in data.items()}


def test_records_of_one_person_lie_together_whatever_the_format(
    tmp_path: Path, data: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_few_rows(monkeypatch)
    plain = made(npz, tmp_path / "plain", without(data, "groups"))
    first: FeatureSet | None = None
    for i, (form, convert) in enumerate(GROUPS):
        found = made(FORMATS[form], tmp_path / f"{i}", regrouped(data, convert))
        first = first or found
        assert shards(found) == shards(first), form
        # Both are of the same records, and heads of both may be compared: listing and recipe know no groups.
        assert (listing(found), found.manifest.fingerprint) == (listing(plain), plain.manifest.fingerprint)
        assert found.manifest.source["identity"]["groups"] == first.manifest.source["identity"]["groups"]
        assert found.manifest.grouped_by == {"by": "column", "column": "groups"}
    assert first is not None
    for split in N:
        first.verify(split)
        [(_, x, y, g)] = first.stream(split, groups=True)(N[split])
        original = x[:, 0].astype(int)
        assert sorted(original) == list(range(N[split]))
        np.testing.assert_array_equal(x, data[f"{split}_x"][original])
        np.testing.assert_array_equal(y[:, 0], data[f"{split}_y"][original])
        persons = data[f"{split}_groups"]
        # Two records have the same number exactly if they are of the same person.
        assert len(set(zip(g, persons[original], strict=True))) == len(set(g)) == len(set(persons))
        # Inside a group the order is that of the source.
        assert all((np.diff(original[g == group]) > 0).all() for group in set(g))


def test_groups_that_do_not_fit_are_refused_and_leave_no_set(tmp_path: Path, data: Arrays) -> None:
    lacking: list[tuple[dict[str, Any], str, str]] = [
        ({"train_groups": np.array(["x", "", " "] + ["y"] * 97)}, "bad-record", "2 records .* row 1 of train_groups"),
        ({"train_groups": np.arange(99)}, "damaged", "99,"),
        ({"train_groups": np.arange(100.0)}, "damaged", "float64"),
        ({"train_groups": np.ones(100, bool)}, "damaged", "bool"),
        ({"train_groups": np.zeros((100, 2), int)}, "damaged", "100, 2"),
        ({"test_groups": np.array([7] + [900] * 19)}, "bad-record", "1 person"),
    ]
    for i, (changed, code, says) in enumerate(lacking):
        for write in (npz, npy):
            with refuses(code, match=says):
                made(write, tmp_path / f"{i}{write.__name__}", data | changed)
    with refuses("missing"):
        made(npz, tmp_path / "one split", without(data, "test_groups"))
    gaps: list[tuple[Callable[[np.ndarray], Any], str]] = [
        (lambda g: [None if i == 9 else str(value) for i, value in enumerate(g)], "bad-record"),
        (lambda g: pa.array([None if i == 9 else int(v) for i, v in enumerate(g)]), "bad-record"),
        (lambda g: g.astype(float), "missing"),
    ]
    for i, (convert, code) in enumerate(gaps):
        with refuses(code) as caught:
            made(parquet(), tmp_path / f"gap{i}", regrouped(data, convert))
        assert (code == "bad-record") == (GUARDED in str(caught.value))
    source = hdf5_flat(tmp_path, data)
    with h5py.File(source, "r+") as file:
        # Texts in a heap: HDF5 reads a damaged heap without end, and cannot be stopped.
        del file["train_groups"]
        file["train_groups"] = texts(data["train_groups"])
    with refuses("damaged", match="object"):
        import_features(source, tmp_path / "set", classes=3)
    assert {path.name for path in tmp_path.rglob("set*")} == {"set.refused.txt"}


def test_a_column_of_another_name_is_named(tmp_path: Path, data: Arrays) -> None:
    """Parquet has two columns of integers, and neither is called 'label'. The one that is left is the label."""
    renamed = {name.replace("groups", "patient"): array for name, array in data.items()}
    source = parquet(label="diagnosis")(tmp_path, renamed)
    found = import_features(source, tmp_path / "set", group_column="patient", classes=3).features
    assert found.manifest.grouped_by == {"by": "column", "column": "patient"}
    assert found.split("train").groups == 23
    single: dict[str, Any] = {"label_column": "diagnosis", "each_record_is_a_person": True, "classes": 3}
    plain = import_features(source, tmp_path / "plain", **single).features
    assert plain.manifest.grouped_by is None
    with refuses("conflict", parameter="label_column"):
        import_features(source, tmp_path / "other", classes=3)
    for write in (npz, parquet()):
        with refuses("missing", parameter="group_column"):
            made(write, tmp_path / write.__name__, data, group_column="nobody")


# Layouts that people have

X, Y = blobs(60, 4, 3, seed=2)
TEST_X, TEST_Y = blobs(30, 4, 3, seed=3)
NAMES = np.array(["wolf", "cat", "elk"])
"""They are not sorted."""


def folder_of(place: Path, **held: np.ndarray) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, array in held.items():
        np.save(place / f"{name}.npy", array)
    return place


OWN: dict[str, Any] = {"column": "emb", "label_column": "target"}
LAYOUTS: list[tuple[str, str, dict[str, Any]]] = [
    ("X y", "", {}),
    ("X y", "a.npz", {}),
    ("X_train y_train X_test y_test", "", {}),
    ("X_train y_train X_test y_test", "a.npz", {}),
    ("train_emb train_target test_emb test_target", "", OWN),
    ("Training_x Training_y validation_x validation_y", "a.npz", {}),
    ("X y X_test y_test val_x val_y dev_loss", "", {}),
    ("emb target", "a.h5", OWN),
]
"""The names of arrays, the file that is imported ("" for the folder), and options."""


def test_arrays_are_known_by_the_names_that_people_give_them(tmp_path: Path) -> None:
    for i, (names, given, options) in enumerate(LAYOUTS):
        held = dict(zip(names.split(), (X, Y, TEST_X, TEST_Y, X, Y, Y), strict=False))
        folder = folder_of(tmp_path / f"{i}", **({} if given else held))
        if given.endswith(".npz"):
            np.savez(folder / given, allow_pickle=True, **held)
        elif given:
            with h5py.File(folder / given, "w") as file:
                file.update(held)
        found = import_features(folder / given, tmp_path / f"set {i}", classes=3, **options).features
        assert found.splits == {"train": 60} | ({"test": 30} if len(held) > 2 else {}), names
        np.testing.assert_array_equal(found.arrays("train")[0], X)
        np.testing.assert_array_equal(found.arrays("train")[1][:, 0], Y)
    folder = folder_of(tmp_path / "in", train_x=X, train_y=Y, test_x=TEST_X, test_y=TEST_Y, train_who=Y)
    lacking: tuple[dict[str, Any], ...] = ({"group_column": "who"}, {"column": "vector"})
    for options in lacking:
        with refuses("missing"):
            import_features(folder, tmp_path / "set", classes=3, **options)
    with refuses("unsupported"):
        import_features(folder / "train_x.npy", tmp_path / "set", classes=3)
    with refuses("missing", match="test_y"):
        import_features({"train_x": X, "train_y": Y, "test_x": TEST_X}, tmp_path / "set", classes=3)


def test_arrays_that_cannot_be_read_as_they_are_are_refused(tmp_path: Path) -> None:
    masked = np.ma.masked_equal(Y, 1)
    wrong: list[tuple[Any, str]] = [
        (X, "bad-value"),
        ({"x": X}, "missing"),
        ({"x": X, "y": None}, "unsupported"),
        ({"x": X, "y": masked}, "unsupported"),
        ({"x": X, "y": [*Y[1:].tolist(), None]}, "damaged"),
        ({"x": X[1:], "y": Y}, "damaged"),
        ({"x": X, "y": Y, "patient": Y}, "conflict"),
    ]
    for given, code in wrong:
        with refuses(code):
            import_features(given, tmp_path / "set", classes=3)
    assert not (tmp_path / "set").exists()


# Labels


def wide(path: Path, x: np.ndarray, labels: Any, **more: Any) -> Path:
    """A column for each feature."""
    columns = {f"f{j}": x[:, j] for j in range(x.shape[1])}
    pq.write_table(pa.table({"id": list(range(len(x))), **columns, "label": labels, **more}), path, row_group_size=17)
    return path


def test_the_order_of_the_classes_changes_no_listing(tmp_path: Path) -> None:
    """The ledger knows the records by their listing, in each format."""
    listings, names = set(), NAMES[Y]
    ways = ((npz, names), (hdf5, np.char.encode(names, "utf-8")), (parquet(), names.tolist()))
    for i, (write, labels) in enumerate(ways):
        (tmp_path / f"{i}").mkdir()
        source = write(tmp_path / f"{i}", {"train_x": X, "train_y": labels})
        for classes in (("wolf", "elk", "ox", "cat"), ("cat", "elk", "wolf")):
            found = import_features(source, tmp_path / f"{i}" / classes[0], classes=classes).features
            assert [classes[y] for y in found.arrays("train")[1][:, 0]] == names.tolist()
            listings.add(str(listing(found)))
    assert len(listings) == 1


def test_labels_of_any_width_and_order_of_bytes_are_read(tmp_path: Path) -> None:
    x, y = np.ones((6, 2), np.float32), np.arange(6) % 2
    sources = []
    for kind in ("u1", "u2", "u4", "u8", "i1"):
        save_file({"features": x, "labels": y.astype(kind)}, tmp_path / f"{kind}.safetensors")
        listed = pa.array([[int(label)] for label in y], pa.list_(pa.from_numpy_dtype(kind)))
        for name, labels in ((f"{kind}.parquet", pa.array(y.astype(kind))), (f"{kind}-listed.parquet", listed)):
            pq.write_table(pa.table({"e": vectors(x), "label": labels}), tmp_path / name)
            sources.append(tmp_path / name)
        sources.append(tmp_path / f"{kind}.safetensors")
    for order in "<>":
        sources.append(
            folder_of(tmp_path / f"order {order}", train_x=x.astype(f"{order}f4"), train_y=y.astype(f"{order}i4"))
        )
    for i, source in enumerate(sources):
        found = import_features(source, tmp_path / f"set {i}", classes=("a", "b"), labels_per_record=1).features
        np.testing.assert_array_equal(found.arrays("train")[0], x)
        assert found.arrays("train")[1][:, 0].tolist() == y.tolist()


def test_label_sets_are_stored_padded_and_how_many_there_are_is_stated(tmp_path: Path) -> None:
    """Ragged lists: k would else tell whether some record has two labels, under the name of an asserted fact."""
    for longest in (1, 2):
        lists = pa.array([[0]] * 7 + [[0, 1][:longest]], pa.list_(pa.int64()))
        pq.write_table(pa.table({"e": vectors(np.ones((8, 2))), "labels": lists}), tmp_path / f"{longest}.parquet")
        source, out = tmp_path / f"{longest}.parquet", tmp_path / f"{longest}"
        with refuses("conflict", parameter="labels_per_record"):
            import_features(source, out, classes=("a", "b"))
        found = import_features(source, out, classes=("a", "b"), labels_per_record=3).features
        assert found.manifest.labels_per_record == 3
        assert found.arrays("train")[1][-1].tolist() == [0, *([1] if longest > 1 else []), -1, -1][:3]
    y = np.stack([np.arange(60) % 3, np.full(60, -1)], axis=1)
    found = import_features(
        npz(tmp_path, {"train_x": X, "train_y": y}), tmp_path / "array", classes=3, labels_per_record=3
    ).features
    assert np.array_equal(found.arrays("train")[1], np.pad(y, ((0, 0), (0, 1)), constant_values=-1))
    with refuses("conflict", match="has 2 ", parameter="labels_per_record"):
        import_features(tmp_path / "a.npz", tmp_path / "set", labels_per_record=1, classes=3)


LISTS: list[tuple[Any, tuple[str, ...], list[list[int]] | None]] = [
    (np.eye(2, dtype=int), ("a", "b"), None),
    (np.eye(2, dtype=np.float32), ("a", "b"), None),
    (np.eye(3, dtype=bool), ("a", "b", "c"), None),
    (np.eye(2, dtype=int).tolist(), ("a", "b", "c"), None),
    (np.array([[0, 1, 1], [1, 0, 0]]), ("a", "b", "c"), None),
    (np.array([[2, 2], [1, -1]]), ("a", "b", "c"), [[2, 2], [1, -1]]),
    (np.array([[1.0, 0.0], [1.0, np.nan]]), ("1", "0"), [[0, 1], [0, -1]]),
    (np.array([["0", "1"], ["1", ""]]), ("1", "0"), [[1, 0], [0, -1]]),
    ([["b", "a"], ["b"]], ("a", "b"), [[1, 0], [1, -1]]),
    ([["b", "x"], ["b"]], ("a", "b"), None),
]
"""Lists of labels, as an array or as a column of lists; the classes; and what is stored, None: they are refused."""


def test_lists_of_labels_mean_classes_as_single_ones_do_and_tables_of_zeros_and_ones_are_refused(
    tmp_path: Path,
) -> None:
    for i, (labels, classes, expected) in enumerate(LISTS):
        source = tmp_path / f"{i}.{'npz' if isinstance(labels, np.ndarray) else 'parquet'}"
        x = np.ones((len(labels), 2), np.float32)
        if isinstance(labels, np.ndarray):
            np.savez(source, train_x=x, train_y=labels)
        else:
            pq.write_table(pa.table({"e": vectors(x), "labels": labels}), source)
        with refuses("bad-record", match="do not publish") if expected is None else nullcontext():
            found = import_features(source, tmp_path / f"set {i}", classes=classes, labels_per_record=2).features
            assert found.arrays("train")[1].tolist() == expected, i


# Parquet


def test_the_hubs_class_names_are_labels_and_state_no_classes_and_columns_are_chosen(tmp_path: Path) -> None:
    said = json.dumps({"info": {"features": {"label": {"names": ["pos", "neg", "so-so"]}}}})
    held = pa.table({"text": ["a text"] * 60, "embedding": vectors(X), "label": Y})
    pq.write_table(held.replace_schema_metadata({"huggingface": said}), tmp_path / "texts.parquet")
    for classes in (None, 3, ["pos", "neg"]):
        with refuses("conflict", parameter="classes"):
            import_features(tmp_path / "texts.parquet", tmp_path / "set", classes=classes)
    stated = ["never seen", "so-so", "neg", "pos"]
    found = import_features(tmp_path / "texts.parquet", tmp_path / "set", classes=stated).features
    assert (found.classes, found.manifest.origin) == (tuple(stated), "asserted")
    np.testing.assert_array_equal(found.arrays("train")[1][:, 0], 3 - Y)
    for wrong in (-2, 3):
        numbers = held.set_column(2, "label", pa.array(np.append(Y[1:], wrong)))
        pq.write_table(numbers.replace_schema_metadata({"huggingface": said}), tmp_path / "wrong.parquet")
        with refuses("bad-record"):
            import_features(tmp_path / "wrong.parquet", tmp_path / "set of wrong", classes=stated)
    more = held.append_column("title", vectors(-X)).append_column("stars", pa.array(Y[::-1].copy()))
    pq.write_table(more, tmp_path / "a.parquet")
    with refuses("conflict", parameter="column"):
        import_features(tmp_path / "a.parquet", tmp_path / "none", classes=3)
    chosen = import_features(
        tmp_path / "a.parquet", tmp_path / "two", column="title", label_column="stars", classes=3
    ).features
    np.testing.assert_array_equal(chosen.arrays("train")[0], -X)
    np.testing.assert_array_equal(chosen.arrays("train")[1][:, 0], Y[::-1])


def test_a_column_for_each_feature_in_the_order_of_the_file(tmp_path: Path) -> None:
    source = wide(tmp_path / "a.parquet", X, Y, age=np.zeros(60))
    for given, found in (({"column": "f?"}, X), ({}, np.column_stack((X, np.zeros(60))))):
        made = import_features(source, tmp_path / f"{len(given)}", classes=3, **given).features  # type: ignore[arg-type]
        np.testing.assert_array_equal(made.arrays("train")[0], found)
    with refuses("missing", parameter="column"):
        import_features(source, tmp_path / "none", column="g*", classes=3)


def test_several_files_must_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    wide(tmp_path / "in" / "train-0.parquet", X, NAMES[Y].tolist())
    wide(tmp_path / "in" / "train-1.parquet", X[:, ::-1], NAMES[(Y + 1) % 3].tolist())
    found = import_features(tmp_path / "in", tmp_path / "set", classes=NAMES.tolist()).features
    np.testing.assert_array_equal(found.arrays("train")[0], np.concatenate([X, X[:, ::-1]]))
    np.testing.assert_array_equal(found.arrays("train")[1][:, 0], np.concatenate([Y, (Y + 1) % 3]))
    wide(tmp_path / "in" / "train-2.parquet", X[:, :3], NAMES[Y].tolist())
    with refuses("conflict", match="'f3'"):
        import_features(tmp_path / "in", tmp_path / "more", classes=NAMES.tolist())
    wide(tmp_path / "in" / "train-2.parquet", X, Y)
    with refuses("bad-record"):
        import_features(tmp_path / "in", tmp_path / "more", classes=NAMES.tolist())


def test_features_never_get_the_labels_of_others_because_a_row_group_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer says of the first of two row groups that it has other rows than the four that are there."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.ones((8, 2)).tolist()}), path, row_group_size=4)
    for says in (3, 5):
        monkeypatch.setattr(columns, "rows_of", lambda file, says=says: [says, 8 - says])
        with refuses("damaged"):
            Column("x", 2, {path: 8}).rows(0, 8)


# What cannot be taken

SIX, LABELS = np.ones((6, 2), np.float32), np.arange(6) % 2


def header(shape: tuple[int, ...], dtype: str) -> bytes:
    """The beginning of an .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def whole(place: Path, name: str, data: bytes) -> Path:
    (place / name).write_bytes(data)
    return place / name


def archive(place: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(place / "a.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in {"train_x": npy_bytes(SIX), "train_y": npy_bytes(LABELS), **members}.items():
            file.writestr(f"{name}.npy", data)
    return place / "a.npz"


def of_npy(data: bytes) -> Callable[[Path], Path]:
    return lambda place: whole(folder_of(place, train_y=LABELS), "train_x.npy", data).parent


def of_safetensors(data: bytes) -> Callable[[Path], Path]:
    return lambda place: whole(place, "a.safetensors", data)


def of_hdf5(write: Callable[[h5py.File], object]) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        with h5py.File(place / "a.h5", "w", libver="latest") as file:
            file["labels"] = LABELS
            write(file)
        return place / "a.h5"

    return make


def encrypted(place: Path) -> Path:
    data = bytearray(archive(place).read_bytes())
    for magic, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(magic) + at] |= 1
    return whole(place, "a.npz", bytes(data))


def twice(place: Path) -> Path:
    with zipfile.ZipFile(archive(place), "a") as file, pytest.warns(UserWarning, match="Duplicate"):
        file.writestr("train_x.npy", npy_bytes(2 * SIX))
    return place / "a.npz"


def compressed_twice(file: h5py.File) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((6, 2))
    plist.set_deflate(9)
    plist.set_filter(h5py.h5z.FILTER_DEFLATE, 0, (9,))
    h5py.h5d.create(file.id, b"features", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((6, 2)), plist)


def damaged_chunk(place: Path) -> Path:
    options = {"compression": "gzip", "chunks": (6, 2)}
    path = of_hdf5(lambda file: file.create_dataset("features", data=SIX, **options))(place)
    with h5py.File(path) as file:
        chunk = file["features"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    return whole(place, "a.h5", bytes(data))


def of_columns(**held: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        pq.write_table(pa.table(held), place / "a.parquet")
        return place / "a.parquet"

    return make


def unlike(place: Path) -> Path:
    for i, dtype in enumerate((np.float32, np.float64)):
        pq.write_table(pa.table({"e": vectors(SIX.astype(dtype)), "label": LABELS}), place / f"train-{i}.parquet")
    return place


def of_arrays(cut: int | None = None, **held: np.ndarray) -> Callable[[Path], Path]:
    """A file of safetensors, or its beginning."""

    def make(place: Path) -> Path:
        save_file({"features": SIX, **held}, place / "a.safetensors")
        return whole(place, "a.safetensors", (place / "a.safetensors").read_bytes()[:cut])

    return make


def sized(head: bytes) -> bytes:
    return struct.pack("<Q", len(head)) + head + bytes(8)


def safe_header(**arrays: tuple[str, list[int], list[int]]) -> bytes:
    said = {name: dict(zip(("dtype", "shape", "data_offsets"), each, strict=True)) for name, each in arrays.items()}
    return sized(json.dumps(said).encode())


LIES: dict[str, bytes] = {
    "10^18 numbers": header((10**9, 10**9), "<f4") + bytes(100),
    "beyond what can be counted": header((10**30, 2), "<f4"),
    "fewer": header((6, 2), "<f4") + bytes(40),
    "more": header((6, 2), "<f4") + bytes(56),
    "a negative shape": header((-6, -2), "<f4") + bytes(48),
    "a shape of half": header((6, 2), "<f4").replace(b"(6, 2)", b"(6,.2)") + bytes(48),
    "a header that is none": b"\x93NUMPY\x01\x00\x05\x00(((((",
    "a header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 1000,
    "a deep header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    "objects": header((6, 2), "|O") + bytes(96),
    "text": b"text",
}
"""Arrays of features that are not what they declare."""
ELSEWHERE: dict[str, Callable[[h5py.File], object]] = {
    "a loop of links": lambda f: f.update(features=h5py.SoftLink("/features")),
    "another file's values": lambda f: f.update(features=h5py.ExternalLink("b.h5", "features")),
    "another file's bytes": lambda f: f.create_dataset("features", (6, 2), "f4", external=[("/etc/passwd", 0, 48)]),
}
OF_SAFETENSORS: dict[str, bytes] = {
    "exabytes": struct.pack("<Q", 2**63) + b"{}" + bytes(8),
    "a deep header": sized(b"[" * 100_000),
    "overlapping": safe_header(features=("F32", [1, 1], [0, 4]), labels=("I32", [1], [2, 6])),
    "brain floats": safe_header(features=("BF16", [1, 2], [0, 4]), labels=("I32", [1], [4, 8])),
    "a hole": safe_header(features=("F32", [1, 1], [0, 4]), labels=("I32", [1], [8, 12])),
    "floats of a byte": safe_header(features=("F8_E4M3", [1, 4], [0, 4]), labels=("I32", [1], [4, 8])),
    "a shape of 10^18": safe_header(features=("F32", [10**9, 10**9], [0, 8])),
}
BAD: list[tuple[str, Callable[[Path], Path], str]] = [
    ("lists of other lengths", of_columns(e=[[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]], label=[0, 1, 2]), "bad-record"),
    ("a list that is missing", of_columns(e=[[1.0, 2.0], None], label=[0, 1]), "bad-record"),
    ("a list that is empty", of_columns(e=[[], [2.0]], label=[0, 1]), "bad-record"),
    ("a label that is missing", of_columns(e=[[1.0, 2.0]] * 2, label=[0, None]), "bad-record"),
    ("a feature that is missing", of_columns(f0=[1.0, None], label=[0, 1]), "bad-record"),
    ("three labels", of_columns(e=[[1.0], [2.0]], labels=[[0], [0, 1, 2]]), "conflict"),
    ("a class beyond all classes", of_arrays(labels=np.full(6, 30_000_000)), "bad-record"),
    ("a negative label", of_arrays(labels=np.full(6, -7)), "bad-record"),
    ("an infinity", lambda place: archive(place, train_x=npy_bytes(SIX * np.inf)), "bad-record"),
    ("no label", of_columns(e=[[1.0, 2.0]] * 2), "missing"),
    ("two columns of integers", of_columns(e=[[1.0, 2.0]] * 2, a=[0, 1], b=[0, 1]), "conflict"),
    ("a beginning of parquet", lambda place: whole(place, "a.parquet", b"PAR1 and no more"), "damaged"),
    ("files with unlike columns", unlike, "conflict"),
    ("features alone", of_arrays(), "missing"),
    ("safetensors that end early", of_arrays(-3, labels=LABELS), "damaged"),
    ("text", lambda place: whole(place, "a.h5", b"text"), "damaged"),
    ("a text", lambda place: whole(place, "a.txt", b"1,2"), "unsupported"),
    ("an empty folder", lambda place: place, "missing"),
    ("encrypted", encrypted, "damaged"),
    ("two of one name", twice, "damaged"),
    ("hdf5: compressed twice", of_hdf5(compressed_twice), "unsupported"),
    ("hdf5: a damaged chunk", damaged_chunk, "damaged"),
    *((f"hdf5: {name}", of_hdf5(write), "damaged") for name, write in ELSEWHERE.items()),
    *((f"npz: {name}", partial(archive, train_x=data), "damaged") for name, data in LIES.items()),
    *((f"npy: {name}", of_npy(data), "damaged") for name, data in LIES.items()),
    ("npy: two in one file", of_npy(npy_bytes(SIX) + npy_bytes(2 * SIX)), "damaged"),
    ("npy: brain floats", of_npy(npy_bytes(SIX.astype(ml_dtypes.bfloat16))), "damaged"),
    ("npy: dates", lambda place: folder_of(place, train_x=SIX, train_y=LABELS.astype("M8[D]")), "damaged"),
    ("npz: an archive before it", lambda place: whole(place, "a.npz", 2 * archive(place).read_bytes()), "damaged"),
    ("npz: cut behind it", lambda place: whole(place, "a.npz", archive(place).read_bytes() + b"PK\3\4"), "damaged"),
    *((f"safetensors: {name}", of_safetensors(data), "damaged") for name, data in OF_SAFETENSORS.items()),
]


def test_what_cannot_be_taken_is_refused_and_leaves_no_set(tmp_path: Path) -> None:
    """What a refusal says of a record is marked: do not publish it."""
    for i, (name, make, code) in enumerate(BAD):
        (tmp_path / f"{i}").mkdir()
        with pytest.raises(UserError) as caught:
            import_features(make(tmp_path / f"{i}"), tmp_path / "out" / "set", labels_per_record=2, classes=3)
        assert caught.value.code == code, name
        assert (GUARDED in str(caught.value)) == (code == "bad-record" or name == "three labels"), name
        assert not (tmp_path / "out" / "set").exists()


def test_odd_types_and_shapes_are_refused(tmp_path: Path) -> None:
    odd: list[tuple[Any, Any]] = [
        *((SIX, y) for y in (LABELS.astype(complex), LABELS[:5], LABELS.reshape(6, 1, 1))),
        *((x, LABELS) for x in (np.zeros((6, 0), "f4"), np.ones(6, "f4"), np.float32(1), SIX.astype(int))),
        *((x, LABELS) for x in (SIX.astype(complex), SIX.astype("U4"))),
        *((SIX, np.zeros((6, 0), int)), (np.zeros((0, 2), "f4"), np.zeros(0, int))),
    ]
    for i, (x, y) in enumerate(odd):
        np.savez(tmp_path / f"{i}.npz", train_x=x, train_y=y)
        with h5py.File(tmp_path / f"{i}.h5", "w") as file:
            for name, array in (("train_x", x), ("train_y", y)):
                file[name] = array.astype("S") if array.dtype.kind == "U" else array
    kinds = (h5py.ref_dtype, [("a", "f4"), ("b", "i8")], h5py.enum_dtype({"a": 0, "b": 1}), h5py.string_dtype())
    for i, kind in enumerate((None, *kinds, h5py.h5t.STD_B32LE)):
        with h5py.File(tmp_path / f"kind {i}.h5", "w") as file:
            file["labels"] = LABELS
            if kind is None:
                file["features"] = h5py.Empty("f4")
            elif isinstance(kind, h5py.h5t.TypeID):
                h5py.h5d.create(file.id, b"features", kind, h5py.h5s.create_simple((6, 2)))
            else:
                file.create_dataset("features", (6, 2), kind)
    for path in sorted(tmp_path.iterdir()):
        with refuses("damaged", path=str(path)):
            import_features(path, tmp_path / "set", classes=2)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder_of(tmp_path / "arrays", train_y=LABELS)
    for name in ("a.npz", "a.h5", "a.safetensors", "a.parquet", "arrays/train_x.npy"):
        os.mkfifo(tmp_path / name)
        source = tmp_path / name
        with refuses("missing" if source.suffix == ".parquet" else "damaged"):
            import_features(source.parent if source.suffix == ".npy" else source, tmp_path / "set", classes=2)


# Bombs: the declared size is known before a byte is expanded

BILLION = 10**9


@pytest.fixture
def little_memory(room: Callable[[float], None]) -> None:
    """100 MB of memory are free, whatever the machine has that runs the tests."""
    room(1e8)


def large_hdf5(labels: dict[str, Any], **features: Any) -> Callable[[Path], Path]:
    def make(place: Path) -> Path:
        with h5py.File(place / "a.h5", "w") as file:
            file.create_dataset("features", dtype="f4", compression="gzip", **features)
            file.create_dataset("labels", **labels)
        return place / "a.h5"

    return make


def endless_zip(place: Path) -> Path:
    """40 MB of labels in 40 kB."""
    y = header((5_000_000,), "<i8") + bytes(40_000_000)
    return archive(place, train_x=npy_bytes(np.ones((5_000_000, 1), np.float16)), train_y=y)


def zeros_at_once(place: Path) -> Path:
    """120 MB of features in 120 kB: an archive is not read row by row."""
    x = header((600_000, 100), "<f2") + bytes(120_000_000)
    return archive(place, train_x=x, train_y=npy_bytes((np.arange(600_000) % 2).astype(np.int8)))


def sparse(**shapes: tuple[tuple[int, ...], str]) -> Callable[[Path], Path]:
    """Files that take no room on the disk."""

    def make(place: Path) -> Path:
        for name, (shape, dtype) in shapes.items():
            beginning = header(shape, dtype)
            os.truncate(whole(place, f"{name}.npy", beginning), len(beginning) + int(np.prod(shape)) * int(dtype[-1]))
        return place

    return make


def long_features(place: Path) -> Path:
    """A list of 5 million equal numbers takes some kilobytes."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(5_000_000, np.float64)), 5_000_000)
    pq.write_table(pa.table({"e": lists, "label": [0]}), place / "a.parquet")
    return place / "a.parquet"


MEMORY: dict[str, Callable[[Path], Path]] = {
    "10^9 rows": large_hdf5(
        {"shape": (BILLION,), "dtype": "i8", "chunks": (1024,)}, shape=(BILLION, 100), chunks=(1024, 100)
    ),
    "a large chunk": large_hdf5({"data": np.zeros(10**6, np.int8)}, shape=(10**6, 100), chunks=(10**6, 100)),
    "an endless zip": endless_zip,
    "features of an archive": zeros_at_once,
    "8 GB of labels": sparse(train_y=((BILLION,), "<i8"), train_x=((BILLION, 1), "<f4")),
    "two records of 40 MB": sparse(train_y=((2,), "<i8"), train_x=((2, 10_000_000), "<f4")),
    "a list of two million labels": of_columns(e=vectors(np.ones((100, 1))), labels=[[0]] * 99 + [[0] * 2_000_000]),
    "a list of five million features": long_features,
}


def test_what_memory_cannot_hold_is_refused_by_what_it_declares(tmp_path: Path, little_memory: None) -> None:
    for name, make in MEMORY.items():
        (tmp_path / name).mkdir()
        source = make(tmp_path / name)
        tracemalloc.start()
        try:
            with refuses("memory") as caught:
                import_features(source, tmp_path / "set", classes=2)
            assert tracemalloc.get_traced_memory()[1] < 90e6, name
        finally:
            tracemalloc.stop()
        assert caught.value.code == "memory"
        assert not (tmp_path / "set.partial").exists()


def test_zeros_are_honest_and_are_imported_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[float], None]
) -> None:
    """20 MB in a file of some kB, with 6 MB of memory."""
    room(6e6)
    monkeypatch.setattr(arrays, "BLOCK", 2**20)
    zeros = np.zeros((50_000, 100), np.float32)
    source = large_hdf5({"data": np.arange(50_000) % 2}, data=zeros, chunks=(1024, 100))(tmp_path)
    tracemalloc.start()
    try:
        found = import_features(source, tmp_path / "set", classes=("a", "b")).features
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
    assert found.splits == {"train": 50_000}


def test_one_row_group_of_any_size_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """Tables are often written with a row group of a million rows."""
    x = np.random.default_rng(0).normal(size=40 * 2**18).astype(np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x), 40)
    pq.write_table(pa.table({"x": lists}), tmp_path / "a.parquet", row_group_size=2**20)
    column, before, most = Column("x", 40, {tmp_path / "a.parquet": len(lists)}), pa.total_allocated_bytes(), 0
    for start in range(0, len(lists), 4_096):
        block = column.rows(start, start + 4_096)
        most = max(most, pa.total_allocated_bytes() - before)
    np.testing.assert_array_equal(block.ravel(), x[-len(block) * 40 :])
    assert most < 16e6 < x.nbytes


def test_a_repeated_name_takes_the_memory_of_one(tmp_path: Path) -> None:
    """A text of a megabyte in a hundred thousand records is held once."""
    n, long = 100_000, "x" * 10**6
    labels = pa.DictionaryArray.from_arrays(pa.array(np.arange(n) % 2, pa.int8()), pa.array([long, "y"]))
    pq.write_table(pa.table({"f0": np.zeros(n, np.float32), "label": labels}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with refuses("bad-record", parameter="classes"):
            import_features(tmp_path / "a.parquet", tmp_path / "set", classes=["y", "z"])
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 10**8
