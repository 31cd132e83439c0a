"""What `verify` says of a head, of its set and of the ledger, and what it leaves unproved."""

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_signing import verifying

from dpfc_cli import verification as checks
from dpfc_cli.errors import UserError
from dpfc_cli.evaluation.evaluate import evaluate_privately
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.ledger.facts import Charge, Outcome
from dpfc_cli.ledger.file import ledger_path
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.trust.card import BELONGS, CHARGED, NOISE, OWNER, TEXT, Finding
from dpfc_cli.verification import verify
from tests.signing import key_pair, sign
from tests.support import blobs, refuses
from tests.training import requests
from tests.training.conftest import heads, private
from tests.training.starts import CLASSES, head_of, made

__all__ = ["heads", "private"]

Card = dict[str, Any]
OTHERS = "other trainings in the ledger"


@dataclass(frozen=True, kw_only=True)
class Made:
    """The folder, the set, its ledger, and its heads: a private one, and two that continue it."""

    folder: Path
    features: FeatureSet
    book: Ledger
    heads: tuple[Path, ...]

    def card(self, number: int = 1) -> Card:
        """The card of the head of that charge, to be changed."""
        found: Card = json.loads(json.dumps(Head.load(self.heads[number - 1]).card))
        return found

    def sha256(self, number: int = 1) -> str:
        """What the ledger has as the digest of that head."""
        last = self.book.outcome(self.book.charges[number - 1].id)
        assert last is not None
        return str(last.sha256)


def handed_over(folder: Path) -> Made:
    """A set and its heads, trained in an empty folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPFC_HEADS", str(folder / "heads"))
        features = made(folder, "set", 0)
        heads = [head_of(features, epsilon=1.0).path]
        for epsilon in (2.0, 0.5):
            heads.append(head_of(features, epsilon=epsilon, public_head=heads[-1]).path)
    return Made(folder=folder, features=features, book=requests.ledger(features), heads=tuple(heads))


def of_ledger(card: Card, shelf: Made, book: Ledger | None = None, number: int = 1) -> dict[str, str]:
    """What the checks of a ledger find, each with its reason. The card is that of the head of a charge."""
    found = checks._of_ledger(card, shelf.sha256(number), book or shelf.book)
    return {each.what: f"{each.result}: {each.why}" for each in found}


def of_set(card: Card, book: Ledger) -> Finding:
    return checks._of_set(card, book, checks._set_at_hand(card["features"]["name"], None))


def with_charge(book: Ledger, number: int, **changed: Any) -> Ledger:
    """The ledger with other values of a charge, or of its outcome (state, sha256)."""
    of = book.charges[number - 1].id
    facts = [
        replace(fact, **{name: value for name, value in changed.items() if hasattr(fact, name)})
        if fact.id == of or (isinstance(fact, Outcome) and fact.charge == of)
        else fact
        for fact in book.facts
    ]
    return Ledger(path=book.path, facts=tuple(facts))


def without_outcome(book: Ledger, number: int) -> Ledger:
    of = book.charges[number - 1].id
    facts = (fact for fact in book.facts if not (isinstance(fact, Outcome) and fact.charge == of))
    return Ledger(path=book.path, facts=tuple(facts))


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
        assert [each.what for each in found.findings if each.result != "ok"] == ["signature"], found.findings
        assert set(what) <= {each.what for each in found.findings}
        assert found.unproved == (NOISE, OWNER)
        assert (found.ledger, found.sha256) == (ledger_path(shelf.features.folder), shelf.sha256(number))


# What cannot be proved


def test_what_no_ledger_shows_is_named_as_unproved(shelf: Made, tmp_path: Path) -> None:
    other = Path(shutil.copy(ledger_path(shelf.features.folder), tmp_path))
    head, card = Head.load(shelf.heads[0]), shelf.card()
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(encoded(replace(head, bias=head.bias + 1)))
    assert verify(changed, ledger=other).unproved == (NOISE, BELONGS, TEXT, OWNER)
    # A charge of another training is not its own.
    card["ledger"]["charge"] = shelf.book.charges[1].id
    changed.write_bytes(encoded(replace(head, card=card)))
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
            forged.write_bytes(encoded(replace(head, card=changed)))
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
    found = verify(shelf.heads[0])
    results = {each.what: each.result for each in found.findings}
    assert (results["feature set"], results["ledger"], found.ledger) == ("unknown", "unknown", None)
    assert found.unproved == (NOISE, BELONGS, TEXT, CHARGED)
    with pytest.raises(UserError, match="There is no ledger"):
        verify(shelf.heads[0], ledger=ledger_path(tmp_path / "features" / "set"))
    with pytest.raises(UserError, match=r"There is no ledger '.*features' \(it is a folder\)"):
        verify(shelf.heads[0], ledger=tmp_path / "features")
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    results = {each.what: each.result for each in verify(shelf.heads[0]).findings}
    assert (results["feature set"], results["ledger"]) == ("unknown", "unknown")
    # The set beside a ledger that is named is looked at, too.
    found = verify(shelf.heads[0], ledger=ledger_path(shelf.features.folder))
    assert {each.result for each in found.findings[1:]} == {"ok"}


def test_an_honest_head_of_a_neighbour_does_not_contradict_where_a_set_has_the_same_name(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a ledger that somebody names must have its charge."""
    x, y = blobs(90, 6, 3, seed=1)
    np.savez(tmp_path / "set.npz", train_x=x, train_y=y)
    own = import_features(tmp_path / "set.npz", tmp_path / "features" / "set", classes=CLASSES).features
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    found = verify(shelf.heads[0])
    results = {each.what: each.result for each in found.findings}
    assert (found.contradictions, results["feature set"], results["ledger"]) == ([], "unknown", "unknown")
    assert (found.ledger, found.unproved) == (None, (NOISE, BELONGS, TEXT, CHARGED))
    named = verify(shelf.heads[0], ledger=ledger_path(own.folder))
    assert {each.what for each in named.findings if each.result == "contradicts"} == {"ledger"}


