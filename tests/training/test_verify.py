"""What `verify` says of a head and its set, and what it leaves unproved."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.ledger import ledger_path, read
from model_signing import verifying

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.training import verify as checks
from dpfc_cli.training.verify import verify
from dpfc_cli.trust.verify import BELONGS, CHARGED, NOISE, OWNER, SIGNER, TEXT
from tests.signing import key_pair, sign
from tests.support import blobs
from tests.training.handed import Card, Made, handed_over
from tests.training.starts import CLASSES, head_of


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return handed_over(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(autouse=True)
def here(shelf: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(shelf.folder / "features"))


def test_every_head_agrees_with_its_set_and_its_ledger(shelf: Made) -> None:
    what = ["feature set", "ledger", "SHA-256", "other trainings in the ledger"]
    for number, path in enumerate(shelf.heads, start=1):
        found = verify(path)
        assert {each.result for each in found.findings} == {"ok"}, found.findings
        assert set(what) <= {each.what for each in found.findings}
        assert found.unproved == (NOISE, OWNER, SIGNER)
        assert (found.ledger, found.sha256) == (ledger_path(shelf.features.folder), shelf.rows[number - 1].sha256)


# What cannot be proved


def test_what_no_ledger_shows_is_named_as_unproved(shelf: Made, tmp_path: Path) -> None:
    other = Path(shutil.copy(ledger_path(shelf.features.folder), tmp_path))
    head, card = Head.load(shelf.heads[0]), shelf.card()
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(encoded(replace(head, bias=head.bias + 1)))
    assert verify(changed, ledger=other).unproved == (NOISE, BELONGS, TEXT, OWNER, SIGNER)
    # A head of an earlier version names no row. The rows of a ledger of others do not make it a charged one.
    del card["ledger"]
    changed.write_bytes(encoded(replace(head, card=card)))
    found = verify(changed, ledger=other)
    assert found.contradictions == []
    assert found.unproved == (NOISE, BELONGS, TEXT, CHARGED, SIGNER)
    # And a row of another training is not its charge.
    card["ledger"] = {**shelf.card()["ledger"], "training": 2, "trainings": 2, "private": 2}
    changed.write_bytes(encoded(replace(head, card=card)))
    assert CHARGED in verify(changed, ledger=other).unproved


def test_a_set_without_a_ledger_beside_it_leaves_the_charge_unknown(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever receives a head may have made the same features of public pictures."""
    shutil.copytree(shelf.features.folder, tmp_path / "features" / "set")
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    found = verify(shelf.heads[0])
    results = {each.what: each.result for each in found.findings}
    assert (results["feature set"], results["ledger"], found.ledger) == ("ok", "unknown", None)
    assert found.unproved == (NOISE, BELONGS, TEXT, CHARGED, SIGNER)
    with pytest.raises(UserError, match="There is no ledger"):
        verify(shelf.heads[0], ledger=ledger_path(tmp_path / "features" / "set"))
    with pytest.raises(UserError, match=r"There is no ledger '.*features' \(it is a folder\)"):
        verify(shelf.heads[0], ledger=tmp_path / "features")
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    results = {each.what: each.result for each in verify(shelf.heads[0]).findings}
    assert (results["feature set"], results["ledger"]) == ("unknown", "unknown")


# The set


FACTS = [
    *(("facts", name) for name in ("n", "m", "k", "d", "origin")),
    *(("features", name) for name in ("split", "backbone", "hold_out")),
]


@pytest.mark.parametrize(("part", "name"), FACTS, ids=lambda value: str(value))
def test_each_fact_of_the_card_is_that_of_the_set(shelf: Made, part: str, name: str) -> None:
    card = shelf.card()
    card[part][name] = {"of": "another"}
    features, found = checks._set_at_hand(card)
    assert features is not None
    assert (found.result, found.why) == (
        "contradicts", f"the set 'set' has the card's fingerprint and other values: {name}",
    )  # fmt: skip


@pytest.mark.parametrize("changed", [{"unit": "person"}, {"classes": [*CLASSES[1:], CLASSES[0]]}], ids=str)
def test_unit_and_order_of_the_classes_are_those_of_the_set(shelf: Made, changed: Card) -> None:
    found = checks._set_at_hand(shelf.card() | changed)[1]
    assert (found.result, *changed) == ("contradicts", found.why.rpartition(" ")[2])


