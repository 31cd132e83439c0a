"""What `verify` says of a head, of its set and of the ledger, and what it leaves unproved."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.evaluation.evaluate import evaluate_privately
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.facts import Charge, Fact, new_id
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.records.findings import BELONGS, CHARGED, NOISE, OWNER, TEXT
from dpfc_cli.verification import DIGEST, Verified, verify
from tests.hostile import with_card
from tests.ledger.facts import written
from tests.signing import key_pair, meanwhile, sign
from tests.support import blobs, feature_set, refuses, replace
from tests.training import requests
from tests.training.conftest import heads, private
from tests.training.requests import CLASSES, head_of, three

__all__ = ["heads", "private"]

Card = dict[str, Any]
OTHERS = "other trainings in the ledger"


@dataclass(frozen=True, kw_only=True)
class Made:
    """The folder, the set, its ledger, and its three private heads."""

    folder: Path
    features: FeatureSet
    book: Ledger
    heads: tuple[Path, ...]

    def card(self, number: int = 1) -> Card:
        """The card of the head of that charge, to be changed."""
        found: Card = json.loads(Head.load(self.heads[number - 1]).card.json)
        return found

    def sha256(self, number: int = 1) -> str:
        """What the ledger has as the digest of that head."""
        last = self.book.outcome(self.book.charges[number - 1].id)
        assert last is not None
        return str(last.sha256)

    def facts(self, number: int = 1, **changed: Any) -> list[Fact]:
        """What the ledger has, with other values of that charge, or of its outcome (state, sha256)."""
        of = self.book.charges[number - 1].id
        return [
            replace(fact, **{name: value for name, value in changed.items() if hasattr(fact, name)})
            if of in (fact.id, getattr(fact, "charge", None))
            else fact
            for fact in self.book.facts
        ]

    def found(self, card: Card, *facts: Fact, **arrays: Any) -> dict[str, str]:
        """The result of each check of the first head with that card. facts: of a ledger; without, it is the real one.
        arrays: other ones than the head has.
        """
        head, ledger = self.folder / "forged.safetensors", ledger_path(self.features.folder)
        head.write_bytes(with_card(replace(Head.load(self.heads[0]), **arrays), card))
        if facts:
            ledger = written(self.folder / new_id() / "ledger.sqlite", *facts).path
        return results(verify(head, ledger=ledger))


def results(found: Verified) -> dict[str, str]:
    """The result of each check, by what was checked."""
    return {each.what: each.result for each in found.findings}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("shelf")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPFC_HEADS", str(folder / "heads"))
        features = three(folder, "set", 0)
        heads = [head_of(features, epsilon=epsilon).path for epsilon in (1.0, 2.0, 0.5)]
    return Made(folder=folder, features=features, book=requests.ledger(features), heads=tuple(heads))


@pytest.fixture(autouse=True)
def here(shelf: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(shelf.folder / "features"))


def test_every_head_agrees_with_its_set_and_its_ledger(shelf: Made) -> None:
    what = ["feature set", "ledger", DIGEST, OTHERS]
    for number, path in enumerate(shelf.heads, start=1):
        found = verify(path)
        assert [each.what for each in found.findings if each.result != "ok"] == ["signature"], found.findings
        assert set(what) <= {each.what for each in found.findings}
        assert found.unproved == (NOISE, OWNER)
        assert (found.ledger, found.sha256) == (ledger_path(shelf.features.folder), shelf.sha256(number))
        (others,) = (each.why for each in found.findings if each.what == OTHERS)
        assert re.findall(r"\d+", others) == [str(3 - number)] * (number < 3), "so many came later"


def test_a_ledger_with_a_row_of_the_future_contradicts(shelf: Made) -> None:
    """It would pass every `not_before`."""
    facts = shelf.facts(3, at="2999-01-01T00:00:00+00:00")
    assert "contradicts" in shelf.found(shelf.card(), *facts).values()


# What cannot be proved


def test_what_no_ledger_shows_is_named_as_unproved(shelf: Made, tmp_path: Path) -> None:
    other = Path(shutil.copy(ledger_path(shelf.features.folder), tmp_path))
    head, card = Head.load(shelf.heads[0]), shelf.card()
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(encoded(replace(head, bias=head.bias + 1)))
    assert verify(changed, ledger=other).unproved == (NOISE, BELONGS, TEXT, OWNER)
    # A charge of another training is not its own.
    card["ledger"]["charge"] = shelf.book.charges[1].id
    changed.write_bytes(with_card(head, card))
    assert CHARGED in verify(changed, ledger=other).unproved


def test_each_value_of_a_card_is_checked_or_among_what_cannot_be_proved(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever forges a value that no check computes again, finds its name among those that nobody can prove."""
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    forged, head = tmp_path / "forged.safetensors", Head.load(shelf.heads[0])

    def places(value: Any, *keys: Any) -> Iterator[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        yield from [each for key, one in inner for each in places(one, *keys, key)] if inner else [keys]

    named = {"zero-out": "replace-one", "record": "person", "private": "research", "asserted": "path"}

    def others(value: Any) -> list[Any]:
        if isinstance(value, str):
            return [named.get(value, f"{value}x")]
        return [not value] if type(value) is bool else [value + 1, value / 2, value // 2] if value is not None else []

    passed, card = set(), shelf.card()
    for place in places(card):
        for other in others(reduce(getitem, place, card)):
            changed = shelf.card()
            reduce(getitem, place[:-1], changed)[place[-1]] = other
            changed["facts"] |= {"records": 200} if other == "person" else {}
            forged.write_bytes(with_card(head, changed))
            with suppress(UserError):
                passed |= {place[0]} - ({place[0]} if verify(forged).contradictions else set())
    assert {"adjacency", "unit", "options", "facts"} <= passed
    said = " ".join(verify(shelf.heads[0]).unproved)
    assert [name for name in passed if name not in said] == []


def test_a_set_without_a_ledger_beside_it_leaves_the_charge_unknown(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An imported set may be of any backbone, so without the charge it says nothing of the head."""
    shutil.copytree(shelf.features.folder, tmp_path / "features" / "set")
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    found, unknown = verify(shelf.heads[0]), {"feature set": "unknown", "ledger": "unknown"}.items()
    assert (results(found).items() >= unknown, found.ledger) == (True, None)
    assert found.unproved == (NOISE, BELONGS, TEXT, CHARGED)
    for place in (ledger_path(tmp_path / "features" / "set"), tmp_path / "features"):
        with refuses("missing"):
            verify(shelf.heads[0], ledger=place)
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    assert results(verify(shelf.heads[0])).items() >= unknown
    # The set beside a ledger that is named is looked at, too.
    found = verify(shelf.heads[0], ledger=ledger_path(shelf.features.folder))
    assert {each.result for each in found.findings[1:]} == {"ok"}


def test_an_honest_head_of_a_neighbour_does_not_contradict_where_a_set_has_the_same_name(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a ledger that somebody names must have its charge."""
    x, y = blobs(90, 6, 3, seed=1)
    np.savez(tmp_path / "set.npz", train_x=x, train_y=y)
    own = feature_set(tmp_path / "set.npz", tmp_path / "features" / "set", classes=CLASSES)
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    found = verify(shelf.heads[0])
    said = results(found)
    assert (found.contradictions, said["feature set"], said["ledger"]) == ([], "unknown", "unknown")
    assert (found.ledger, found.unproved) == (None, (NOISE, BELONGS, TEXT, CHARGED))
    named = verify(shelf.heads[0], ledger=ledger_path(own.folder))
    assert {each.what for each in named.findings if each.result == "contradicts"} == {"ledger"}


def test_a_card_has_a_date_and_no_later_one_than_today(shelf: Made, tmp_path: Path) -> None:
    head, changed = Head.load(shelf.heads[0]), tmp_path / "changed.safetensors"
    for date in ("", "yesterday", "2026-02-30T00:00:00+00:00", "2026-01-02T03:04:05+02:00"):
        changed.write_bytes(with_card(head, shelf.card() | {"date": date}))
        with refuses("damaged"):
            verify(changed)
    changed.write_bytes(with_card(head, shelf.card() | {"date": "2999-01-02T03:04:05+00:00"}))
    assert results(verify(changed))["date"] == "contradicts"


# The set


def test_each_fact_of_the_card_is_that_of_the_set(shelf: Made) -> None:
    assert shelf.found(shelf.card())["feature set"] == "ok"
    others: dict[str, dict[str, Any]] = {
        "facts": {"n": 121, "m": 4, "k": 2, "origin": "data set"},
        "features": {"split": "test", "backbone": {"name": "other"}, "hold_out": 0.5, "fingerprint": "0" * 64},
    }
    forged = [
        {part: shelf.card()[part] | {name: other}}
        for part, changed in others.items()
        for name, other in changed.items()
    ]
    for changed in (*forged, {"unit": "person"}, {"classes": [*CLASSES[1:], CLASSES[0]]}):
        assert shelf.found(shelf.card() | changed)["feature set"] == "contradicts", changed
    wider = shelf.card()
    wider["facts"]["d"] = 7
    arrays = {"weight": np.ones((7, 3), np.float32), "chain": (), "evidence": None}
    assert shelf.found(wider, **arrays)["feature set"] == "contradicts"


def test_a_set_that_cannot_be_read_or_is_not_that_of_the_charge_says_nothing(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, facts = shelf.card(), shelf.facts()
    assert shelf.found(card, *facts)["feature set"] == "ok"
    assert shelf.found(card, *shelf.facts(set="0" * 32))["feature set"] == "unknown"
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    assert shelf.found(card, *facts)["feature set"] == "unknown", "there is none"
    copy = Path(shutil.copytree(shelf.features.folder, tmp_path / "set"))
    assert shelf.found(card, *facts)["feature set"] == "ok"
    # One that has a test split alone, and one that is damaged.
    manifest = json.loads((copy / "manifest.json").read_text())
    splits, known = manifest["splits"], manifest["source"]["identity"]
    splits["test"], known["listing"]["test"] = splits.pop("train"), known["listing"].pop("train")
    for text in (json.dumps(manifest), "{"):
        (copy / "manifest.json").write_text(text)
        assert shelf.found(card, *facts)["feature set"] == "unknown"


# Persons


def test_a_head_of_persons_agrees_with_its_set_and_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = feature_set(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES)
    path = head_of(persons, epsilon=1.0).path
    assert {each.result for each in verify(path).findings[1:]} == {"ok"}
    head, forged = Head.load(path), tmp_path / "forged.safetensors"
    card: Card = json.loads(head.card.json)
    more, plan = {**card["facts"], "records": 121}, [{**each, "sigma": 0.0} for each in card["plan"]]
    # Without noise each record stands for itself.
    bare = {"claim": "non-private", **dict.fromkeys(("epsilon", "delta", "mu", "eta")), "plan": plan, "unit": "record"}
    alone = {name: value for name, value in {**more, "n": 120}.items() if name != "records"}
    for changed, what, result in (
        ({"unit": "record"}, "ledger", "contradicts"),
        ({"facts": more}, "feature set", "contradicts"),
        (
            {"features": {**card["features"], "grouped_by": {"by": "folder", "level": 1}}},
            "feature set",
            "contradicts",
        ),
        (bare | {"facts": alone}, "feature set", "ok"),
    ):
        forged.write_bytes(with_card(head, {**card, **changed}))
        assert results(verify(forged))[what] == result


# The signature


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
    with refuses("damaged", path=str(made)):
        verify(head, public_key=public)
    head.unlink()
    with refuses("missing", path=str(head)):
        verify(head, public_key=public)


def test_what_was_checked_is_what_is_read(shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = key_pair(tmp_path, "own")
    head = Path(shutil.copy(shelf.heads[0], tmp_path))
    sign(head, private)
    meanwhile(monkeypatch, lambda: None, lambda: shutil.copy(shelf.heads[1], head))
    assert verify(head, public_key=public).sha256 == shelf.sha256()


# The charge


def test_each_value_of_the_charge_is_that_of_the_card(shelf: Made) -> None:
    others: dict[str, Any] = {
        **{"epsilon": 1.1, "mu": 0.3, "eta": 0.5, "delta": 1e-6, "date": "2020-01-02T03:04:05+00:00"},
        **{"method": "dp-fc", "adjacency": "replace-one", "unit": "person"},
    }
    own = ("epsilon", "mu", "eta")
    card = shelf.card()
    forged = [{name: other} for name, other in others.items()]
    forged += [{"facts": card["facts"] | {"n": 121}}, {"features": card["features"] | {"split": "test"}}]
    assert shelf.found(card)["ledger"] == "ok"
    for changed in (*forged, {"claim": "research", **dict.fromkeys((*own, "delta"))}):
        assert shelf.found(card | changed)["ledger"] == "contradicts", changed


@pytest.mark.usefixtures("heads")
def test_a_head_is_honest_beside_another_set_of_the_name_also_of_the_same_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again, or of other vectors."""
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    features = three(tmp_path, "set", 0)
    head = head_of(features, epsilon=1.0)

    def unknown() -> list[str]:
        found = verify(head.path)
        assert found.contradictions == []
        return [each.what for each in found.findings if each.result != "ok"]

    assert unknown() == ["signature"]
    for seed in (0, 1):
        shutil.rmtree(features.folder)
        assert three(tmp_path, "set", seed).manifest.id != features.manifest.id
        assert unknown() == ["signature", "feature set"]
    # Without the ledger nobody knows of others. Where the ledger is gone, that is said.
    ledger_path(features.folder).unlink()
    found = verify(head.path)
    (gone,) = (each for each in found.findings if each.what == "ledger")
    assert (gone.result, "it is gone" in gone.why, CHARGED in found.unproved) == ("unknown", True, True)
    assert not [each for each in found.findings if "other trainings" in each.what]


def test_the_releases_of_the_charge_are_those_of_the_card(shelf: Made) -> None:
    plan = shelf.card()["plan"]
    others = {"kind": "gradient", "shape": [2, 2], "sigma": 2.0, "rate": 0.5, "times": 7}
    altered = [[*plan[:1], {**plan[1], name: other}, *plan[2:]] for name, other in others.items()]
    for forged in (*altered, plan[:-1], [*plan, plan[0]]):
        assert forged != plan
        assert shelf.found(shelf.card() | {"plan": forged})["ledger"] == "contradicts", forged


def test_a_card_names_a_charge_that_the_ledger_has_and_its_own(shelf: Made) -> None:
    last, every = shelf.book.charges[2].id, {"ledger", DIGEST, OTHERS}
    before = shelf.book.until(last).facts[:-1]
    no_charge = next(fact.id for fact in shelf.book.facts if not isinstance(fact, Charge))
    for named, facts in ((last, before), ("0" * 32, ()), (no_charge, ())):
        card = shelf.card(3)
        card["ledger"]["charge"] = named
        found = shelf.found(card, *facts)
        assert {what: found.get(what) for what in every} == {**dict.fromkeys(every), "ledger": "contradicts"}
    # The charge of another head: another training, another file, other trainings before it.
    card["ledger"]["charge"] = shelf.book.charges[0].id
    assert shelf.found(card).items() >= dict.fromkeys(every, "contradicts").items()


def test_the_digest_of_the_charge_is_that_of_the_file(shelf: Made) -> None:
    stopped, own = shelf.facts(sha256=None, state="stopped"), shelf.book.charges[0].id
    for facts, result in (
        (shelf.facts(), "ok"),
        (shelf.facts(sha256="0" * 64), "contradicts"),
        (stopped, "contradicts"),
        ([*stopped[:-1], *shelf.facts(3, sha256=shelf.sha256())[-1:]], "contradicts"),
        ([fact for fact in shelf.facts() if getattr(fact, "charge", None) != own], "contradicts"),
    ):
        assert shelf.found(shelf.card(), *facts)[DIGEST] == result


# What the card says of other trainings


def test_what_a_card_says_of_other_trainings_is_what_the_ledger_had(shelf: Made) -> None:
    """Totals agree within the precision of what sampled releases cost."""
    total = shelf.card(3)["ledger"]["epsilon"]
    agree = [("epsilon", total), ("epsilon", total * (1 + 0.9e-5))]
    differ = [("epsilon", each) for each in (total * (1 + 1.2e-5), total * (1 - 1.2e-5), 9.0, None)]
    differ += [("private", 1), ("unprotected", 1), ("exact", False), ("unit", "person"), ("adopted", True)]
    for name, other in (*agree, *differ):
        card = shelf.card(3)
        card["ledger"][name] = other
        assert shelf.found(card)[OTHERS] == ("ok" if (name, other) in agree else "contradicts"), (name, other)
    # Under another adjacency the total is an upper bound.
    card = shelf.card(2)
    for exact, result in ((True, "contradicts"), (False, "ok")):
        card["ledger"]["exact"] = exact
        assert shelf.found(card, *shelf.facts(2, adjacency="replace-one"))[OTHERS] == result


@pytest.mark.usefixtures("heads")
def test_a_card_that_leaves_out_an_evaluation_contradicts(tmp_path: Path, private: FeatureSet) -> None:
    first = head_of(private, epsilon=1.0)
    evaluate_privately(first.head, private, "train", epsilon=3.0)
    later = head_of(private, epsilon=1.0)
    card = json.loads(Head.load(later.path).card.json)
    assert (card["ledger"]["private"], card["ledger"]["unprotected"]) == (3, 0)
    forged = tmp_path / "forged.safetensors"
    less = {"private": 2, "epsilon": replace(first.spent, charges=first.spent.charges * 2).epsilon(1e-5)}
    for changed, agrees in (({}, True), (less, False)):
        forged.write_bytes(with_card(later.head, {**card, "ledger": {**card["ledger"], **changed}}))
        found = verify(forged, ledger=ledger_path(private.folder))
        assert results(found)[OTHERS] == ("ok" if agrees else "contradicts")


@pytest.mark.usefixtures("heads")
def test_a_ledger_that_was_united_with_another_one_still_agrees_with_the_cards_of_both(tmp_path: Path) -> None:
    """Nobody can tell any more how much a ledger had that was merged. So a card may count fewer, and never more."""
    here, there = (three(tmp_path / name, "set", 0) for name in ("here", "there") if not (tmp_path / name).mkdir())
    first, second, other = head_of(here, epsilon=1.0), head_of(here, epsilon=1.0), head_of(there, epsilon=1.0)
    merge_ledgers(here.folder.parent, there.folder.parent)
    last = head_of(here, epsilon=1.0)
    assert json.loads(last.head.card.json)["ledger"]["private"] == 4

    def found(trained: Any, trainings: int | None = None) -> str:
        card, forged = json.loads(trained.head.card.json), tmp_path / "forged.safetensors"
        card["ledger"] |= {} if trainings is None else {"private": trainings}
        forged.write_bytes(with_card(trained.head, card))
        return results(verify(forged, ledger=ledger_path(here.folder)))[OTHERS]

    assert [found(each) for each in (first, second, other, last)] == ["ok", "ok", "unknown", "ok"]
    assert [found(second, 3), found(other, 4), found(last, 3), found(last, 5)] == ["contradicts"] * 4