def test_a_card_has_a_date_and_no_later_one_than_today(shelf: Made, tmp_path: Path) -> None:
    head, changed = Head.load(shelf.heads[0]), tmp_path / "changed.safetensors"
    for date in ("", "yesterday", "2026-02-30T00:00:00+00:00", "2026-01-02T03:04:05+02:00"):
        changed.write_bytes(encoded(replace(head, card=shelf.card() | {"date": date})))
        with refuses("damaged"):
            verify(changed)
    changed.write_bytes(encoded(replace(head, card=shelf.card() | {"date": "2999-01-02T03:04:05+00:00"})))
    assert [each.result for each in verify(changed).findings if each.what == "date"] == ["contradicts"]


# The set


def test_each_fact_of_the_card_is_that_of_the_set(shelf: Made) -> None:
    facts = [("facts", name) for name in ("n", "m", "k", "d", "origin")]
    for part, name in [*facts, *(("features", name) for name in ("split", "backbone", "hold_out", "fingerprint"))]:
        card = shelf.card()
        card[part][name] = {"of": "another"}
        found = of_set(card, shelf.book)
        assert (found.result, name) == ("contradicts", found.why.rpartition(" ")[2])
    for changed in ({"unit": "person"}, {"classes": [*CLASSES[1:], CLASSES[0]]}):
        found = of_set(shelf.card() | changed, shelf.book)
        assert (found.result, *changed) == ("contradicts", found.why.rpartition(" ")[2])


def test_a_fact_is_read_where_a_card_states_it_and_nowhere_else(shelf: Made) -> None:
    """A true value under another key of the card does not stand for a false one."""
    card = shelf.card()
    card["facts"] |= {"n": 6_000, "backbone": card["features"]["backbone"], "hold_out": 0.0}
    card["features"] |= {"n": 120, "unit": "record", "backbone": {"name": "other"}, "hold_out": 0.5}
    card["unit"] = "person"
    assert of_set(card, shelf.book).why.endswith("other values: n, unit, backbone, hold_out")


