"""Sets whose records belong to persons: those of one person lie together. A shard that says otherwise is refused."""

import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features import table
from dpfc_cli.features.manifest import MANIFEST, Manifest, load
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.features.writer import FeatureWriter
from dpfc_cli.files import sha256_of
from dpfc_cli.sources.groups import grouped, key_of, keys_in, keys_of
from tests.features.formats import Arrays, Write, hdf5, hdf5_flat, npy, npz, parquet, safetensors
from tests.support import bare_manifest, stored

N, D = {"train": 100, "test": 20}, 6


@pytest.fixture
def arrays() -> Arrays:
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


def of_groups(write: Write, convert: Callable[[np.ndarray], Any]) -> Write:
    """The same with other arrays of groups."""
    return lambda folder, arrays: write(
        folder, {name: convert(a) if name.endswith("groups") else a for name, a in arrays.items()}
    )


def texts(groups: np.ndarray) -> list[str]:
    return [str(value) for value in groups]


FORMATS: dict[str, Write] = {
    "npz": npz,
    "npz of texts": of_groups(npz, lambda g: g.astype(str)),
    "npy": npy,
    "safetensors": safetensors,
    "hdf5": hdf5,
    "hdf5 of texts": of_groups(hdf5_flat, lambda g: np.array([f" {value}" for value in g], "S")),
    "parquet of integers": parquet(),
    "parquet of texts": of_groups(parquet("fixed"), texts),
    "parquet of large texts": of_groups(parquet("large"), lambda g: pa.array(texts(g), pa.large_string())),
    "parquet of categories": of_groups(parquet(), lambda g: pa.array(texts(g)).dictionary_encode()),
}


def read(found: FeatureSet, split: str, rows: int) -> tuple[np.ndarray, ...]:
    """The features, labels and groups of a split, read in blocks."""
    blocks = list(found.grouped(split)(rows))
    assert [start for start, *_ in blocks] == list(range(0, found.splits[split], rows))
    _, x, y, g = map(list, zip(*blocks, strict=True))
    return np.concatenate(x), np.concatenate(y), np.concatenate(g)


