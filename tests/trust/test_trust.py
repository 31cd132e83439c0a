"""The ledger adds up and survives. The statement says what the card says."""

import json
import math
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import Manifest, SplitFacts
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Claim, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.training import ledger
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import card_of, entry_of
from dpfc_cli.trust import statement
from tests.support import CHAIN, calibrated_at, plan_of, set_with

SOURCE = {"identity": {"listing": {"train": "digest", "test": "one"}}}
FACTS = Facts(n=100, m=2, d=2)
STANDING = {"training": 1, "trainings": 1, "private": 1, "unprotected": 0, "epsilon": 1.0, "exact": True}
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
PLAN = plan_of(FACTS, (Gram(CHAIN, 0.2), 0.2), (GRADIENT, 0.4), (GRADIENT, 0.4))


def entry(calibrated: Calibrated) -> ledger.Entry:
    return entry_of(calibrated, set_with(manifest()), "h.safetensors", DATE)


def row(mu: float | None, claim: Claim = "private", adjacency: Adjacency = "zero-out") -> ledger.Entry:
    epsilon = 1.0 if mu is None else epsilon_for(mu, 1e-5)
    return entry(calibrated_at(replace(FACTS, adjacency=adjacency), PLAN, mu, claim, epsilon))


def test_rows_come_back_and_their_mu_composes(tmp_path: Path) -> None:
    path = ledger.ledger_path(tmp_path / "set")
    assert path == tmp_path / "set.ledger.sqlite"
    for mu in (0.3, 0.4):
        ledger.charge(path, row(mu))
    rows = ledger.read(path)
    assert [r.mu for r in rows] == [0.3, 0.4]
    assert ledger.together(rows, 1e-5) == pytest.approx(epsilon_for(0.5, 1e-5))
    assert rows[0] == ledger.read(path)[0]


def check_releases_cover(entry: ledger.Entry) -> None:
    """Σ 1/σ² over the releases of a row is the μ² it claims."""
    spent = math.fsum(r["times"] / r["sigma"] ** 2 for r in json.loads(entry.releases))
    assert entry.mu is not None
    assert spent == pytest.approx(entry.mu**2, rel=1e-12)


def test_a_rows_releases_add_up_to_its_mu_and_a_forgotten_one_shows() -> None:
    entry = row(0.7)
    check_releases_cover(entry)
    forgotten = ledger.Entry(**{**entry.__dict__, "releases": json.dumps(json.loads(entry.releases)[:1])})
    with pytest.raises(AssertionError):
        check_releases_cover(forgotten)


def test_sampled_trainings_are_composed_by_privacy_loss_distributions(tmp_path: Path) -> None:
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * 5, rate=0.1)
    sampled = entry(calibrated_at(FACTS, plan, 2.0))
    alone, full = ledger.together([sampled], 1e-5), ledger.together([row(0.5)], 1e-5)
    both = ledger.together([sampled, row(0.5)], 1e-5)
    unsampled = ledger.together([row(2.0), row(0.5)], 1e-5)
    assert max(alone, full) < both < min(alone + full, unsampled)


def test_trainings_without_a_guarantee_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    ledger.charge(path, row(0.3))
    ledger.charge(path, row(None, "non-private"))
    ledger.charge(path, row(0.9, "research"))
    rows = ledger.read(path)
    assert ledger.together(rows, 1e-5) == pytest.approx(epsilon_for(0.3, 1e-5))
    assert [r.epsilon is None for r in rows] == [False, True, True]


def test_records_are_named_by_their_source_alone() -> None:
    retested = {"identity": {"listing": {"train": "digest", "test": "two"}}}
    same = replace(
        manifest("inferred"),
        classes=("a", "b", "c"),
        dim=9,
        dtype="float32",
        splits={},
        backbone={"name": "y"},
        source=retested,
    )
    other = replace(manifest(), source={"identity": {"listing": {"train": "another", "test": "one"}}})
    assert ledger.records_of(manifest()) == ledger.records_of(same) != ledger.records_of(other)


