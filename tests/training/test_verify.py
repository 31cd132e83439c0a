"""What `verify` says of a head, its set and its ledger, where one value of them is another one."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, encoded
from dpfc_cli.heads.signature import Signed
from dpfc_cli.training import verify as checks
from dpfc_cli.training.ledger import Entry, ledger_path, read, standing
from dpfc_cli.training.verify import verify
from dpfc_cli.trust.verify import BELONGS, CHARGED, NOISE, OWNER, SIGNER, TEXT
from tests.support import blobs
from tests.training.starts import CLASSES, head_of, made

Card = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Made:
    """The folder, the set and its rows, and its heads: a private one, two that continue it, one without noise."""

    folder: Path
    features: FeatureSet
    rows: tuple[Entry, ...]
    heads: tuple[Path, ...]

    def card(self, number: int = 1) -> Card:
        """The card of the head of that row, to be changed."""
        found: Card = json.loads(json.dumps(Head.load(self.heads[number - 1]).card))
        return found


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("shelf")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DPFC_HEADS", str(folder / "heads"))
        features = made(folder, "set", 0)
        heads = [head_of(features, epsilon=1.0).path]
        for epsilon in (2.0, 0.5):
            heads.append(head_of(features, epsilon=epsilon, public_head=heads[-1]).path)
        heads.append(head_of(features, "dp-whitened", non_private=True).path)
    rows = tuple(read(ledger_path(features.folder)))
    return Made(folder=folder, features=features, rows=rows, heads=tuple(heads))


@pytest.fixture(autouse=True)
def here(shelf: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(shelf.folder / "features"))


def of_ledger(card: Card, shelf: Made, rows: Sequence[Entry] | None = None, number: int = 1) -> dict[str, str]:
    """What the checks of a ledger find, each with its reason. The card is that of the head of a row."""
    digest = shelf.rows[number - 1].sha256
    assert digest is not None
    found = checks._of_ledger(card, digest, shelf.rows if rows is None else rows, shelf.features)
    return {each.what: f"{each.result}: {each.why}" for each in found}


def with_row(rows: Sequence[Entry], number: int, **changed: Any) -> list[Entry]:
    return [replace(row, **changed) if at == number else row for at, row in enumerate(rows, start=1)]


def test_every_head_agrees_with_its_set_and_its_ledger(shelf: Made) -> None:
    for number, path in enumerate(shelf.heads, start=1):
        found = verify(path)
        assert {each.result for each in found.findings} == {"ok"}, found.findings
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
    assert not found.contradictions
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


# The row


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("at", "2020-01-02T03:04:05+00:00"), ("n", 121), ("split", "test"), ("method", "dp-fc")),
        *(("claim", "research"), ("epsilon", 1.1), ("delta", 1e-6), ("mu", 0.3), ("eta", 0.5)),
        *(("adjacency", "replace-one"), ("unit", "person"), ("records", "others"), ("persons", "0" * 64)),
    ],
)
def test_each_value_of_the_row_is_that_of_the_card(shelf: Made, name: str, other: Any) -> None:
    found = of_ledger(shelf.card(), shelf, with_row(shelf.rows, 1, **{name: other}))
    assert found["ledger"] == (
        f"contradicts: row 1 is of another training, or of another card: they differ in {name}"
    )  # fmt: skip


@pytest.mark.parametrize("name", ["kind", "shape", "sigma", "rate", "times"])
def test_the_releases_of_the_row_are_those_of_the_card(shelf: Made, name: str) -> None:
    plan = shelf.rows[0].plan
    plan[1][name] = 2
    for others in (plan, shelf.rows[0].plan[:-1], [*shelf.rows[0].plan, plan[0]]):
        found = of_ledger(shelf.card(), shelf, with_row(shelf.rows, 1, releases=json.dumps(others)))
        assert found["ledger"].endswith("they differ in releases")


def test_a_card_without_a_date_has_that_of_its_row(shelf: Made) -> None:
    card = shelf.card()
    del card["date"]
    assert of_ledger(card, shelf)["ledger"].startswith("ok")


def test_records_and_persons_are_compared_where_the_set_is_at_hand(shelf: Made) -> None:
    rows = with_row(shelf.rows, 1, records="others", persons="0" * 64)
    digest = shelf.rows[0].sha256
    assert digest is not None
    found = checks._of_ledger(shelf.card(), digest, rows, None)
    assert found[0].result == "ok"


def test_a_row_that_the_ledger_does_not_have_contradicts(shelf: Made) -> None:
    last = len(shelf.rows)
    assert of_ledger(shelf.card(last), shelf, number=last)["ledger"].startswith("ok")
    found = of_ledger(shelf.card(last), shelf, shelf.rows[:-1], number=last)
    assert found == {"ledger": f"contradicts: the card names row {last}, and the ledger has {last - 1}"}


def test_the_row_of_a_card_that_names_none_is_found_by_the_digest(shelf: Made) -> None:
    card = shelf.card(2)
    del card["ledger"]
    found = of_ledger(card, shelf, number=2)
    assert found["ledger"] == "ok: row 2 has the releases and the claim of the card"
    assert "other trainings in the ledger" not in found
    assert of_ledger(card, shelf, shelf.rows[:1], number=2) == {
        "ledger": "unknown: the card names no row, and no row has the digest of this file",
    }  # fmt: skip


def test_the_digest_of_the_row_is_that_of_the_file(shelf: Made) -> None:
    said = {
        "ok: row 1 names the digest of this file, written": shelf.rows,
        "contradicts: row 1 names another file (000000000000…), and this is": with_row(shelf.rows, 1, sha256="0" * 64),
        "unknown: row 1 names no file (state 'charged')": with_row(shelf.rows, 1, sha256=None, state="charged"),
        "contradicts: no head was written of this row": with_row(shelf.rows, 1, sha256=None, state="stopped"),
    }
    for expected, rows in said.items():
        assert of_ledger(shelf.card(), shelf, rows)["SHA-256"].startswith(expected)
    # The second row has the digest, and the first one another one or none.
    for sha256, state in (("0" * 64, "written"), (None, "charged")):
        rows = with_row(shelf.rows, 1, sha256=sha256, state=state)
        rows = with_row(rows, 2, sha256=shelf.rows[0].sha256)
        found = of_ledger(shelf.card(), shelf, rows)["SHA-256"]
        assert found.startswith("contradicts")
        assert "row 2 names it" in found


# A head that continues another one


def test_a_continued_head_has_the_releases_of_the_heads_that_it_started_from(shelf: Made) -> None:
    """Its row has its own releases alone. What the others cost stands in their rows. The card names one of them."""
    what, missing = "start in the ledger", "and the releases before its own are not in the ledger"
    assert what not in of_ledger(shelf.card(), shelf)
    for number in (2, 3):
        found = of_ledger(shelf.card(number), shelf, number=number)
        assert found[what] == f"ok: the releases before its own are in the ledger, up to row {number - 1}"
        for release in range(3 * (number - 1)):
            forged = shelf.card(number)
            forged["plan"][release]["sigma"] *= 2
            found = of_ledger(forged, shelf, number=number)
            assert found["ledger"].startswith("ok")
            assert found[what] == f"contradicts: row {number - 1} has the head that it started from, {missing}"
    more = shelf.card(2)
    more["plan"], more["public_head"]["releases"] = [more["plan"][0], *more["plan"]], 4
    assert missing in of_ledger(more, shelf, number=2)[what]
    less = shelf.card(2)
    less["plan"], less["public_head"]["releases"] = less["plan"][1:], 2
    assert missing in of_ledger(less, shelf, number=2)[what]


def test_the_head_that_a_training_started_from_is_in_a_row_before(shelf: Made) -> None:
    for rows in (with_row(shelf.rows, 1, sha256="0" * 64), [shelf.rows[1], shelf.rows[1], shelf.rows[0]]):
        found = of_ledger(shelf.card(2), shelf, rows, number=2)
        assert found["start in the ledger"] == "contradicts: no row before has the head that it started from"


def test_the_claim_of_a_continued_head_is_not_that_of_its_row(shelf: Made) -> None:
    """Its row has what its own releases cost. Claim and δ are the same."""
    assert shelf.card(2)["epsilon"] > 2.1 > 2.0 == shelf.rows[1].epsilon
    for name, other in {"claim": "research", "delta": 1e-6}.items():
        found = of_ledger(shelf.card(2), shelf, with_row(shelf.rows, 2, **{name: other}), number=2)
        assert found["ledger"].endswith(f"differ in {name}")


# What the card says of other trainings


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *(("epsilon", 9.0), ("epsilon", None), ("private", 1), ("unprotected", 1), ("exact", False)),
        *(("unit", "person"), ("other_records", 1)),
    ],
)
def test_what_a_card_says_of_other_trainings_is_what_the_ledger_had(shelf: Made, name: str, other: Any) -> None:
    card = shelf.card(3)
    card["ledger"][name] = other
    assert of_ledger(card, shelf, number=3)["other trainings in the ledger"] == (
        f"contradicts: the card says something else of rows 1 to 3: {name}"
    )


def test_trainings_of_other_records_are_counted_as_such(shelf: Made) -> None:
    rows = with_row(shelf.rows, 1, records="others", split="test")
    card = shelf.card(2)
    card["ledger"] |= {"epsilon": 2.0, "other_records": 1}
    assert of_ledger(card, shelf, rows, number=2)["other trainings in the ledger"].startswith("ok")
    card["ledger"]["other_records"] = 2
    assert of_ledger(card, shelf, rows, number=2)["other trainings in the ledger"].endswith("other_records")


def test_trainings_that_came_later_and_those_that_are_gone_are_told(shelf: Made) -> None:
    what = "other trainings in the ledger"
    assert of_ledger(shelf.card(), shelf)[what] == "ok: rows 1 to 1 are those that the card counts; 3 came later"
    assert of_ledger(shelf.card(), shelf, shelf.rows[:1])[what].endswith("card counts")
    for counted, rows in ((5, shelf.rows), (3, shelf.rows[:2]), (0, shelf.rows)):
        card = shelf.card()
        card["ledger"]["trainings"] = counted
        assert of_ledger(card, shelf, rows)[what] == (
            f"contradicts: the card counts {counted}, and the ledger has {len(rows)}"
        )


def test_a_total_of_sampled_releases_is_called_an_upper_bound_if_one_of_them_is_counted(shelf: Made) -> None:
    what, plan = "other trainings in the ledger", shelf.rows[1].plan
    plan[2]["rate"] = 0.5
    rows = with_row(shelf.rows, 2, releases=json.dumps(plan))
    assert "upper bound" not in of_ledger(shelf.card(), shelf, rows)[what]
    card = shelf.card(2)
    card["ledger"] |= standing(rows[:2], 2, card["delta"])
    assert "card counts, an upper bound; 2 came later" in of_ledger(card, shelf, rows, number=2)[what]


# Persons


def test_a_head_of_persons_agrees_with_its_set_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))
    monkeypatch.setenv("DPFC_HEADS", str(tmp_path / "heads"))
    x, y = blobs(120, 6, 3)
    np.savez(tmp_path / "p.npz", train_x=x, train_y=y, train_groups=np.arange(120) // 2)
    persons = import_features(tmp_path / "p.npz", tmp_path / "features" / "p", classes=CLASSES).features
    protected, without = head_of(persons, epsilon=1.0), head_of(persons, non_private=True)
    for trained in (protected, without):
        assert {each.result for each in verify(trained.path).findings} == {"ok"}
    card = dict(Head.load(protected.path).card)
    row = replace(read(ledger_path(persons.folder))[0], persons="0" * 64)
    assert checks._differ(card, row, persons) == ["persons"]
    card["facts"] = card["facts"] | {"records": 121}
    assert checks._set_at_hand(card)[1].why.endswith("other values: records")


# The signature


def test_what_is_known_of_a_signature_is_said(tmp_path: Path) -> None:
    head = tmp_path / "a.safetensors"
    assert checks._of_signature(head, None) == []
    path = tmp_path / "a.safetensors.minisig"
    path.write_text("")
    (found,) = checks._of_signature(head, None)
    assert (found.what, found.result) == ("signature", "unknown")
    (found,) = checks._of_signature(head, Signed(path=path, key="0123", comment="for ward 7"))
    assert asdict(found) == {
        "what": "signature",
        "result": "ok",
        "why": "the holder of the key 0123 vouches for the bytes of the file; comment: for ward 7",
    }