@pytest.mark.parametrize("form", FORMATS)
def test_records_of_one_person_lie_together_whatever_the_format(
    form: str, arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows are held at a time, so that the source is read more than once."""
    monkeypatch.setattr(table, "LEAST_HELD", 30 * D * 4)
    monkeypatch.setattr(table, "free_memory", lambda: 0.0)
    monkeypatch.setattr("dpfc_cli.extraction.importing.ROWS", 9)
    found = import_features(FORMATS[form](tmp_path, arrays), tmp_path / "set", shards=3).features
    for split in N:
        found.verify(split)
        x, y, g = read(found, split, 16)
        original = x[:, 0].astype(int)
        assert sorted(original) == list(range(N[split]))
        np.testing.assert_array_equal(x, arrays[f"{split}_x"][original])
        np.testing.assert_array_equal(y[:, 0], arrays[f"{split}_y"][original])
        persons = arrays[f"{split}_groups"]
        # Two records have the same number exactly if they are of the same person.
        assert len(set(zip(g, persons[original], strict=True))) == len(set(g)) == len(set(persons))
        assert (g[0], g[-1] + 1) == (0, found.manifest.splits[split].groups)
        assert set(np.diff(g)) == {0, 1}
        # Inside a group the order is that of the source.
        assert all((np.diff(original[g == group]) > 0).all() for group in set(g))


def test_every_format_makes_the_same_set_and_the_listing_knows_no_groups(arrays: Arrays, tmp_path: Path) -> None:
    made = []
    for i, form in enumerate(FORMATS):
        (tmp_path / str(i)).mkdir()
        made.append(import_features(FORMATS[form](tmp_path / str(i), arrays), tmp_path / f"set-{i}").features.manifest)
    assert len({json.dumps([split.shards for split in m.splits.values()], default=vars) for m in made}) == 1
    assert all(m.source["identity"]["groups"] == made[0].source["identity"]["groups"] for m in made)
    bare = {name: array for name, array in arrays.items() if not name.endswith("groups")}
    (tmp_path / "bare").mkdir()
    plain = import_features(npz(tmp_path / "bare", bare), tmp_path / "plain").features.manifest
    for m in made:
        assert m.source["identity"]["listing"] == plain.source["identity"]["listing"]
        # Heads of both sets may be compared: the recipe of a feature knows no groups.
        assert m.classes == plain.classes
    assert made[0].fingerprint == plain.fingerprint
    assert (plain.grouped, made[0].grouped_by) == (False, {"by": "column", "column": "groups"})


def test_the_numbers_of_groups_follow_no_names(arrays: Arrays, tmp_path: Path) -> None:
    """They have the order of the SHA-256 of the names. The manifest holds no name, and no size of a group."""
    texts = np.array([f"patient-{value:03d}" for value in arrays["train_groups"]])
    source = npz(tmp_path, {"train_x": arrays["train_x"], "train_y": arrays["train_y"], "train_groups": texts})
    found = import_features(source, tmp_path / "set").features
    x, _, g = read(found, "train", 100)
    names = [texts[int(x[np.argmax(g == group), 0])] for group in range(23)]
    assert names == sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    assert names != sorted(names)
    said = json.loads((tmp_path / "set" / MANIFEST).read_text())
    assert "patient" not in json.dumps(said)
    assert set(said["splits"]["train"]) == {"n", "shards", "groups"}


def test_the_same_source_makes_the_same_bytes_and_other_groups_are_another_set(arrays: Arrays, tmp_path: Path) -> None:
    source = npz(tmp_path, arrays)
    for name in ("a", "b"):
        import_features(source, tmp_path / name, shards=2)
    assert stored(tmp_path / "a") == stored(tmp_path / "b")
    assert not import_features(source, tmp_path / "a", shards=2).made
    arrays["train_groups"][0] = 99
    with pytest.raises(UserError, match="with other settings"):
        import_features(npz(tmp_path, arrays), tmp_path / "a")
    del arrays["train_groups"], arrays["test_groups"]
    with pytest.raises(UserError, match="with other settings"):
        import_features(npz(tmp_path, arrays), tmp_path / "a")


def test_a_set_without_groups_has_none_to_give(arrays: Arrays, tmp_path: Path) -> None:
    found = import_features(npz(tmp_path, {n: a for n, a in arrays.items() if "groups" not in n}), tmp_path / "set")
    with h5py.File(tmp_path / "set" / found.features.split("train").shards[0].file) as file:
        assert set(file) == {"features", "labels", "index"}
    with pytest.raises(UserError, match="does not say which records belong to one person"):
        found.features.grouped("train")


# Records without a person, and groups that do not fit

LACKING: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "an empty text": (
        lambda a: a.update(train_groups=np.array(["x", "", " "] + ["y"] * 97)),
        r"2 records of .* have no person. The first is 'row 1 of train_groups'",
    ),
    "too few": (lambda a: a.update(train_groups=np.arange(99)), r"shape \(99,\)"),
    "floats": (lambda a: a.update(train_groups=np.arange(100.0)), "dtype float64"),
    "truth values": (lambda a: a.update(train_groups=np.ones(100, bool)), "dtype bool"),
    "two columns": (lambda a: a.update(train_groups=np.zeros((100, 2), int)), r"shape \(100, 2\)"),
    "one split only": (lambda a: a.pop("test_groups"), "no groups for its test records"),
    "two splits": (lambda a: a["test_groups"].__setitem__(3, 7), r"1 person of .* has records in two splits"),
}


@pytest.mark.parametrize("case", LACKING)
@pytest.mark.parametrize("form", ["npz", "npy"])
def test_groups_that_do_not_fit_are_refused_and_leave_no_set(
    form: str, case: str, arrays: Arrays, tmp_path: Path
) -> None:
    change, says = LACKING[case]
    change(arrays)
    with pytest.raises(UserError, match=says):
        import_features(FORMATS[form](tmp_path, arrays), tmp_path / "set")
    assert not list(tmp_path.glob("set*"))


@pytest.mark.parametrize(
    ("convert", "says"),
    [
        (lambda g: [None if i == 40 else str(value) for i, value in enumerate(g)], "1 record of .* has no person"),
        (lambda g: pa.array([None if i == 40 else int(v) for i, v in enumerate(g)]), "1 record of .* has no person"),
        (lambda g: g.astype(float), "no column 'groups' of integers or texts"),
    ],
)
def test_a_column_with_a_gap_is_refused(
    convert: Callable[[np.ndarray], Any], says: str, arrays: Arrays, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        import_features(of_groups(parquet(), convert)(tmp_path, arrays), tmp_path / "set")
    assert ("has no person" in str(caught.value)) == (GUARDED in str(caught.value))


def test_texts_in_a_heap_of_hdf5_are_refused(arrays: Arrays, tmp_path: Path) -> None:
    """HDF5 reads a damaged heap without end, and cannot be stopped."""
    source = FORMATS["hdf5 of texts"](tmp_path, arrays)
    with h5py.File(source, "r+") as file:
        del file["train_groups"]
        file["train_groups"] = [str(value) for value in arrays["train_groups"]]
    with pytest.raises(UserError, match="dtype object beside") as caught:
        import_features(source, tmp_path / "set")
    assert "np.char.encode(texts, 'utf-8')" in caught.value.remedy


def test_a_column_of_another_name_is_named(arrays: Arrays, tmp_path: Path) -> None:
    """Parquet has two columns of integers, and neither is called 'label'. The one that is left is the label."""
    renamed = {name.replace("groups", "patient"): array for name, array in arrays.items()}
    source = parquet(label="diagnosis")(tmp_path, renamed)
    found = import_features(source, tmp_path / "set", group_column="patient").features
    assert found.manifest.grouped_by == {"by": "column", "column": "patient"}
    assert found.split("train").groups == 23
    plain = import_features(source, tmp_path / "plain", label_column="diagnosis", each_record_is_a_person=True).features
    assert plain.manifest.grouped_by is None
    with pytest.raises(UserError, match="which is the label"):
        import_features(source, tmp_path / "other")
    with pytest.raises(UserError, match="no column 'nobody' of integers or texts"):
        import_features(source, tmp_path / "other", group_column="nobody")
    again = import_features(npz(tmp_path, renamed), tmp_path / "npz", group_column="patient").features
    assert again.split("train").shards == found.split("train").shards
    with pytest.raises(UserError, match="has no 'nobody'"):
        import_features(tmp_path / "a.npz", tmp_path / "other", group_column="nobody")


# Keys


def test_what_may_be_the_same_person_is_the_same_person() -> None:
    assert [key_of(value) for value in (7, "7", " 7 ", np.int64(7))] == ["7"] * 4
    assert key_of("Mu\u0308ller") == key_of("Müller")
    assert key_of("a") != key_of("A")
    assert [key_of(value) for value in (None, "", " \t")] == [None] * 3
    for value in (1.0, True, b"x", ["x"]):
        with pytest.raises(TypeError):
            key_of(value)
    keys = keys_in(np.array(["b", " b", "a", "b "]), "source", "groups")
    assert [keys.names[code] for code in keys.codes] == ["b", "b", "a", "b"]
    assert grouped(keys).groups == 2


def test_names_of_files_that_are_no_utf_8_and_halves_of_characters_are_keys() -> None:
    names = [os.fsdecode(b"caf\xe9"), "\ud800", "é"]
    assert sorted(grouped(keys_of(names, "source", str, "")).order) == [0, 1, 2]


# Planted faults: shards and manifests that a reader must refuse


def made(folder: Path, groups: list[int], shards: int = 2, claimed: int | None = None) -> FeatureSet:
    """A set with these groups in its shards, whether or not a reader should take them. Its digests are right."""
    n = len(groups)
    truth = np.sort(np.unique(groups, return_inverse=True)[1])
    honest = {"train": np.minimum(truth, np.arange(n)).astype(np.int64)}
    writer = FeatureWriter(
        folder,
        rows={"train": n},
        dim=2,
        dtype="float32",
        labels_per_record=1,
        identity={"listing": {"train": "x"}, "groups": {"train": "0" * 64}},
        shards=shards,
        groups=honest,
    )
    for planned in writer.missing:
        with writer.shard(planned) as sink:
            sink.append(np.zeros((planned.rows, 2)), np.zeros(planned.rows, np.int32))
    said = bare_manifest({"dataset": "x"})
    written = writer.finish(Manifest(**{**vars(said), "grouped_by": {"by": "name"}}))
    assert written is not None
    at = 0
    for shard in written.splits["train"].shards:
        alter(folder, shard.file, partial(write_groups, groups=groups[at : at + shard.rows]))
        at += shard.rows
    if claimed is not None:
        claim(folder, lambda text: text["splits"]["train"].update(groups=claimed))
    return FeatureSet(folder)


def write_groups(file: h5py.File, groups: list[int]) -> None:
    file["groups"][:] = groups


def alter(folder: Path, name: str, change: Callable[[h5py.File], object]) -> None:
    """Change a shard, and its digest in the manifest."""
    with h5py.File(folder / name, "r+") as file:
        change(file)
    found = sha256_of(folder / name)
    claim(folder, lambda text: [s.update(sha256=found) for s in text["splits"]["train"]["shards"] if s["file"] == name])


def claim(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest."""
    text = json.loads((folder / MANIFEST).read_text())
    change(text)
    (folder / MANIFEST).write_text(json.dumps(text))


def refused(found: FeatureSet, says: str) -> None:
    """Whoever reads it, and in whatever way, it is refused."""
    for use in (
        lambda: found.verify("train"),
        lambda: list(found.grouped("train")(3)),
        lambda: list(found.stream("train")(3)),
    ):
        with pytest.raises(UserError, match=says) as caught:
            use()
        assert caught.value.code == "damaged"


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_groups_in_their_order_are_read_over_all_shards(tmp_path: Path, shards: int) -> None:
    found = made(tmp_path / "set", [0, 0, 1, 1, 1, 2], shards)
    found.verify("train")
    assert read(found, "train", 4)[2].tolist() == [0, 0, 1, 1, 1, 2]
    assert found.split("train").groups == 3
    assert load(tmp_path / "set").grouped_by == {"by": "name"}


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([0, 0, 1, 0, 1, 2], id="a group in two places, over two shards"),
        pytest.param([0, 1, 0, 1, 2, 2], id="a group in two places of one shard"),
        pytest.param([0, 0, 2, 2, 3, 3], id="a number is missing"),
        pytest.param([0, 0, 0, 2, 2, 3], id="a number is missing between shards"),
        pytest.param([1, 1, 2, 2, 3, 3], id="the first is not 0"),
        pytest.param([-1, 0, 0, 1, 1, 2], id="the first is below 0"),
        pytest.param([0, 1, 1, 0, 1, 2], id="the second shard begins anew"),
        pytest.param([0, -(2**63), -(2**63) + 1, 0, 1, 2], id="differences overflow"),
        pytest.param([0, 0, 0, 2**63 - 1, 2**63 - 1, 2], id="the largest number"),
    ],
)
def test_groups_that_are_split_skipped_or_begin_wrong_are_refused(tmp_path: Path, groups: list[int]) -> None:
    refused(made(tmp_path / "set", groups, claimed=3), "its groups are not numbered one after the other")