def test_no_ledger_is_an_empty_one_and_a_foreign_file_is_refused(tmp_path: Path) -> None:
    assert ledger.read(tmp_path / "none.sqlite") == []
    (tmp_path / "bad.sqlite").write_text("not a database, and long enough to be read as one" * 100)
    with pytest.raises(UserError, match=r"(?s)cannot be read as a ledger.*Restore it from a backup; do not delete it"):
        ledger.read(tmp_path / "bad.sqlite")
    said = r"(?s)nothing is trained that is not charged.*Restore it from a backup; do not delete it"
    with pytest.raises(UserError, match=said):
        ledger.charge(tmp_path / "bad.sqlite", row(0.3))


def test_a_ledger_that_is_sound_is_not_to_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Make that place readable and writable"):
        ledger.charge(tmp_path / "nowhere" / "l.sqlite", row(0.3))
    path, real = tmp_path / "l.sqlite", sqlite3.connect
    ledger.charge(path, row(0.3))
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **{**k, "timeout": 0}))
    with closing(real(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for touch in (lambda: ledger.read(path), lambda: ledger.charge(path, row(0.3))):
            with pytest.raises(UserError, match="try again when that one has ended"):
                touch()
    assert len(ledger.read(path)) == 1


def test_a_ledger_is_read_wherever_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "50% of #2? 猫.sqlite"
    ledger.charge(path, row(0.3))
    assert len(ledger.read(path)) == 1


def test_a_charge_is_synced_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Spying(sqlite3.Connection):
        def execute(self, sql: str, *args: object) -> sqlite3.Cursor:
            said.append(sql)
            return super().execute(sql, *args)  # type: ignore[arg-type]

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, factory=Spying, **k))
    ledger.charge(tmp_path / "l.sqlite", row(0.3))
    assert said[0] == "PRAGMA synchronous = EXTRA"
    words = [line.split()[0] for line in said if not line.startswith(("PRAGMA", "SELECT type, name, sql"))]
    # It is read back before it is committed, and afterwards by a new connection.
    made = ["BEGIN", *["CREATE"] * 3, *["SELECT"] * 2, "INSERT"]
    assert words == [*made, *["SELECT"] * 3, "COMMIT", "BEGIN", *["SELECT"] * 5]


def manifest(origin: str = "asserted") -> Manifest:
    return Manifest(
        classes=("a", "b"),
        dim=2,
        dtype="float16",
        labels_per_record=1,
        origin=origin,  # type: ignore[arg-type]
        splits={"train": SplitFacts(n=100, shards=())},
        backbone={"name": "x"},
        source=SOURCE,
    )


SHA = "ab" * 32
DATE = "2026-01-02T03:04:05+00:00"


def make_card(
    claim: Claim, origin: str = "asserted", adjacency: Adjacency = "zero-out", rate: float = 1.0
) -> dict[str, Any]:
    facts = replace(FACTS, adjacency=adjacency)
    plan = replace(PLAN, releases=tuple(replace(release, rate=rate) for release in PLAN.releases))
    calibrated = calibrated_at(facts, plan, None if claim == "non-private" else mu_for(1.0, 1e-5), claim)
    solution = Solution(chain=CHAIN, weight=np.zeros((2, 2)), bias=np.zeros(2))
    return card_of(calibrated, set_with(manifest(origin)), DATE, solution, STANDING)


def said_of(card: dict[str, Any]) -> dict[str, str]:
    return dict(statement.rows(card, SHA))


