"""Heads as public starts: whose weights are taken, which are refused, and what a continued training claims."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.privacy import chain as chains
from dpfc_cli.training import start
from dpfc_cli.training.account import account_of
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.trust.card import check
from dpfc_cli.trust.claims import epsilon_of
from dpfc_cli.trust.statement import SAMPLED
from tests.support import blobs
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
    ledger_path(private.folder).unlink()
    with pytest.raises(UserError, match="without privacy"):
        read(private, trained.path)
    seeded = head_of(private, epsilon=1.0, seed=1)
    with pytest.raises(UserError, match="without privacy"):
        read(private, seeded.path)
    # The ledger knows it where the set has another name.
    again = FeatureSet(shutil.copytree(private.folder, private.folder.with_name("again")))
    with pytest.raises(UserError, match="without privacy"):
        read(again, seeded.path)


def test_a_private_head_that_the_ledger_was_not_charged_for_is_refused(tmp_path: Path, private: FeatureSet) -> None:
    """The new head would depend on it, so its cost would be missing in the new claim."""
    other, mine = head_of(made(tmp_path, "other", 3), epsilon=1.0), head_of(private, epsilon=1.0)
    read(private, mine.path)
    ledger_path(private.folder).unlink()
    for trained in (other, mine):
        with pytest.raises(UserError, match="not be in the claim of the new one") as refused:
            read(private, trained.path)
        assert refused.value.code == "private-records"
    # A row of another training.
    head_of(private, epsilon=1.0)
    with pytest.raises(UserError, match="not be in the claim of the new one"):
        read(private, mine.path)


def test_a_head_that_continues_a_private_one_claims_what_both_cost(private: FeatureSet) -> None:
    paths = [head_of(private, epsilon=1.0).path]
    for epsilon in (2.0, 1.0):
        paths.append(head_of(private, epsilon=epsilon, public_head=paths[-1]).path)
    rows = account_of(ledger_path(private.folder)).own
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
    cards = [(path, head.card) for path, head in zip(paths, trained, strict=True)]
    assert not account_of(ledger_path(private.folder), cards=cards).lost


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
    made = [release for row in trained.spent.own[2:] for release in row.plan]
    assert epsilon_of(made, card["delta"], card["eta"]) == pytest.approx(card["epsilon"], rel=1e-9)
    assert card["epsilon"] > 2.0
    assert card["accounting"] == SAMPLED


def test_a_private_head_is_not_continued_on_other_records(tmp_path: Path, private: FeatureSet) -> None:
    """A ledger outlives its set. So it may have rows of records that were in the same folder before."""
    first = head_of(private, epsilon=1.0)
    shutil.rmtree(private.folder)
    with pytest.raises(UserError, match="no row of its training on these records"):
        read(made(tmp_path, "private", 5), first.path)


@pytest.mark.parametrize("other", [{"sha256": "0" * 64}, {"records": "others"}, {"n": 119}], ids=str)
def test_the_row_of_a_continued_head_is_of_its_file_of_the_records_and_of_their_number(
    private: FeatureSet, other: dict[str, Any]
) -> None:
    first = head_of(private, epsilon=1.0)
    account = account_of(ledger_path(private.folder))
    start.vectors_of(private, first.path, account)
    with pytest.raises(UserError, match="no row of its training on these records"):
        start.vectors_of(private, first.path, replace(account, own=(replace(account.own[0], **other),)))


def test_the_row_of_a_continued_head_of_persons_is_of_these_persons_and_of_their_number(tmp_path: Path) -> None:
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = import_features(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES).features
    first, account = head_of(persons, epsilon=1.0), account_of(ledger_path(persons.folder))
    assert start.vectors_of(persons, first.path, account)[1] == Head.load(first.path).card
    assert account.own[0].n == 60
    for other in ({"n": 120}, {"persons": "0" * 64}):
        with pytest.raises(UserError, match="no row of its training on these records"):
            start.vectors_of(persons, first.path, replace(account, own=(replace(account.own[0], **other),)))


def test_stated_classes_do_not_cover_a_head_whose_classes_were_inferred(tmp_path: Path, private: FeatureSet) -> None:
    """The classes of the first head would be seen in the card of the new one, and no guarantee would cover them."""
    shutil.rmtree(private.folder)
    inferred = import_features(tmp_path / "private.npz", private.folder).features
    first = head_of(inferred, epsilon=1.0, infer_classes=True)
    read(inferred, first.path)
    shutil.rmtree(private.folder)
    stated = import_features(tmp_path / "private.npz", private.folder, classes=("0", "1", "2")).features
    with pytest.raises(UserError, match="inferred from the private records") as refused:
        read(stated, first.path)
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
    assert len(account_of(ledger_path(private.folder)).own) == 1


def test_a_head_that_protects_records_is_not_continued_by_a_training_that_protects_persons(private: FeatureSet) -> None:
    begun = start.begin(
        calibrated(private, epsilon=1.0),
        private,
        head_of(private, epsilon=1.0).path,
        account_of(ledger_path(private.folder)),
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
