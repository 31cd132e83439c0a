"""Imports whose records seem to be of one person are refused, and test splits that are held out of imports."""

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.sources.noticed import PersonsNoticedError
from tests.features.formats import Arrays, Write, hdf5, npy, npz, parquet, safetensors

N, PERSONS = 60, 17


@pytest.fixture
def arrays() -> Arrays:
    """60 records of 17 persons. The first feature of a record is its number."""
    x = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
    x[:, 0] = np.arange(N)
    return {"train_x": x, "train_y": np.arange(N) % 3, "train_patient": np.arange(N) * 7 % PERSONS}


def npz_of_texts(folder: Path, arrays: Arrays) -> Path:
    return npz(folder, arrays | {"train_patient": arrays["train_patient"].astype(str)})


def one_npy(folder: Path, arrays: Arrays) -> Path:
    named = {"train_x": "X", "train_y": "y", "train_patient": "patient"}
    return npy(folder, {named[name]: array for name, array in arrays.items()}) / "X.npy"


def slides(folder: Path, arrays: Arrays) -> Path:
    for i, row in enumerate(arrays["train_x"]):
        with h5py.File(folder / f"s{i}.h5", "w") as file:
            file["features"] = row[None]
    rows = (f"s{i},{y},{p}" for i, (y, p) in enumerate(zip(arrays["train_y"], arrays["train_patient"], strict=True)))
    (folder / "slides.csv").write_text("\n".join(["slide,label,Patient Number", *rows]))
    return folder


FORMATS = (npz, npz_of_texts, safetensors, hdf5, parquet(), npy, one_npy, slides)


def made(source: Path, out: Path, **options: Any) -> FeatureSet:
    if (source / "slides.csv").exists():
        return import_features(f"slides:{source}", out, table=source / "slides.csv", classes=3, **options).features
    return import_features(source, out, classes=3, **options).features


def numbers(features: FeatureSet, split: str) -> list[int]:
    """The numbers of the records of a split."""
    return [int(number) for number in features.arrays(split)[0][:, 0]]


@pytest.mark.parametrize("write", FORMATS)
def test_records_that_seem_to_be_of_one_person_are_refused_unless_each_is_one(
    write: Write, arrays: Arrays, tmp_path: Path
) -> None:
    source = write(tmp_path, arrays)
    with pytest.raises(PersonsNoticedError) as refused:
        made(source, tmp_path / "set")
    assert (refused.value.code, refused.value.fields["parameter"]) == ("conflict", "each_record_is_a_person")
    assert GUARDED in refused.value.what
    assert not (tmp_path / "set").exists()
    assert not (tmp_path / "set.partial").exists()
    assert not made(source, tmp_path / "set", each_record_is_a_person=True).manifest.grouped
    # What the message says to do protects persons.
    name = str(refused.value.fields["found"])
    assert f"group_column {shlex.quote(name)}" in str(refused.value)
    grouped = made(source, tmp_path / "grouped", group_column=name)
    assert grouped.split("train").groups == PERSONS


@pytest.mark.parametrize("write", [npz, hdf5, parquet(), npy])
def test_an_array_that_tells_all_records_apart_raises_no_alarm(write: Write, arrays: Arrays, tmp_path: Path) -> None:
    assert made(write(tmp_path, arrays | {"train_patient": np.arange(N)}), tmp_path / "set").split("train").n == N


def test_persons_whose_names_are_never_read_are_noticed(arrays: Arrays, tmp_path: Path) -> None:
    """Texts without a fixed length lie in a heap in HDF5, and are objects in NumPy."""
    texts = np.array([f"p{i}" for i in range(N)], object)
    with pytest.raises(PersonsNoticedError):
        made(npy(tmp_path, arrays | {"train_patient": texts}), tmp_path / "set")
    with pytest.raises(PersonsNoticedError):
        made(hdf5(tmp_path, arrays | {"train_patient": texts}), tmp_path / "set")