def test_the_statement_names_everything_that_must_be_defended() -> None:
    said = said_of(make_card("private"))
    text = " ".join(said.values())
    for words in ("epsilon = 1, delta = 1e-05", "zero-out", "one record of 100", "2 × gradient (80.0%", "gram (20.0%"):
        assert words in text
    for words in ("1.0e-60", DATE, f"dpfc {dpfc_cli.__version__}", SHA):
        assert words in text
    for words in ("test split", "several pictures of one person", "backbone was trained on", "running time"):
        assert words in said["not covered"]
    for words in ("gram: ", "gradient: ", "sigma: ", "the most that one record can change"):
        assert words in said["terms"]
    assert "hessians" not in said["terms"]


def test_the_statement_says_in_plain_words_what_anyone_can_guess() -> None:
    """Φ(μ/2) and Φ(Φ⁻¹(0.05) + μ) at μ = 0.268, rounded up."""
    means = said_of(make_card("private"))["this means"]
    assert "guesses whether a record was used. If both cases are equally likely, the guess is right" in means
    assert "right at most 55.4 % of the time (50 % is chance)" in means
    assert "With 5 % false alarms, a record that was used is reported at most 8.5 % of the time" in means
    assert "which of two records was used" in said_of(make_card("private", adjacency="replace-one"))["this means"]


def test_the_statement_says_what_several_records_of_one_person_have_spent() -> None:
    card = make_card("private")
    several = said_of(card)["several of one person"]
    for k in (2, 5, 10):
        epsilon = float(re.search(rf"\b{k} records: epsilon = ([0-9.]+)", several)[1])  # type: ignore[index]
        exact = epsilon_for(k * card["mu"], 1e-5)
        assert exact <= epsilon <= exact * 1.01
    far = {**card, "epsilon": 50.0, "mu": mu_for(50.0, 1e-5)}
    assert "10 records: epsilon = more than 100" in said_of(far)["several of one person"]
    assert json.loads(json.dumps(statement.meaning(far), allow_nan=False))["groups"]["10"] is None


def test_for_sampled_trainings_the_statement_uses_epsilon_and_delta_alone() -> None:
    card = make_card("private", rate=0.1)
    said = said_of(card)
    # (e + 1e-5)/(1 + e) and 0.05·e + 1e-5.
    assert "right at most 73.2 % of the time" in said["this means"]
    assert "reported at most 13.6 % of the time" in said["this means"]
    assert said["several of one person"].startswith("not stated: ")
    assert statement.meaning(card)["groups"] is None  # type: ignore[index]


@pytest.mark.parametrize("claim", ["research", "non-private"])
def test_without_a_guarantee_none_is_claimed_anywhere(claim: Claim) -> None:
    made = make_card(claim)
    assert (made["epsilon"], made["delta"], made["mu"]) == (None, None, None)
    said = said_of(made)
    assert "no guarantee" in said["this head"]
    assert "∞" in said["this head"]
    assert not {"protects", "this means", "several of one person"} & set(said)
    assert statement.meaning(made) is None


def test_inferred_facts_are_called_inferred_and_not_covered() -> None:
    said = said_of(make_card("private", "inferred"))["public facts"]
    assert said.startswith("2 classes, 1 label per record: inferred from the private records; the guarantee does not")
    assert "unless the operator asserts the classes and the labels per record" in said
    assert "--" not in said
    assert "asserted public" not in said
    for origin in ("asserted", "data set"):
        assert said_of(make_card("private", origin))["public facts"] == f"2 classes, 1 label per record: {origin}"


def test_a_card_made_before_cards_had_dates_is_still_read() -> None:
    card = make_card("private")
    del card["date"]
    assert "unknown time" in said_of(card)["made"]


def test_every_kind_of_release_has_words() -> None:
    for method in METHODS.values():
        facts = Facts(n=100, m=2, d=2)
        plan = method.plan(facts, method.defaults(facts, 1.0, {}))
        plan = plan.described(plan.sigmas(1.0))  # type: ignore[assignment]
        assert len(said_of({**make_card("private"), "plan": plan})["terms"]) > 50


def test_a_card_is_json_without_the_features_digests() -> None:
    text = json.dumps(make_card("private"))
    assert "sha256" not in text