@pytest.mark.parametrize("claimed", [1, 2, 4, 6])
def test_a_set_that_ends_with_another_group_than_its_manifest_says_is_refused(tmp_path: Path, claimed: int) -> None:
    refused(made(tmp_path / "set", [0, 0, 1, 1, 2, 2], claimed=claimed), "does not end with the last group")


REPLACED: dict[str, tuple[Callable[[h5py.File], object], str]] = {
    "missing": (lambda file: None, "it has no data set 'groups'"),
    "a link to other numbers": (lambda f: f.update(groups=h5py.SoftLink("/index")), "is a link to another place"),
    "fewer rows": (lambda file: file.create_dataset("groups", data=np.zeros(2, np.int64)), r"shape \(2,\)"),
    "narrow integers": (lambda file: file.create_dataset("groups", data=np.zeros(3, np.int32)), "dtype int32"),
}


@pytest.mark.parametrize("case", REPLACED)
def test_groups_that_are_not_plainly_there_are_refused(tmp_path: Path, case: str) -> None:
    found = made(tmp_path / "set", [0, 0, 1, 1, 2, 2])
    write, says = REPLACED[case]

    def change(file: h5py.File) -> None:
        del file["groups"]
        write(file)

    alter(found.folder, found.split("train").shards[0].file, change)
    refused(FeatureSet(found.folder), says)


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a split without a number": (lambda m: m["splits"]["train"].pop("groups"), "has no groups, unlike the set"),
    "no description": (lambda m: m.pop("grouped_by"), "has groups, unlike the set"),
    "more groups than records": (lambda m: m["splits"]["train"].update(groups=7), "more groups than records"),
    "no group": (lambda m: m["splits"]["train"].update(groups=0), "makes no sense"),
    "a number that is none": (lambda m: m["splits"]["train"].update(groups=True), "makes no sense"),
    "a description that is none": (lambda m: m.update(grouped_by=["folder"]), "makes no sense"),
    "nothing about persons": (lambda m: m["source"]["identity"].pop("groups"), "does not fit its splits"),
    "nothing about a split's persons": (
        lambda m: m["source"]["identity"].update(groups={"other": "0" * 64}),
        "does not fit its splits",
    ),
    "persons that are no mapping": (lambda m: m["source"]["identity"].update(groups=7), "makes no sense"),
    "persons without a digest": (lambda m: m["source"]["identity"].update(groups={"train": "Hello"}), "makes no sense"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_about_groups_is_refused(tmp_path: Path, case: str) -> None:
    found = made(tmp_path / "set", [0, 0, 1, 1, 2, 2])
    change, says = CONTRADICTIONS[case]
    claim(found.folder, change)
    with pytest.raises(UserError, match=says) as caught:
        FeatureSet(found.folder)
    assert caught.value.code == "damaged"


def test_a_manifest_that_hides_the_groups_of_its_shards_is_refused(tmp_path: Path) -> None:
    """It would be trained on as a set whose records are of as many persons."""
    found = made(tmp_path / "set", [0, 0, 1, 1, 2, 2])

    def hide(text: dict[str, Any]) -> None:
        del text["grouped_by"], text["splits"]["train"]["groups"], text["source"]["identity"]["groups"]

    claim(found.folder, hide)
    hidden = FeatureSet(found.folder)
    for use in (lambda: hidden.verify("train"), lambda: list(hidden.stream("train")(3))):
        with pytest.raises(UserError, match="it has groups, and the manifest has none"):
            use()


def test_a_writer_takes_no_groups_that_a_reader_would_refuse(tmp_path: Path) -> None:
    for ids in ([1, 1, 2], [0, 2, 2], [0, 1, 0], [0, 0]):
        with pytest.raises(ValueError, match="not numbered in the order of the records"):
            FeatureWriter(
                tmp_path / "set",
                rows={"train": 3},
                dim=2,
                dtype="float32",
                labels_per_record=1,
                identity={},
                groups={"train": np.array(ids)},
            )
    assert not list(tmp_path.iterdir())


def test_a_null_record_keeps_its_group(tmp_path: Path) -> None:
    writer = FeatureWriter(
        tmp_path / "set",
        rows={"train": 4},
        dim=2,
        dtype="float16",
        labels_per_record=1,
        identity={"listing": {"train": "x"}, "groups": {"train": "0" * 64}},
        tolerant=True,
        groups={"train": np.array([0, 0, 1, 1])},
    )
    with writer.shard(writer.missing[0]) as sink:
        sink.append(np.array([[1, 1], [1e9, 1], [1, 1], [2, 2]]), np.ones(4, int), np.array([0, 0, 1, 0], bool))
    writer.finish(Manifest(**{**vars(bare_manifest({"dataset": "x"})), "dtype": "float16", "grouped_by": {}}))
    _, y, g = read(FeatureSet(tmp_path / "set"), "train", 4)
    assert (y[:, 0].tolist(), g.tolist()) == ([1, -1, -1, 1], [0, 0, 1, 1])