def test_a_set_that_cannot_be_read_or_is_not_that_of_the_charge_says_nothing(
    shelf: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(book: Ledger | str = shelf.book) -> str:
        found = checks._of_set(shelf.card(), book, checks._set_at_hand("set", None))
        assert found.result == "unknown"
        return found.why

    for other in ("there is none", with_charge(shelf.book, 1, set="0" * 32)):
        assert "no ledger says" in unknown(other)
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    assert unknown() == "no set of the name 'set' is at hand"
    copy = Path(shutil.copytree(shelf.features.folder, tmp_path / "set"))
    # One that has a test split alone, and one that is damaged.
    manifest = json.loads((copy / "manifest.json").read_text())
    splits, known = manifest["splits"], manifest["source"]["identity"]
    splits["test"], known["listing"]["test"] = splits.pop("train"), known["listing"].pop("train")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert "has no split 'train'" in unknown()
    (copy / "manifest.json").write_text("{")
    assert "manifest.json" in unknown()


# Persons


def test_a_head_of_persons_agrees_with_its_set_and_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = import_features(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES).features
    path = head_of(persons, epsilon=1.0).path
    assert {each.result for each in verify(path).findings[1:]} == {"ok"}
    card: Card = json.loads(json.dumps(Head.load(path).card))
    book = requests.ledger(persons)
    (charge,) = book.charges
    assert checks._differ(card, replace(charge, unit="record")) == ["unit"]
    card["facts"]["records"] = 121
    assert of_set(card, book).why.endswith("other values: records")
    # Without noise each record stands for itself.
    del card["facts"]["records"]
    card |= {"claim": "non-private", "unit": "record", "facts": card["facts"] | {"n": 120}}
    assert of_set(card, book).result == "ok"


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
    real = verifying.Config.verify

    def slow(*given: Any) -> None:
        real(*given)
        # Somebody replaces the head after it was checked.
        shutil.copy(shelf.heads[1], head)

    monkeypatch.setattr(verifying.Config, "verify", slow)
    assert verify(head, public_key=public).sha256 == shelf.sha256()


# The charge


def test_each_value_of_the_charge_is_that_of_the_card(shelf: Made) -> None:
    card, charge = shelf.card(), shelf.book.charges[0]
    assert checks._differ(card, charge) == []
    others: dict[str, Any] = {
        **{"at": "2020-01-02T03:04:05+00:00", "n": 121, "split": "test", "method": "dp-fc", "claim": "research"},
        **{"epsilon": 1.1, "delta": 1e-6, "mu": 0.3, "eta": 0.5, "adjacency": "replace-one", "unit": "person"},
    }
    for name, other in others.items():
        assert checks._differ(card, replace(charge, **{name: other})) == [name]


@pytest.mark.usefixtures("heads")
def test_a_head_is_honest_beside_another_set_of_the_name_also_of_the_same_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again, or of other vectors."""
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    features = made(tmp_path, "set", 0)
    head = head_of(features, epsilon=1.0)

    def unknown() -> list[str]:
        found = verify(head.path)
        assert found.contradictions == []
        return [each.what for each in found.findings if each.result != "ok"]

    assert unknown() == ["signature"]
    for seed in (0, 1):
        shutil.rmtree(features.folder)
        assert made(tmp_path, "set", seed).manifest.id != features.manifest.id
        assert unknown() == ["signature", "feature set"]
    # Without the ledger nobody knows of others. Where the ledger is gone, that is said.
    ledger_path(features.folder).unlink()
    found = verify(head.path)
    (gone,) = (each for each in found.findings if each.what == "ledger")
    assert (gone.result, "it is gone" in gone.why, CHARGED in found.unproved) == ("unknown", True, True)
    assert not [each for each in found.findings if "other trainings" in each.what]


@pytest.mark.parametrize("name", ["kind", "shape", "sigma", "rate", "times"])
def test_the_releases_of_the_charge_are_those_of_the_card(shelf: Made, name: str) -> None:
    plan = [dict(each) for each in shelf.book.charges[0].releases]
    altered = [*plan[:1], {**plan[1], name: 2}, *plan[2:]]
    for others in (altered, plan[:-1], [*plan, plan[0]]):
        found = of_ledger(shelf.card(), shelf, with_charge(shelf.book, 1, releases=tuple(others)))
        assert found["ledger"].endswith("they differ in releases")


def test_a_card_names_a_charge_that_the_ledger_has_and_its_own(shelf: Made) -> None:
    last = shelf.book.charges[2]
    assert of_ledger(shelf.card(3), shelf, number=3)["ledger"].startswith("ok")
    before = Ledger(path=shelf.book.path, facts=shelf.book.until(last.id).facts[:-1])
    no_charge = next(fact.id for fact in shelf.book.facts if not isinstance(fact, Charge))
    for named, book in ((last.id, before), ("0" * 32, shelf.book), (no_charge, shelf.book)):
        card = shelf.card(3)
        card["ledger"]["charge"] = named
        found = of_ledger(card, shelf, book, number=3)
        assert found == {"ledger": "contradicts: the ledger does not have the charge that the card names"}
    # The charge of another head: another training, another file, other trainings before it.
    card["ledger"]["charge"] = shelf.book.charges[0].id
    assert [text.partition(":")[0] for text in of_ledger(card, shelf, number=3).values()] == ["contradicts"] * 4


def test_the_digest_of_the_charge_is_that_of_the_file(shelf: Made) -> None:
    stopped = with_charge(shelf.book, 1, sha256=None, state="stopped")
    said = {
        "ok: the charge ended with this file": shelf.book,
        "contradicts: the charge ended with another file (000000000000": with_charge(shelf.book, 1, sha256="0" * 64),
        "contradicts: the ledger names no file of the charge": without_outcome(shelf.book, 1),
        "contradicts: the charge ended without a file": stopped,
        "contradicts: another charge ended with this file": with_charge(stopped, 2, sha256=shelf.sha256()),
    }
    for expected, book in said.items():
        assert of_ledger(shelf.card(), shelf, book)["SHA-256"].startswith(expected)


# A head that continues another one


def test_a_continued_head_has_the_releases_of_the_heads_that_it_started_from(shelf: Made) -> None:
    """Its charge has its own releases alone. What the others cost stands in theirs. The card names one of them."""
    what = "start in the ledger"
    assert what not in of_ledger(shelf.card(), shelf)
    for number in (2, 3):
        assert of_ledger(shelf.card(number), shelf, number=number)[what].startswith("ok")
        for release in range(3 * (number - 1)):
            forged = shelf.card(number)
            forged["plan"][release]["sigma"] *= 2
            found = of_ledger(forged, shelf, number=number)
            assert found["ledger"].startswith("ok")
            assert found[what].startswith("contradicts")


def test_each_charge_counts_once_as_a_whole_and_others_may_lie_between(shelf: Made) -> None:
    a, b, c = shelf.book.charges[0].releases
    plans = [[a], [c], [a, b], [b, b], [c], [a]]
    digests = [f"{number}" * 64 for number in range(1, 7)]
    charges = [replace(shelf.book.charges[0], id=f"{i}" * 32, releases=tuple(each)) for i, each in enumerate(plans)]
    ends = (
        Outcome(by="me", charge=charge.id, state="written", head="h", sha256=digest)
        for charge, digest in zip(charges, digests, strict=True)
    )
    book = Ledger(path=shelf.book.path, facts=(*(each for pair in zip(charges, ends, strict=True) for each in pair),))

    def found(*releases: list[Any], last: int, of: str = charges[0].set) -> str:
        said = [release for part in releases for release in part]
        card = {"plan": [*said, a], "public_head": {"releases": len(said), "sha256": digests[last - 1]}}
        return checks._of_start(card, book.until(charges[-1].id), of).result

    assert found([a], last=1) == found([c], [b, b], last=4) == found([a], [a, b], [c], last=5) == "ok"
    for releases, last in (
        (([a], [a]), 1), (([a, b], [a, b]), 3), (([b], [b, b]), 4), (([b], [c]), 5), (([c], [a]), 1), (([b, a, b],), 3),
    ):  # fmt: skip
        assert found(*releases, last=last) == "contradicts"
    assert found([a], last=1, of="0" * 32) == "contradicts", "they are of another set"


def test_the_head_that_a_training_started_from_is_of_a_charge_before(shelf: Made) -> None:
    facts = shelf.book.facts
    first = shelf.book.charges[0]
    later = (*(each for each in facts if each.id != first.id and getattr(each, "charge", None) != first.id), first)
    for book in (with_charge(shelf.book, 1, sha256="0" * 64), Ledger(path=shelf.book.path, facts=later)):
        assert of_ledger(shelf.card(2), shelf, book, number=2)["start in the ledger"].startswith("contradicts")


def test_the_claim_of_a_continued_head_is_not_that_of_its_charge(shelf: Made) -> None:
    """Its charge has what its own releases cost. Claim and δ are the same."""
    assert shelf.card(2)["epsilon"] > 2.1 > 2.0 == shelf.book.charges[1].epsilon
    for name, other in {"claim": "research", "delta": 1e-6}.items():
        found = of_ledger(shelf.card(2), shelf, with_charge(shelf.book, 2, **{name: other}), number=2)
        assert found["ledger"].endswith(f"differ in {name}")


# What the card says of other trainings


def test_what_a_card_says_of_other_trainings_is_what_the_ledger_had(shelf: Made) -> None:
    assert of_ledger(shelf.card(3), shelf, number=3)[OTHERS] == "ok: they are those that the card counts"
    for name, other in (
        *(("epsilon", 9.0), ("epsilon", None), ("private", 1), ("unprotected", 1)),
        *(("exact", False), ("unit", "person"), ("adopted", True)),
    ):
        card = shelf.card(3)
        card["ledger"][name] = other
        found = of_ledger(card, shelf, number=3)[OTHERS]
        assert found == f"contradicts: the card says something else of the ledger: {name}"


def test_totals_agree_within_the_precision_of_what_sampled_releases_cost(shelf: Made) -> None:
    for beyond, result in ((0.9e-5, "ok"), (1.2e-5, "contradicts"), (-1.2e-5, "contradicts")):
        card = shelf.card(3)
        card["ledger"]["epsilon"] *= 1 + beyond
        assert of_ledger(card, shelf, number=3)[OTHERS].startswith(result)


def test_a_total_that_is_an_upper_bound_and_trainings_that_came_later_are_told(shelf: Made) -> None:
    assert of_ledger(shelf.card(), shelf)[OTHERS] == "ok: they are those that the card counts; 2 came later"
    book = with_charge(shelf.book, 2, adjacency="replace-one")
    card = shelf.card(2)
    card["ledger"]["exact"] = False
    assert of_ledger(card, shelf, book, number=2)[OTHERS].endswith("their total is an upper bound; 1 came later")


@pytest.mark.usefixtures("heads")
def test_a_card_that_leaves_out_an_evaluation_contradicts(tmp_path: Path, private: FeatureSet) -> None:
    first = head_of(private, epsilon=1.0)
    evaluate_privately(first.head, private, "train", epsilon=3.0)
    later = head_of(private, epsilon=1.0)
    card = json.loads(json.dumps(Head.load(later.path).card))
    assert (card["ledger"]["private"], card["ledger"]["unprotected"]) == (3, 0)
    forged = tmp_path / "forged.safetensors"
    less = {"private": 2, "epsilon": replace(first.spent, charges=first.spent.charges * 2).epsilon(1e-5)}
    for changed, agrees in (({}, True), (less, False)):
        forged.write_bytes(encoded(replace(later.head, card={**card, "ledger": {**card["ledger"], **changed}})))
        found = verify(forged, ledger=ledger_path(private.folder))
        assert {each.what: each.result for each in found.findings}[OTHERS] == ("ok" if agrees else "contradicts")


@pytest.mark.usefixtures("heads")
def test_a_ledger_that_was_united_with_another_one_still_agrees_with_the_cards_of_both(tmp_path: Path) -> None:
    """Nobody can tell any more how much a ledger had that was merged. So a card may count fewer, and never more."""
    here, there = (made(tmp_path / name, "set", 0) for name in ("here", "there") if not (tmp_path / name).mkdir())
    first, second, other = head_of(here, epsilon=1.0), head_of(here, epsilon=1.0), head_of(there, epsilon=1.0)
    merge_ledgers(here.folder.parent, there.folder.parent)
    last, book = head_of(here, epsilon=1.0), requests.ledger(here)
    assert last.head.card["ledger"]["private"] == 4

    def found(trained: Any, trainings: int | None = None) -> str:
        card = json.loads(json.dumps(trained.head.card))
        if trainings is not None:
            card["ledger"] |= {"private": trainings}
        results = checks._of_ledger(card, trained.sha256, book)
        return {each.what: each.result for each in results}[OTHERS]

    assert [found(each) for each in (first, second, other, last)] == ["ok", "ok", "unknown", "ok"]
    assert [found(second, 3), found(other, 4), found(last, 3), found(last, 5)] == ["contradicts"] * 4