def test_persons_are_known_or_each_record_is_one_and_not_both(arrays: Arrays, tmp_path: Path) -> None:
    groups = {name.replace("patient", "groups"): array for name, array in arrays.items()}
    for source, options in ((npz(tmp_path, groups), {}), (parquet()(tmp_path, arrays), {"group_column": "patient"})):
        with pytest.raises(UserError) as refused:
            made(source, tmp_path / "set", each_record_is_a_person=True, **options)
        assert (refused.value.code, refused.value.fields["parameter"]) == ("conflict", "each_record_is_a_person")
        assert made(source, tmp_path / f"set of {source.name}", **options).manifest.grouped


@pytest.mark.parametrize("write", FORMATS)
def test_a_part_of_an_import_is_held_out_and_is_the_same_in_every_format(
    write: Write, arrays: Arrays, tmp_path: Path
) -> None:
    source = write(tmp_path, arrays)
    found = made(source, tmp_path / "set", hold_out=0.3, each_record_is_a_person=True)
    train, test = (numbers(found, split) for split in ("train", "test"))
    assert sorted(train + test) == list(range(N))
    assert 6 <= len(test) <= 30
    (tmp_path / "other").mkdir()
    again = made(npz(tmp_path / "other", arrays), tmp_path / "again", hold_out=0.3, each_record_is_a_person=True)
    assert (numbers(again, "train"), numbers(again, "test")) == (train, test)
    for split, own in (("train", train), ("test", test)):
        assert found.arrays(split)[1].ravel().tolist() == [i % 3 for i in own]
    # A smaller fraction holds out some of the same records, and all of it is spent on the same records.
    fewer = made(source, tmp_path / "fewer", hold_out=0.1, each_record_is_a_person=True)
    assert set(numbers(fewer, "test")) < set(test)
    whole = made(source, tmp_path / "whole", each_record_is_a_person=True)
    assert (
        found.manifest.source["identity"]["listing"]["train"] == whole.manifest.source["identity"]["listing"]["train"]
    )
    with pytest.raises(UserError, match="other settings"):
        made(source, tmp_path / "set", hold_out=0.2, each_record_is_a_person=True)


@pytest.mark.parametrize("write", [npz, hdf5, parquet()])
def test_a_person_of_an_import_is_held_out_as_a_whole(write: Write, arrays: Arrays, tmp_path: Path) -> None:
    found = made(write(tmp_path, arrays), tmp_path / "set", hold_out=0.3, group_column="patient")
    who = {split: {i * 7 % PERSONS for i in numbers(found, split)} for split in ("train", "test")}
    assert not who["train"] & who["test"]
    assert {split: found.split(split).groups for split in who} == {split: len(own) for split, own in who.items()}
    assert len(who["train"]) + len(who["test"]) == PERSONS
    assert sum(found.split(split).n for split in who) == N
    # The records of a person follow one another.
    for split, own in who.items():
        persons = [i * 7 % PERSONS for i in numbers(found, split)]
        assert 1 + sum(a != b for a, b in pairwise(persons)) == len(own)


def test_what_cannot_be_held_out_is_refused(arrays: Arrays, tmp_path: Path) -> None:
    del arrays["train_patient"]
    both = arrays | {"test_x": arrays["train_x"], "test_y": arrays["train_y"]}
    for given, hold_out in ((both, 0.5), (arrays, 1.5), (arrays, 0.0), (arrays, 1e-9)):
        with pytest.raises(UserError) as refused:
            made(npz(tmp_path, given), tmp_path / "set", hold_out=hold_out)
        assert refused.value.fields["parameter"] == "hold_out"
        assert not (tmp_path / "set").exists()


def test_a_held_out_set_is_called_after_the_fraction(
    arrays: Arrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    del arrays["train_patient"]
    assert import_features(npz(tmp_path, arrays), classes=3, hold_out=0.25).features.name == "a-holdout0.25"
