"""Whatever the format, the same values make the same feature set, byte for byte, a few rows at a time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from tests.features import formats
from tests.features.formats import Arrays, Write, hdf5, hdf5_flat, npy, npz, parquet, safetensors, vectors

N, D = {"train": 100, "test": 20}, 6


@pytest.fixture
def data() -> Arrays:
    rng = np.random.default_rng(0)
    arrays = {split: (rng.normal(size=(n, D)).astype(np.float32), np.arange(n) % 3) for split, n in N.items()}
    return {f"{split}_{name}": array for split, both in arrays.items() for name, array in zip("xy", both, strict=True)}


FORMATS: dict[str, Write] = {
    "npz": npz,
    "safetensors": safetensors,
    "safetensors by path": formats.safetensors_by_path,
    "hdf5": hdf5,
    "hdf5 flat": hdf5_flat,
    **{f"parquet {kind}": parquet(kind) for kind in ("list", "large", "fixed")},
}


def shards(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*.h5"))}


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_every_format_makes_the_same_shards_and_the_same_listing(
    tmp_path: Path, data: Arrays, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfc_cli.extraction.importing.ROWS", 9)
    monkeypatch.setattr("dpfc_cli.features.columns.ROWS", 5)
    reference, _ = import_features(npy(tmp_path, data), tmp_path / "reference", shards=3)
    made, _ = import_features(write(tmp_path, data), tmp_path / "set", shards=3)
    assert shards(tmp_path / "set") == shards(tmp_path / "reference")
    assert made.manifest.source["identity"]["listing"] == reference.manifest.source["identity"]["listing"]
    assert made.manifest == FeatureSet(tmp_path / "set").manifest
    assert (made.manifest.origin, made.classes, made.manifest.dtype) == ("inferred", ("0", "1", "2"), "float32")


@pytest.mark.parametrize("write", list(FORMATS.values())[1:], ids=list(FORMATS)[1:])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_source_s_precision_decides_the_set_s(tmp_path: Path, data: Arrays, write: Write, dtype: type) -> None:
    source = write(tmp_path, {name: a.astype(dtype) if name.endswith("x") else a for name, a in data.items()})
    found, _ = import_features(source, tmp_path / "set")
    assert found.manifest.dtype == ("float16" if dtype == np.float16 else "float32")


def test_one_pair_of_arrays_is_the_training_split(tmp_path: Path, data: Arrays) -> None:
    x, y = data["train_x"], data["train_y"]
    save_file({"features": x, "labels": y}, tmp_path / "a.safetensors")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["emb"], file["target"] = x, y
    a, _ = import_features(tmp_path / "a.safetensors", tmp_path / "1")
    b, _ = import_features(tmp_path / "b.h5", tmp_path / "2", column="emb", label_column="target")
    assert a.splits == {"train": 100}
    assert shards(tmp_path / "1") == shards(tmp_path / "2")
    assert a.manifest.splits == b.manifest.splits


def hub_table(x: np.ndarray, y: np.ndarray, **more: object) -> pa.Table:
    names = {"info": {"features": {"label": {"names": ["pos", "neg", "so-so"]}}}}
    table = pa.table({"text": ["a text"] * len(x), "embedding": vectors(x, "list"), "label": y, **more})
    return table.replace_schema_metadata({"huggingface": json.dumps(names)})


def test_text_embeddings_with_the_hubs_class_names_need_no_assertion(tmp_path: Path, data: Arrays) -> None:
    pq.write_table(hub_table(data["train_x"], data["train_y"]), tmp_path / "texts.parquet")
    found, _ = import_features(tmp_path / "texts.parquet", tmp_path / "set")
    assert (found.classes, found.manifest.origin) == (("pos", "neg", "so-so"), "data set")


def test_columns_are_chosen_by_name_where_there_are_several(tmp_path: Path, data: Arrays) -> None:
    x, y = data["train_x"], data["train_y"]
    pq.write_table(hub_table(x, y, title=vectors(-x, "list"), stars=y[::-1].copy()), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="2 columns of lists of floats") as caught:
        import_features(tmp_path / "a.parquet", tmp_path / "set")
    assert "embedding, title" in caught.value.remedy
    made, _ = import_features(tmp_path / "a.parquet", tmp_path / "set", column="title", label_column="stars")
    assert made.manifest.origin == "inferred"
    found, labels = made.arrays("train")
    np.testing.assert_array_equal(found, -x)
    np.testing.assert_array_equal(labels[:, 0], y[::-1])


def test_label_sets_of_parquet_are_padded(tmp_path: Path, data: Arrays) -> None:
    x = data["train_x"]
    y = [[i % 3] if i % 2 else [i % 3, 4] for i in range(100)]
    pq.write_table(pa.table({"embedding": vectors(x, "list"), "labels": y}), tmp_path / "a.parquet")
    made, _ = import_features(tmp_path / "a.parquet", tmp_path / "set", classes=tuple("abcde"), labels_per_record=3)
    assert (made.manifest.labels_per_record, made.manifest.origin) == (3, "asserted")
    _, labels = made.arrays("train")
    assert labels[:2].tolist() == [[0, 4, -1], [1, -1, -1]]


def test_a_stopped_parquet_import_goes_on_in_the_middle(
    tmp_path: Path, data: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parquet()(tmp_path, data)
    import_features(source, tmp_path / "whole", shards=4)
    calls = 0

    def stop(what: str, done: int, total: int | None) -> None:
        nonlocal calls
        calls += what == "Importing train"
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_features(source, tmp_path / "set", shards=4, progress=stop)
    import_features(source, tmp_path / "set", shards=4)
    assert shards(tmp_path / "set") == shards(tmp_path / "whole")


def columns(place: Path, name: str = "a", **held: Any) -> Path:
    pq.write_table(pa.table(held), place / f"{name}.parquet")
    return place / f"{name}.parquet"


def unlike(place: Path) -> Path:
    for i, dtype in enumerate((pa.float32(), pa.float64())):
        columns(place, f"train-{i}", e=pa.array([[1.0, 2.0]], pa.list_(dtype)), label=[0])
    return place


def arrays(place: Path, cut: int | None = None, **held: np.ndarray) -> Path:
    """A file of safetensors, or its beginning."""
    save_file({"features": np.zeros((3, 2), np.float32), **held}, place / "a.safetensors")
    return whole(place, "a.safetensors", (place / "a.safetensors").read_bytes()[:cut])


def whole(place: Path, name: str, data: bytes) -> Path:
    (place / name).write_bytes(data)
    return place / name


def brain_floats(place: Path) -> Path:
    header = json.dumps(
        {
            "features": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]},
            "labels": {"dtype": "I64", "shape": [1], "data_offsets": [4, 12]},
        }
    ).encode()
    return whole(place, "a.safetensors", len(header).to_bytes(8, "little") + header + bytes(12))


def linked(place: Path) -> Path:
    with h5py.File(place / "other.h5", "w") as other:
        other["features"] = np.ones((3, 2), np.float32)
    with h5py.File(place / "a.h5", "w") as file:
        file["labels"] = np.zeros(3, int)
        file["features"] = h5py.ExternalLink("other.h5", "features")
    return place / "a.h5"


def damaged_hdf5(place: Path) -> Path:
    with h5py.File(place / "a.h5", "w", libver="latest") as file:
        file.create_dataset("features", data=np.ones((9, 4), np.float32), compression="gzip", chunks=(9, 4))
        file["labels"] = np.arange(9) % 3
        chunk = file["features"].id.get_chunk_info(0)
    data = bytearray((place / "a.h5").read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    return whole(place, "a.h5", bytes(data))


BAD: list[tuple[Callable[[Path], Path], str, bool]] = [
    (lambda p: columns(p, e=[[1.0, 2.0], [1.0], [1.0, 2.0, 3.0]], label=[0, 1, 2]), "bad-record", True),
    (lambda p: columns(p, e=[[1.0, 2.0], None], label=[0, 1]), "bad-record", True),
    (lambda p: columns(p, e=[[], [2.0]], label=[0, 1]), "bad-record", True),
    (lambda p: columns(p, e=[[1.0, 2.0]] * 2, label=[0, None]), "bad-record", True),
    (lambda p: columns(p, f0=[1.0, None], label=[0, 1]), "bad-record", True),
    (lambda p: columns(p, e=[[1.0], [2.0]], labels=[[0], [0, 1, 2]]), "conflict", True),
    (lambda p: columns(p, e=[[1.0, 2.0]] * 2), "missing", False),
    (lambda p: columns(p, e=[[1.0, 2.0]] * 2, a=[0, 1], b=[0, 1]), "conflict", False),
    (lambda p: whole(p, "a.parquet", b"PAR1 and no more"), "damaged", False),
    (unlike, "conflict", False),
    (arrays, "missing", False),
    (lambda p: arrays(p, -3, labels=np.zeros(3, int)), "damaged", False),
    (lambda p: arrays(p, labels=np.zeros(3, int)), "bad-value", True),
    (brain_floats, "damaged", False),
    (linked, "damaged", False),
    (lambda p: whole(p, "a.h5", b"text"), "damaged", False),
    (damaged_hdf5, "damaged", False),
    (lambda p: whole(p, "a.csv", b"1,2"), "unsupported", False),
    (lambda p: p, "missing", False),
]
"""What is refused, with which code, and whether the refusal says something about a record."""


def test_what_cannot_be_taken_is_named_and_leaves_no_set(tmp_path: Path) -> None:
    for i, (make, code, guarded) in enumerate(BAD):
        (tmp_path / f"{i}").mkdir()
        with pytest.raises(UserError) as caught:
            import_features(make(tmp_path / f"{i}"), tmp_path / "out" / "set", labels_per_record=2)
        assert (caught.value.code, GUARDED in str(caught.value)) == (code, guarded), i
        assert str(caught.value.fields.get("path", tmp_path)).startswith(str(tmp_path))
        assert not (tmp_path / "out" / "set").exists()


@pytest.mark.parametrize("write", [safetensors, hdf5, parquet()], ids=["safetensors", "hdf5", "parquet"])
def test_a_name_that_is_not_there_is_answered_with_those_that_are(tmp_path: Path, data: Arrays, write: Write) -> None:
    with pytest.raises(UserError) as caught:
        import_features(write(tmp_path, data), tmp_path / "set", column="vector")
    assert "vector" in caught.value.what
    assert (caught.value.code, caught.value.fields["parameter"]) == ("missing", "column")
    assert "embedding" in caught.value.remedy or "train" in caught.value.remedy


@pytest.mark.parametrize("longest", [1, 2])
def test_how_many_labels_the_longest_list_has_is_inferred_until_it_is_asserted(tmp_path: Path, longest: int) -> None:
    """Ragged lists: k would else tell whether some record has two labels, under the name of an asserted fact."""
    lists = [[0]] * 7 + [[0, 1][:longest]]
    table = pa.table({"features": np.ones((8, 2), np.float32).tolist(), "labels": lists})
    table = table.cast(pa.schema([("features", pa.list_(pa.float32())), ("labels", pa.list_(pa.int64()))]))
    pq.write_table(table, tmp_path / "x.parquet")
    made, _ = import_features(tmp_path / "x.parquet", tmp_path / "inferred", classes=("a", "b"))
    assert made.manifest.origin == "inferred"
    made, _ = import_features(tmp_path / "x.parquet", tmp_path / "asserted", classes=("a", "b"), labels_per_record=2)
    assert made.manifest.origin == "asserted"
