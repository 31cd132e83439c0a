"""Heads as public starts: whose weights are taken, which are refused, and what a continued training claims."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.evaluation.evaluate import evaluate
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.populations import set_population
from dpfc_cli.privacy import chain as chains
from dpfc_cli.training import public_start as start
from dpfc_cli.trust.card import check
from dpfc_cli.trust.claims import epsilon_of
from dpfc_cli.trust.statement import SAMPLED
from tests.support import blobs
from tests.training.requests import charges, ledger
from tests.training.starts import CLASSES, calibrated, head_of, made, npz, read

pytestmark = pytest.mark.usefixtures("heads")


def test_the_weights_of_a_public_head_are_its_vectors(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(made(tmp_path, "public", 1, ("otter", "red fox", "badger")), non_private=True)
    found = read(private, trained.path)
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    head = trained.head
    # Up to their length, and to what centring adds to all records alike, the scores are those of the head.
    scores = np.diff(x @ found.vectors[:, [2, 0]] * np.abs(head_vectors(head)[:, :2]).max(axis=0), axis=0)
    before = tuple(step for step in head.chain if isinstance(step, chains.Linear))
    expected = np.diff(chains.run(before, x, np) @ head.weight[:, :2], axis=0)
    assert np.allclose(scores, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert found.origin["without"] == ["Wolf"]
    # A head of another program may change the space of the records before.
    a, b = (np.random.default_rng(seed).normal(size=(6, 6)) for seed in (1, 2))
    linear = replace(head, chain=(chains.Linear(a), chains.Linear(b)))
    fetched = tmp_path / f"models--us--heads/snapshots/{'ab' * 20}/h.safetensors"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(encoded(linear))
    found = read(private, fetched)
    expected = (a @ b @ head.weight)[:, [1, 0]]
    assert np.allclose(found.vectors[:, [0, 2]], expected / np.abs(expected).max(axis=0), rtol=1e-4)
    assert found.origin["name"] == f"hf:us/heads/h.safetensors@{'ab' * 20}"


def head_vectors(head: Any) -> np.ndarray:
    weight: np.ndarray = head.weight
    for step in reversed(head.chain):
        if isinstance(step, chains.Linear):
            weight = step.matrix @ weight
    return weight


def test_a_head_that_saw_the_private_records_without_privacy_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(private, non_private=True)
    with pytest.raises(UserError, match="without privacy") as refused:
        read(private, trained.path)
    assert refused.value.code == "private-records"
    seeded = head_of(private, epsilon=1.0, seed=1)
    with pytest.raises(UserError, match="without privacy"):
        read(private, seeded.path)
    # The ledger knows it where the set has another name, and where it was made of the same records anew.
    again = FeatureSet(shutil.copytree(private.folder, private.folder.with_name("again")))
    anew = import_features(tmp_path / "private.npz", tmp_path / "features" / "anew", classes=CLASSES).features
    for each in (again, anew):
        with pytest.raises(UserError, match="without privacy"):
            read(each, seeded.path)
    # The card says it where the ledger is gone.
    ledger_path(private.folder).unlink()
    with pytest.raises(UserError, match="without privacy"):
        read(private, trained.path)


def test_a_private_head_is_continued_on_the_very_set_that_it_was_charged_to(
    tmp_path: Path, private: FeatureSet
) -> None:
    """The new head would depend on other records, or on a head that nobody paid for. Its claim would not say so."""
    first = head_of(private, epsilon=1.0).path
    read(private, first)
    x, y = blobs(120, 6, 3, seed=0)
    np.savez(tmp_path / "both.npz", train_x=x, train_y=y, test_x=x + 1, test_y=y)
    both = import_features(tmp_path / "both.npz", tmp_path / "features" / "both", classes=CLASSES).features
    anew = import_features(tmp_path / "private.npz", tmp_path / "features" / "anew", classes=CLASSES).features
    cases = {
        "of other records": (private, head_of(made(tmp_path, "other", 3), epsilon=1.0).path),
        "of the same records in a set that was made anew": (anew, first),
        "another file": (private, changed(first)),
        "evaluated on it": (both, first),
    }
    evaluate(Head.load(first), both, epsilon=1.0)
    for name, (features, path) in cases.items():
        with pytest.raises(UserError, match="not be in the claim of the new one") as refused:
            read(features, path)
        assert refused.value.code == "private-records", name
    before = ledger_path(private.folder).read_bytes()
    later = head_of(private, epsilon=2.0).path
    ledger_path(private.folder).write_bytes(before)
    with pytest.raises(UserError, match="not be in the claim of the new one"):
        read(private, later)


def changed(path: Path) -> Path:
    """A head with one bit of its bias changed."""
    head = Head.load(path)
    found = path.with_name("changed.safetensors")
    found.write_bytes(encoded(replace(head, bias=np.nextafter(head.bias, np.inf))))
    return found


def test_a_head_that_continues_a_private_one_claims_what_both_cost(private: FeatureSet) -> None:
    paths = [head_of(private, epsilon=1.0).path]
    for epsilon in (2.0, 1.0):
        paths.append(head_of(private, epsilon=epsilon, public_head=paths[-1]).path)
    rows = charges(private)
    assert [row.epsilon for row in rows] == [1.0, 2.0, 1.0]
    trained = [Head.load(path) for path in paths]
    for count, head in enumerate(trained, start=1):
        card = head.card
        assert card["mu"] == pytest.approx(math.hypot(*(row.mu or 0.0 for row in rows[:count])))
        # η is near 1e-70: no absolute tolerance.
        assert card["eta"] == pytest.approx(sum(row.eta or 0.0 for row in rows[:count]), rel=1e-9, abs=0)
        assert card["epsilon"] == pytest.approx(card["ledger"]["epsilon"], rel=1e-6)
        assert sum(release["times"] for release in card["plan"]) == 4 * count
    assert trained[2].card["epsilon"] > 2.4
    assert "the guarantee and the releases are those of both trainings" in trained[2].statement()["started from"]


def test_a_continued_head_says_on_which_condition_its_claim_holds(private: FeatureSet) -> None:
    """Noise that is chosen by looking at an answer is not covered by composition. A cap is, for full passes."""
    first = head_of(private, epsilon=1.0)
    exact = head_of(private, epsilon=1.0, public_head=first.path).head.statement()["started from"]
    assert "holds if the noise of this training was fixed before that head was looked at" in exact
    assert "or if both stay below a cap that was fixed before" in exact
    sampled = head_of(private, method="dp-sgd", sampling_rate=0.5, noise_multiplier=4.0)
    trained = head_of(private, epsilon=2.0, public_head=sampled.path)
    said = trained.head.statement()["started from"]
    assert "fixed before that head was looked at" in said
    assert "cap" not in said
    card = trained.head.card
    made = [release for row in trained.spent.charges[2:] for release in row.releases]
    assert epsilon_of(made, card["delta"], card["eta"]) == pytest.approx(card["epsilon"], rel=1e-9)
    assert card["epsilon"] > 2.0
    assert card["accounting"] == SAMPLED


def test_stated_classes_do_not_cover_a_head_whose_classes_were_inferred(tmp_path: Path, private: FeatureSet) -> None:
    """The classes of the first head would be seen in the card of the new one, and no guarantee would cover them."""
    inferred = import_features(tmp_path / "private.npz", tmp_path / "features" / "inferred").features
    first = head_of(inferred, epsilon=1.0, infer_classes=True)
    read(inferred, first.path)
    inferred.manifest = replace(inferred.manifest, origin="asserted")
    with pytest.raises(UserError, match="inferred from the private records") as refused:
        read(inferred, first.path)
    assert refused.value.code == "private-records"


def test_what_earlier_heads_took_for_public_is_named_by_later_ones(tmp_path: Path, private: FeatureSet) -> None:
    path = head_of(
        private, epsilon=1.0, public_head=npz(tmp_path / "v.npz"), public_features=made(tmp_path, "b", 1)
    ).path
    for _ in range(2):
        trained = head_of(private, epsilon=1.0, public_head=path)
        said = trained.head.statement()["started from"]
        assert "with b, v.npz, which the operator asserts to be public" in said
        path = trained.path


def test_a_card_of_a_continued_head_must_have_releases_of_its_own_and_a_claim(private: FeatureSet) -> None:
    first = head_of(private, epsilon=1.0)
    card = dict(Head.load(head_of(private, epsilon=2.0, public_head=first.path).path).card)
    check(card)
    start = card["public_head"]
    research = {"claim": "research", **dict.fromkeys(("epsilon", "delta", "mu", "eta"))}
    for changed in ({"public_head": {**start, "releases": len(card["plan"])}}, research):
        with pytest.raises(ValueError, match="contradict"):
            check({**card, **changed})
    check({**card, **research, "public_head": {k: v for k, v in start.items() if k != "releases"}})


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"epsilon": 1.0}, {"epsilon": 1.0, "seed": 3}, "this training has no guarantee"),
        ({"epsilon": 1.0}, {"epsilon": 1.0, "adjacency": "replace-one"}, "with zero-out adjacency"),
        ({"epsilon": 70.0}, {"epsilon": 90.0}, "together spend epsilon = 1"),
    ],
)
def test_a_private_head_is_not_continued_where_nothing_could_be_claimed(
    private: FeatureSet, first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    begun = head_of(private, **first)
    with pytest.raises(UserError, match=why) as refused:
        head_of(private, **second, public_head=begun.path)
    assert refused.value.code == "private-records"
    assert len(charges(private)) == 1


def test_a_head_that_protects_records_is_not_continued_by_a_training_that_protects_persons(private: FeatureSet) -> None:
    begun = start.begin(
        calibrated(private, epsilon=1.0),
        private,
        head_of(private, epsilon=1.0).path,
        ledger(private),
    )
    start._check_together(begun)
    with pytest.raises(UserError, match="protects one record, and this training one person"):
        start._check_together(replace(begun, facts=replace(begun.facts, unit="person", rows=200)))


def test_a_head_of_another_backbone_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    trained = head_of(made(tmp_path, "public", 1), non_private=True)
    private.manifest = replace(private.manifest, backbone={"name": "vit", "sha256": "ab"})
    with pytest.raises(UserError, match=r"another backbone \(they differ in name, sha256\)"):
        read(private, trained.path)
    private.manifest = replace(private.manifest, backbone={"name": "imported"}, dim=7)
    with pytest.raises(UserError, match=r"another backbone \(they differ in dimensions\)"):
        read(private, trained.path)


def test_a_head_without_privacy_of_the_same_people_is_no_start(tmp_path: Path, private: FeatureSet) -> None:
    other = made(tmp_path, "other", 3)
    trained = head_of(other, non_private=True)
    read(private, trained.path)
    # Now somebody says that both sets are of one population.
    for features in (private, other):
        set_population(features, "ward7")
    with pytest.raises(UserError, match=r"private records") as refused:
        read(private, trained.path)
    assert refused.value.code == "private-records"
