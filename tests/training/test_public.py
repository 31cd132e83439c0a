"""What may be used beside private records, because nobody needs to protect it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.populations import set_population
from dpfc_cli.ledger.public import check_public, facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.training import public
from dpfc_cli.training.calibrate import calibrate
from tests.support import blobs, feature_set, refuses, replace, trained
from tests.training.requests import ready
from tests.training.stopped import killed


def made(folder: Path, name: str, x: np.ndarray, y: np.ndarray) -> FeatureSet:
    np.savez(folder / f"{name}.npz", train_x=x, train_y=y)
    feature_set(folder / f"{name}.npz", folder / "features" / name, classes=("a", "b", "c"))
    return FeatureSet(folder / "features" / name)


@pytest.fixture
def private(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "private", *blobs(300, 6, 3))


@pytest.fixture
def other(tmp_path: Path) -> FeatureSet:
    return made(tmp_path, "other", *blobs(500, 6, 3, seed=1))


def test_the_private_records_are_refused_under_any_name(tmp_path: Path, private: FeatureSet) -> None:
    copy = made(tmp_path, "copy", *blobs(300, 6, 3))
    link = tmp_path / "link"
    link.symlink_to(private.folder.resolve())
    for same in (private, copy, FeatureSet(link)):
        with refuses("private-records", parameter="public_features"):
            public.check_other(private, same, "public_features")


def test_a_test_split_that_was_held_out_of_the_private_set_is_another_one(private: FeatureSet) -> None:
    """Both splits have one listing, and no record in common. No guarantee covers the test split."""

    def told(**identity: object) -> FeatureSet:
        said = json.loads((private.folder / MANIFEST).read_text())
        known = said["source"]["identity"]
        known["listing"]["test"], said["splits"]["test"] = known["listing"]["train"], said["splits"]["train"]
        known.update(identity)
        (private.folder / MANIFEST).write_text(json.dumps(said))
        return FeatureSet(private.folder)

    same, held = told(), told(hold_out=0.5)
    check_public(held, "on", split="test", private=held)
    # Of the other set another part may have been held out.
    copy = shutil.copytree(held.folder, held.folder.with_name("another"))
    (copy / MANIFEST).write_text((copy / MANIFEST).read_text().replace(held.manifest.id, "0" * 32))
    another = FeatureSet(copy)
    tested = FeatureSet(another.folder)
    identity = tested.manifest.source["identity"]
    listing = {**identity["listing"], "train": "others"}
    tested.manifest = replace(tested.manifest, source={"identity": {**identity, "listing": listing}})
    for on, split in (
        (held, "train"), (held, None), (another, "test"), (another, "train"), (same, "test"), (tested, None),
    ):  # fmt: skip
        with refuses("private-records", parameter="on") as refused:
            check_public(on, "on", split=split, private=held)
        assert refused.value.fields == {"parameter": "on", "path": str(on.folder)}
        assert ("‹split›" in refused.value.remedy) == refused.value.what.startswith("The split") == (split is not None)


def test_another_backbone_is_refused_and_the_difference_said(
    tmp_path: Path, private: FeatureSet, other: FeatureSet
) -> None:
    with refuses("conflict", parameter="model"):
        public.check_other(private, made(tmp_path, "wide", *blobs(90, 7, 3)), "public_features")
    public.check_other(private, other, "public_features")
    other.manifest = replace(other.manifest, backbone={"name": "vit", "sha256": "ab"})
    with refuses("conflict", parameter="model"):
        public.check_other(private, other, "public_features")


def test_what_only_the_operator_can_know_is_said(other: FeatureSet) -> None:
    assert [("imported" in said) for said in public.warnings_of(other)] == [True]
    other.manifest = replace(other.manifest, backbone={"name": "vit"})
    assert public.warnings_of(other) == []


def test_records_that_a_guarantee_protects_are_refused_wherever_public_ones_are_named(
    private: FeatureSet, other: FeatureSet, tmp_path: Path
) -> None:
    public.check_other(private, other, "public_features")
    method, facts = METHODS["dp-whitened"], facts_of(other)
    made = trained(other, calibrate(method, facts, {"steps": 1}, Privacy(epsilon=1.0)), tmp_path)
    with refuses("private-records", parameter="public_features"):
        public.check_other(private, other, "public_features")
    with refuses("private-records", parameter="on"):
        check_public(other, "on")
    # Without its ledger it is known by its name.
    away = FeatureSet(shutil.copytree(other.folder, tmp_path / "away" / other.name))
    check_public(away, "on")
    with refuses("private-records"):
        check_public(away, "on", card=made.head.card)


def test_people_who_are_said_to_be_protected_are_no_public_records(
    tmp_path: Path, private: FeatureSet, other: FeatureSet
) -> None:
    check_public(other, "on", private=private)
    # A copy of a set that was trained on, with no ledger beside it.
    killed(ready(private))
    shutil.copytree(private.folder, tmp_path / "away" / "copy")
    copy = FeatureSet(tmp_path / "away" / "copy")
    for each in (private, other):
        set_population(each, "ward7")
    for on in (copy, other):
        with refuses("private-records"):
            check_public(on, "on", private=private)


def test_nothing_is_said_of_private_records_in_a_public_set(tmp_path: Path, private: FeatureSet) -> None:
    """How many there are is a fact about private records."""
    said = []
    for each in mixtures(tmp_path):
        public.check_other(private, each, "public_features")
        said.append([text.replace(each.name, "") for text in public.warnings_of(each)])
    assert said[0] == said[1]


def mixtures(folder: Path) -> tuple[FeatureSet, FeatureSet]:
    """Two public sets. The second one has seven of the private records."""
    (x, y), (own, labels) = blobs(100, 6, 3, seed=2), blobs(300, 6, 3)
    mixed = np.concatenate([x[:-7], own[:7]]), np.concatenate([y[:-7], labels[:7]])
    return made(folder, "clean", x, y), made(folder, "mixed", *mixed)


def test_what_was_charged_is_private_and_so_is_the_same_source(
    tmp_path: Path, private: FeatureSet, other: FeatureSet
) -> None:
    for features in (private, other):
        killed(ready(features))
    with refuses("private-records", parameter="public_features") as refused:
        public.check_other(private, other, "public_features")
    assert "‹seed›" in refused.value.remedy
    unspent = made(tmp_path, "unspent", *blobs(90, 6, 3, seed=2))
    public.check_other(private, unspent, "public_features")
    # The same records under another name.
    copy = made(tmp_path, "copy", *blobs(500, 6, 3, seed=1))
    with refuses("private-records", parameter="public_features"):
        public.check_other(private, copy, "public_features")