def test_a_fact_is_read_where_a_card_states_it_and_nowhere_else(shelf: Made) -> None:
    """A true value under another key of the card does not stand for a false one."""
    card = shelf.card()
    card["facts"] |= {"n": 6_000, "backbone": card["features"]["backbone"], "hold_out": 0.0}
    card["features"] |= {"n": 120, "unit": "record", "backbone": {"name": "other"}, "hold_out": 0.5}
    card["unit"] = "person"
    found = checks._set_at_hand(card)[1]
    assert found.why.endswith("other values: n, unit, backbone, hold_out")


def test_what_cards_of_earlier_versions_lack_contradicts_nothing(shelf: Made) -> None:
    card = shelf.card()
    for part, name in (("facts", "d"), ("features", "backbone"), ("features", "hold_out")):
        del card[part][name]
    assert checks._set_at_hand(card)[1].result == "ok"


def test_a_set_that_is_not_that_of_the_head_says_nothing(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(card: Card) -> str:
        features, found = checks._set_at_hand(card)
        assert (features, found.result) == (None, "unknown")
        return found.why

    card = shelf.card()
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    assert unknown(card) == "no set of the name 'set' is at hand"
    copy = Path(shutil.copytree(shelf.features.folder, tmp_path / "set"))
    other = card | {"features": card["features"] | {"fingerprint": "another"}}
    assert unknown(other) == "the set 'set' here has another fingerprint: it is not the set of this head"
    # One that has a test split alone, and one that is damaged.
    manifest = json.loads((copy / "manifest.json").read_text())
    splits, known = manifest["splits"], manifest["source"]["identity"]
    splits["test"], known["listing"]["test"] = splits.pop("train"), known["listing"].pop("train")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert "has no split 'train'" in unknown(card)
    (copy / "manifest.json").write_text("{")
    assert "manifest.json" in unknown(card)


# Persons


def test_a_head_of_persons_agrees_with_its_set_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = import_features(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES).features
    path = head_of(persons, epsilon=1.0).path
    assert {each.result for each in verify(path).findings} == {"ok"}
    card: Card = json.loads(json.dumps(Head.load(path).card))
    row = replace(read(ledger_path(persons.folder))[0], persons="0" * 64)
    assert checks._differ(card, row, persons) == ["persons"]
    # The row of a training without noise has none.
    assert checks._differ(card, replace(row, persons=None), persons) == []
    card["facts"]["records"] = 121
    assert checks._set_at_hand(card)[1].why.endswith("other values: records")
    # Without noise each record stands for itself.
    del card["facts"]["records"]
    card |= {"claim": "non-private", "unit": "record", "facts": card["facts"] | {"n": 120}}
    assert checks._set_at_hand(card)[1].result == "ok"


# The signature


def test_a_signature_is_told_of_where_nobody_checks_it(shelf: Made, tmp_path: Path) -> None:
    head = Path(shutil.copy(shelf.heads[0], tmp_path))
    assert "signature" not in {each.what for each in verify(head).findings}
    sign(head, key_pair(tmp_path, "own")[0])
    found = verify(head)
    assert {each.what: each.result for each in found.findings}["signature"] == "unknown"
    assert (found.signature, SIGNER in found.unproved) == (None, True)


def test_a_signature_that_was_asked_for_is_checked_before_the_head_is_read(shelf: Made, tmp_path: Path) -> None:
    private, public = key_pair(tmp_path, "own")
    head = Path(shutil.copy(shelf.heads[0], tmp_path))
    made = sign(head, private)
    found = verify(head, public_key=public)
    assert found.signature is not None
    assert found.signature.path == made
    assert (found.findings[0].what, found.findings[0].result) == ("signature", "ok")
    assert found.unproved == (NOISE, OWNER)
    head.write_bytes(b"no head")
    with pytest.raises(UserError) as refused:
        verify(head, public_key=public)
    assert (refused.value.code, refused.value.fields["path"]) == ("damaged", str(made))
    head.unlink()
    with pytest.raises(UserError) as refused:
        verify(head, public_key=public)
    assert (refused.value.code, refused.value.fields["path"]) == ("missing", str(head))


def test_what_was_checked_is_what_is_read(shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = key_pair(tmp_path, "own")
    head = Path(shutil.copy(shelf.heads[0], tmp_path))
    sign(head, private)
    real = verifying.Config.verify

    def slow(*given: Any) -> None:
        real(*given)
        # Somebody replaces the head after it was checked.
        shutil.copy(shelf.heads[1], head)

    monkeypatch.setattr(verifying.Config, "verify", slow)
    assert verify(head, public_key=public).sha256 == shelf.rows[0].sha256
