"""Layouts that people have: X.npy with y.npy, scikit-learn's names, a column for each feature, names as labels."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfc_cli import UserError, import_features
from dpfc_cli.errors import GUARDED
from dpfc_cli.sources import classes
from tests.support import blobs

X, Y = blobs(60, 4, 3, seed=2)
TEST_X, TEST_Y = blobs(30, 4, 3, seed=3)
NAMES = np.array(["wolf", "cat", "elk"])
"""They are not sorted."""


def arrays(folder: Path, **held: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in held.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def wide(path: Path, x: np.ndarray, labels: Any, **more: Any) -> Path:
    columns = {f"f{j}": x[:, j] for j in range(x.shape[1])}
    pq.write_table(pa.table({"id": list(range(len(x))), **columns, "label": labels, **more}), path, row_group_size=17)
    return path


def train_of(source: Path, out: Path, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    options = {"classes": 3, **options}
    x, y = import_features(source, out, **options).features.arrays("train")
    return x, y[:, 0]


@pytest.mark.parametrize(
    ("held", "given", "splits"),
    [
        (("X", "y"), "X.npy", {"train": 60}),
        (("X", "y"), "", {"train": 60}),
        (("x", "y"), "x.npy", {"train": 60}),
        (("embeddings", "labels"), "embeddings.npy", {"train": 60}),
        (("features", "labels"), "", {"train": 60}),
        (("train_x", "train_y"), "train_x.npy", {"train": 60}),
        (("X_train", "y_train"), "X_train.npy", {"train": 60}),
        (("X_train", "y_train", "X_test", "y_test"), "", {"train": 60, "test": 30}),
    ],
)
def test_npy_files_under_the_names_that_people_give_them(
    tmp_path: Path, held: tuple[str, ...], given: str, splits: dict[str, int]
) -> None:
    source = arrays(tmp_path / "mine", **dict(zip(held, (X, Y, TEST_X, TEST_Y), strict=False)))
    made = import_features(source / given, tmp_path / "set", classes=3).features
    assert made.splits == splits
    np.testing.assert_array_equal(made.arrays("train")[0], X)
    np.testing.assert_array_equal(made.arrays("train")[1][:, 0], Y)


@pytest.mark.parametrize("given", ["x.npy", "X.NPY"])
def test_an_array_that_is_named_is_the_one_that_is_imported(tmp_path: Path, given: str) -> None:
    """Whatever others have the usual names."""
    source = arrays(tmp_path / "mine", x=X, y=Y, train_x=TEST_X, train_y=TEST_Y)
    (source / "x.npy").rename(source / given)
    assert import_features(source / given, tmp_path / "set", classes=3).features.splits == {"train": 60}


def test_a_set_of_one_array_is_called_after_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arrays(tmp_path / "mine", X=X, y=Y)
    assert import_features("mine/X.npy", classes=3).features.name == "mine"


def test_an_array_without_labels_beside_it_is_refused(tmp_path: Path) -> None:
    for name in ("X", "y", "other"):
        arrays(tmp_path / name, **{name: X})
        with pytest.raises(UserError, match="There are no labels beside") as refused:
            import_features(tmp_path / name / f"{name}.npy", tmp_path / "set")
        assert refused.value.code == "missing"


def test_files_of_a_folder_are_known_by_any_name_that_is_given(tmp_path: Path) -> None:
    folder = arrays(tmp_path / "mine", train_emb=X, train_kind=Y, test_emb=TEST_X, test_kind=TEST_Y, train_who=Y)
    made = import_features(folder, tmp_path / "set", column="emb", label_column="kind", classes=3).features
    assert made.splits == {"train": 60, "test": 30}
    with pytest.raises(UserError, match="no groups for its test records"):
        import_features(folder, tmp_path / "other", column="emb", label_column="kind", group_column="who")


def test_the_names_of_scikit_learn_in_one_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", X_train=X, y_train=Y, X_test=TEST_X, y_test=TEST_Y)
    np.savez(tmp_path / "one.npz", X=X, y=Y)
    assert import_features(tmp_path / "all.npz", tmp_path / "a", classes=3).features.splits == {"test": 30, "train": 60}
    np.testing.assert_array_equal(train_of(tmp_path / "one.npz", tmp_path / "b")[0], X)


# --- Labels that are texts.


def as_npz(path: Path, labels: np.ndarray) -> Path:
    np.savez(path / "a.npz", train_x=X, train_y=labels)
    return path / "a.npz"


def as_npy(path: Path, labels: np.ndarray) -> Path:
    return arrays(path / "arrays", train_x=X, train_y=labels)


def as_hdf5(path: Path, labels: np.ndarray) -> Path:
    with h5py.File(path / "a.h5", "w") as file:
        file["features"], file["labels"] = X, np.char.encode(labels, "utf-8")
    return path / "a.h5"


def as_parquet(path: Path, labels: np.ndarray) -> Path:
    return wide(path / "a.parquet", X, labels.tolist())


def as_dictionary(path: Path, labels: np.ndarray) -> Path:
    return wide(path / "a.parquet", X, pa.array(labels.tolist()).dictionary_encode())


FORMATS = [as_npz, as_npy, as_hdf5, as_parquet, as_dictionary]


@pytest.mark.parametrize("write", FORMATS)
def test_labels_may_be_names(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path, NAMES[Y])
    stated = import_features(source, tmp_path / "stated", classes=["wolf", "elk", "ox", "cat"]).features
    assert (stated.classes, stated.manifest.origin) == (("wolf", "elk", "ox", "cat"), "asserted")
    np.testing.assert_array_equal(stated.arrays("train")[1][:, 0], np.array([0, 3, 1])[Y])
    found = import_features(source, tmp_path / "found").features
    assert (found.classes, found.manifest.origin) == (("cat", "elk", "wolf"), "inferred")
    np.testing.assert_array_equal(found.arrays("train")[1][:, 0], np.array([2, 0, 1])[Y])
    # The ledger knows the records by their listing, whatever the order of the classes.
    listings = [each.manifest.source["identity"]["listing"] for each in (stated, found)]
    assert listings[0] == listings[1]
    with pytest.raises(UserError, match="'elk' is not among the 2 classes") as refused:
        import_features(source, tmp_path / "few", classes=["wolf", "cat"])
    assert GUARDED in str(refused.value)


def test_every_format_gives_the_same_listing(tmp_path: Path) -> None:
    listings = set()
    for write in FORMATS:
        place = tmp_path / write.__name__
        place.mkdir()
        made = import_features(write(place, NAMES[Y]), place / "set").features
        listings.add(made.manifest.source["identity"]["listing"]["train"])
    assert len(listings) == 1


@pytest.mark.parametrize("write", FORMATS)
def test_an_empty_name_is_no_label(tmp_path: Path, write: Any) -> None:
    labels = NAMES[Y]
    labels[7] = ""
    with pytest.raises(UserError, match="Some train records are without a label"):
        import_features(write(tmp_path, labels), tmp_path / "set")


def test_names_in_one_split_and_numbers_in_the_other_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=X, train_y=NAMES[Y], test_x=TEST_X, test_y=TEST_Y)
    with pytest.raises(UserError, match="The labels of one split are texts"):
        import_features(tmp_path / "a.npz", tmp_path / "set")


def test_one_name_each_is_no_list_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "MOST_INFERRED", 50)
    np.savez(tmp_path / "a.npz", train_x=X, train_y=np.array([f"patient {i}" for i in range(60)]))
    with pytest.raises(UserError, match="seem to name 60 classes") as refused:
        import_features(tmp_path / "a.npz", tmp_path / "set")
    assert "patient" not in str(refused.value)


# --- A column for each feature.


def test_a_column_for_each_feature_in_the_order_of_the_file(tmp_path: Path) -> None:
    wide(tmp_path / "a.parquet", X, Y)
    found, labels = train_of(tmp_path / "a.parquet", tmp_path / "set")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, Y)
    whole = import_features(arrays(tmp_path / "n", X=X, y=Y), tmp_path / "other", classes=3).features
    assert whole.manifest.splits == import_features(tmp_path / "a.parquet", tmp_path / "set").features.manifest.splits


def test_a_pattern_leaves_other_floats_out(tmp_path: Path) -> None:
    wide(tmp_path / "a.parquet", X.astype(np.float64), Y, age=np.zeros(60))
    found, _ = train_of(tmp_path / "a.parquet", tmp_path / "set", column="f?")
    np.testing.assert_array_equal(found, X)
    assert train_of(tmp_path / "a.parquet", tmp_path / "all")[0].shape == (60, 5)
    with pytest.raises(UserError, match=r"no column of floats named 'g\*'") as refused:
        import_features(tmp_path / "a.parquet", tmp_path / "none", column="g*")
    assert refused.value.fields["parameter"] == "column"


def test_several_files_must_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    wide(tmp_path / "in" / "train-0.parquet", X, NAMES[Y].tolist())
    wide(tmp_path / "in" / "train-1.parquet", X[:, ::-1], NAMES[(Y + 1) % 3].tolist())
    made = import_features(tmp_path / "in", tmp_path / "set", classes=NAMES.tolist()).features
    np.testing.assert_array_equal(made.arrays("train")[0], np.concatenate([X, X[:, ::-1]]))
    np.testing.assert_array_equal(made.arrays("train")[1][:, 0], np.concatenate([Y, (Y + 1) % 3]))
    wide(tmp_path / "in" / "train-2.parquet", X[:, :3], NAMES[Y].tolist())
    with pytest.raises(UserError, match="has no column 'f3'"):
        import_features(tmp_path / "in", tmp_path / "more", classes=NAMES.tolist())
    wide(tmp_path / "in" / "train-2.parquet", X, Y)
    with pytest.raises(UserError, match="has integers in 'label', and the files before it have texts"):
        import_features(tmp_path / "in", tmp_path / "more", classes=NAMES.tolist())


def test_a_repeated_name_takes_the_memory_of_one(tmp_path: Path) -> None:
    """A text of a megabyte in a hundred thousand records is held once."""
    import tracemalloc

    n, long = 100_000, "x" * 10**6
    labels = pa.DictionaryArray.from_arrays(pa.array(np.arange(n) % 2, pa.int8()), pa.array([long, "y"]))
    pq.write_table(pa.table({"f0": np.zeros(n, np.float32), "label": labels}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    with pytest.raises(UserError, match="is not among"):
        import_features(tmp_path / "a.parquet", tmp_path / "set", classes=["y", "z"])
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 10**8
