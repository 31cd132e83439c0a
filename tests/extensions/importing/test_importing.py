"""An import asserts public facts, asks before records of one person count as many, holds a part out, and goes on."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.annotations.person_hints import PersonsNoticedError
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from tests import instead
from tests.extensions.importing.formats import Arrays, Write, hdf5, npy, npz, parquet, safetensors
from tests.support import refuses, shards_of, stored

pytestmark = pytest.mark.filterwarnings("ignore:Left out")

N, PERSONS = 60, 17


@pytest.fixture
def arrays() -> Arrays:
    """60 records of 17 persons. The first feature of a record is its number."""
    x = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
    x[:, 0] = np.arange(N)
    return {"train_x": x, "train_y": np.arange(N) % 3, "train_patient": np.arange(N) * 7 % PERSONS}


@pytest.fixture
def single(arrays: Arrays) -> Arrays:
    """The same without persons."""
    return {name: array for name, array in arrays.items() if name != "train_patient"}


def npz_of_texts(folder: Path, arrays: Arrays) -> Path:
    return npz(folder, arrays | {"train_patient": arrays["train_patient"].astype(str)})


def slides(folder: Path, arrays: Arrays) -> Path:
    """In a folder of their own: the shards of a set beside them would be slides that the table does not name."""
    place = folder / "slides"
    place.mkdir()
    for i, row in enumerate(arrays["train_x"]):
        with h5py.File(place / f"s{i}.h5", "w") as file:
            file["features"] = row[None]
    rows = (f"s{i},{y},{p}" for i, (y, p) in enumerate(zip(arrays["train_y"], arrays["train_patient"], strict=True)))
    (place / "slides.csv").write_text("\n".join(["slide,label,Patient Number", *rows]))
    return place


FORMATS = (npz, npz_of_texts, safetensors, hdf5, parquet(), npy, slides)


def made(source: Path, out: Path, **options: Any) -> FeatureSet:
    options = {"classes": 3, **options}
    if (source / "slides.csv").exists():
        return import_features(f"slides:{source}", out, table=source / "slides.csv", **options).features
    return import_features(source, out, **options).features


def numbers(features: FeatureSet, split: str) -> list[int]:
    """The numbers of the records of a split."""
    return [int(number) for number in features.arrays(split)[0][:, 0]]


# What is asserted, and what the set is called


def test_classes_are_stated_and_a_set_of_others_is_kept(tmp_path: Path, single: Arrays) -> None:
    source = npz(tmp_path, single)
    with refuses("conflict", parameter="classes"):
        import_features(source, tmp_path / "set")
    with refuses("bad-value", parameter="classes"):
        import_features(source, tmp_path / "set", classes=["x", "y", "\ud800"])
    first, made_now = import_features(source, tmp_path / "set", classes=["x", "y", "z", "never seen"])
    assert (made_now, first.manifest.origin, len(first.classes)) == (True, "asserted", 4)
    again, made_now = import_features(str(source), str(tmp_path / "set"), classes=["x", "y", "z", "never seen"])
    assert (made_now, again.folder, again.manifest.id) == (False, tmp_path / "set", first.manifest.id)
    before = stored(tmp_path / "set")
    with refuses("exists"):
        import_features(source, tmp_path / "set", classes=7)
    assert stored(tmp_path / "set") == before
    with refuses("bad-record", match="do not publish", parameter="classes"):
        import_features(source, tmp_path / "few", classes=("a", "b"))
    texts = npz(tmp_path, single | {"train_y": np.array(["x", "y ", " x"])[single["train_y"]]})
    import_features(texts, tmp_path / "texts", classes=("x", "y"))


def test_splits_that_do_not_fit_together_are_refused(tmp_path: Path, single: Arrays) -> None:
    names = np.array(["cat", "elk", "wolf"])[single["train_y"]]
    narrow = {"test_x": single["train_x"][:, :3], "test_y": single["train_y"]}
    for test, code in ((narrow, "conflict"), ({"test_x": single["train_x"], "test_y": names}, "bad-record")):
        with refuses(code):
            made(npz(tmp_path, single | test), tmp_path / "set")


def test_a_name_that_is_not_utf_8_is_kept(tmp_path: Path, single: Arrays) -> None:
    """Such names are legal on POSIX systems."""
    source = npz(tmp_path, single).rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz"))
    assert made(source, tmp_path / "set").manifest.source["identity"]["imported"] == source.name
    assert not import_features(source, tmp_path / "set", classes=3).made


def test_a_set_is_called_imported_unless_it_has_a_name_that_can_be_one(
    tmp_path: Path, single: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    npz(tmp_path, single)
    first, again = (import_features("a.npz", classes=["a", "b", "c"]) for _ in range(2))
    assert (first.features.name, first.made, again.made) == ("imported", True, False)
    assert (tmp_path / "features" / "imported" / "manifest.json").exists()
    for name in ("x.partial", "ledger.sqlite", " "):
        with refuses("bad-value", parameter="out"):
            import_features("a.npz", name)


# Going on


def test_a_stopped_import_goes_on_in_the_middle(tmp_path: Path, single: Arrays) -> None:
    source = parquet()(tmp_path, single)
    calls = 0

    def stop(what: str, done: int, total: int | None) -> None:
        nonlocal calls
        calls += what == "Importing train"
        if calls == 3:
            raise KeyboardInterrupt

    with shards_of(N // 4):
        with pytest.raises(KeyboardInterrupt) as stopped:
            made(source, tmp_path / "set", progress=stop)
        assert stopped.value.__notes__[0].startswith("2 finished shards kept")
        assert stored(made(source, tmp_path / "set").folder) == stored(made(source, tmp_path / "whole").folder)


def test_a_changed_source_is_refused_rather_than_mixed(tmp_path: Path, single: Arrays) -> None:
    made(npz(tmp_path, single), tmp_path / "set")
    assert not import_features(npz(tmp_path, single), tmp_path / "set", classes=3).made
    single["train_x"][0, 1] += 1
    groups = {"train_groups": np.arange(N) // 2}
    for changed in (single, single | groups):
        with refuses("exists", parameter="out"):
            made(npz(tmp_path, changed), tmp_path / "set")


def test_one_that_refuses_null_records_does_not_complete_a_set_that_has_some(tmp_path: Path, arrays: Arrays) -> None:
    """The null record is in the shard that a run before has made."""
    arrays["train_x"][7] = 1e5
    source = slides(tmp_path, arrays)
    given: dict[str, Any] = {"each_record_is_a_person": True, "dtype": "float16", "out": tmp_path / "set"}

    def stop(what: str, done: int, total: int | None) -> None:
        if what == "Importing train" and done > N // 2:
            raise KeyboardInterrupt

    with shards_of(N // 2):
        with pytest.raises(KeyboardInterrupt):
            made(source, on_error="null", progress=stop, **given)
        with refuses("bad-record"):
            made(source, **given)
    assert not (tmp_path / "set.partial").exists()
    assert (made(source, on_error="null", warn=len, **given).arrays("train")[1] < 0).sum() == 1


def test_a_source_that_was_refused_can_be_imported_when_it_was_corrected(tmp_path: Path, arrays: Arrays) -> None:
    given: dict[str, Any] = {"each_record_is_a_person": True, "dtype": "float16"}
    arrays["train_x"][N - 1] = 1e5
    with shards_of(N // 2), refuses("bad-record"):
        made(npz(tmp_path, arrays), tmp_path / "set", **given)
    arrays["train_x"][N - 1] = 1
    made(npz(tmp_path, arrays), tmp_path / "set", **given)


def test_a_set_that_the_disk_cannot_hold_is_refused_before_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instead.free_disk(monkeypatch, 10**8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", (10**6, 100), "f4", chunks=(1024, 100))
        file["labels"] = np.arange(10**6) % 2
    with refuses("unwritable", parameter="out"):
        import_features(tmp_path / "a.h5", tmp_path / "new" / "set", classes=2)
    assert not (tmp_path / "new").exists()


# Persons


@pytest.mark.parametrize("write", FORMATS)
def test_records_that_seem_to_be_of_one_person_are_refused_unless_each_is_one(
    write: Write, arrays: Arrays, tmp_path: Path
) -> None:
    source = write(tmp_path, arrays)
    with pytest.raises(PersonsNoticedError) as refused:
        made(source, tmp_path / "set")
    assert (refused.value.code, refused.value.fields["parameter"]) == ("conflict", "each_record_is_a_person")
    assert GUARDED in refused.value.what
    assert not list(tmp_path.glob("set*"))
    assert not made(source, tmp_path / "set", each_record_is_a_person=True).manifest.grouped
    # What the message says to do protects persons.
    name = str(refused.value.fields["found"])
    assert f"group_column='{name}'" in str(refused.value)
    assert made(source, tmp_path / "grouped", group_column=name).split("train").groups == PERSONS


def test_an_array_that_tells_all_records_apart_raises_no_alarm(arrays: Arrays, tmp_path: Path) -> None:
    for i, write in enumerate((npz, hdf5, parquet(), npy)):
        assert made(write(tmp_path, arrays | {"train_patient": np.arange(N)}), tmp_path / f"{i}").split("train").n == N


def test_persons_whose_names_are_never_read_are_noticed(arrays: Arrays, tmp_path: Path) -> None:
    """Texts without a fixed length lie in a heap in HDF5, and are objects in NumPy."""
    texts = np.array([f"p{i}" for i in range(N)], object)
    for write in (npy, hdf5):
        with pytest.raises(PersonsNoticedError):
            made(write(tmp_path, arrays | {"train_patient": texts}), tmp_path / "set")


def test_persons_are_known_or_each_record_is_one_and_not_both(arrays: Arrays, tmp_path: Path) -> None:
    groups = {name.replace("patient", "groups"): array for name, array in arrays.items()}
    for source, options in ((npz(tmp_path, groups), {}), (parquet()(tmp_path, arrays), {"group_column": "patient"})):
        with refuses("conflict", parameter="each_record_is_a_person"):
            made(source, tmp_path / "set", each_record_is_a_person=True, **options)
        assert made(source, tmp_path / f"set of {source.name}", **options).manifest.grouped


def test_the_numbers_of_groups_follow_no_names(arrays: Arrays, single: Arrays, tmp_path: Path) -> None:
    """They have the order of the SHA-256 of the names. The manifest holds no name, and no size of a group."""
    from hashlib import sha256

    texts = np.array([f"patient{value:03d}" for value in arrays["train_patient"]])
    found = made(npz(tmp_path, single | {"train_groups": texts}), tmp_path / "set")
    [(_, x, _, g)] = found.stream("train", groups=True)(N)
    names = [texts[int(x[np.argmax(g == group), 0])] for group in range(PERSONS)]
    assert names == sorted(names, key=lambda name: sha256(name.encode()).digest()) != sorted(names)
    said = found.manifest.to_json().decode()
    assert "patient" not in said
    assert not set(said.split()) & {str(n) for n in np.bincount(g)}


# A test split that is held out


def test_a_part_of_an_import_is_held_out_and_is_the_same_in_every_format(arrays: Arrays, tmp_path: Path) -> None:
    parts = []
    for i, write in enumerate(FORMATS):
        (tmp_path / f"{i}").mkdir()
        source = write(tmp_path / f"{i}", arrays)
        found = made(source, tmp_path / f"{i}" / "set", hold_out=0.3, each_record_is_a_person=True)
        parts.append([numbers(found, split) for split in ("train", "test")])
        for split, own in zip(("train", "test"), parts[-1], strict=True):
            assert found.arrays(split)[1].ravel().tolist() == [i % 3 for i in own]
    train, test = parts[0]
    assert all(part == [train, test] for part in parts)
    assert sorted(train + test) == list(range(N))
    assert 6 <= len(test) <= 30
    # A smaller fraction holds out some of the same records, and all of it is spent on the same records.
    fewer = made(source, tmp_path / "fewer", hold_out=0.1, each_record_is_a_person=True)
    assert set(numbers(fewer, "test")) < set(test)
    whole = made(source, tmp_path / "whole", each_record_is_a_person=True)
    listings = [each.manifest.source["identity"]["listing"]["train"] for each in (found, whole)]
    assert listings[0] == listings[1]
    with refuses("exists", parameter="out"):
        made(source, found.folder, hold_out=0.2, each_record_is_a_person=True)


def test_a_person_of_an_import_is_held_out_as_a_whole(arrays: Arrays, tmp_path: Path) -> None:
    for i, write in enumerate((npz, hdf5, parquet())):
        found = made(write(tmp_path, arrays), tmp_path / f"{i}", hold_out=0.3, group_column="patient")
        who = {split: {i * 7 % PERSONS for i in numbers(found, split)} for split in ("train", "test")}
        assert not who["train"] & who["test"]
        assert {split: found.split(split).groups for split in who} == {split: len(own) for split, own in who.items()}
        assert len(who["train"]) + len(who["test"]) == PERSONS
        assert sum(found.split(split).n for split in who) == N
        # The records of a person follow one another.
        for split, own in who.items():
            persons = [i * 7 % PERSONS for i in numbers(found, split)]
            assert 1 + sum(a != b for a, b in pairwise(persons)) == len(own)


def test_what_cannot_be_held_out_is_refused(single: Arrays, tmp_path: Path) -> None:
    both = single | {"test_x": single["train_x"], "test_y": single["train_y"]}
    for given, hold_out in ((both, 0.5), (single, 1e-9)):
        with pytest.raises(UserError) as refused:
            made(npz(tmp_path, given), tmp_path / "set", hold_out=hold_out)
        assert refused.value.fields["parameter"] == "hold_out"
        assert not (tmp_path / "set").exists()


def test_all_that_is_wrong_with_an_import_is_said_at_once(tmp_path: Path, single: Arrays) -> None:
    n = len(single["train_y"])
    names = np.array(["x", "y", "z"])[single["train_y"]]
    names[0] = ""
    wrong = {"train_y": names, "test_x": single["train_x"], "test_y": names, "train_patient": np.arange(n) // 2}
    source = npz(tmp_path, single | wrong)
    with refuses("conflict", parameter="each_record_is_a_person") as refused:
        import_features(source, tmp_path / "set", classes=("x", "y"))
    problems = refused.value.fields["problems"]
    assert isinstance(problems, list)
    assert [each["code"] for each in problems] == ["conflict", *["bad-record"] * 3]
    assert "z (" in (tmp_path / "set.refused.txt").read_text()
    assert not (tmp_path / "set").exists()


def test_columns_of_subgroups_are_kept_beside_the_records(single: Arrays, tmp_path: Path) -> None:
    sex = np.array(["f", "m", "x"])[np.arange(N) % 3]
    arrays = single | {"train_groups": np.arange(N)[::-1] // 2, "train_sex": sex}
    for i, source in enumerate((npz(tmp_path, arrays), parquet()(tmp_path, arrays))):
        found = made(source, tmp_path / f"set {i}", subgroups="sex=m,f")
        assert found.manifest.subgroups == {"sex": ("m", "f")}
        x, y = found.arrays("train")
        places = [int(np.flatnonzero((arrays["train_x"] == row).all(axis=1))[0]) for row in x]
        for value in "mf":
            own = found.of_subgroups("sex", value).arrays("train")[1]
            assert np.array_equal(own, np.where((sex[places] == value)[:, None], y, -1))
        product = found.of_subgroups("sex").arrays("train")[1]
        numbers = np.array(["mf".find(each) for each in sex[places]])[:, None]
        assert np.array_equal(product, np.where((y >= 0) & (numbers >= 0), numbers * 3 + y, -1))
        for wrong in ("nothing=a", "sex"):
            with refuses("missing" if "=" in wrong else "bad-value"):
                made(source, tmp_path / "wrong", subgroups=wrong)
