"""A ledger is exactly our table, with rows that a training can have. Nothing is charged to any other file."""

import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import poisson
from dpfc_cli.privacy.accounting import LEAST_EPSILON, Claim, epsilon_for, mu_for
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.queries import Gradient, Gram
from dpfc_cli.training import ledger, limit
from dpfc_cli.training.calibrate import Calibrated, calibrate
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.ledger import Book, Cap, Entry, Overlap, Receipt, tables
from dpfc_cli.training.request import Privacy
from dpfc_cli.trust import claims
from tests.hostile import set_of
from tests.support import CHAIN, calibrated_at, plan_of

AT = "2026-01-02T03:04:05+00:00"
FACTS = Facts(n=100, m=2, d=2)
GRADIENT = Gradient(CHAIN, np.zeros((3, 2)), clip=1.0)
PLAN = plan_of(FACTS, (Gram(CHAIN, 0.2), 0.2), (GRADIENT, 0.4), (GRADIENT, 0.4))
DIGEST = "0123456789abcdef" * 4


def entry(calibrated: Calibrated) -> Entry:
    return entry_of(calibrated, set_of(calibrated.facts), "h.safetensors", AT)


def row(mu: float = 0.3, claim: Claim = "private") -> Entry:
    return entry(calibrated_at(FACTS, PLAN, None if claim == "non-private" else mu, claim, epsilon_for(mu, 1e-5)))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a ledger with two rows."""
    made = tmp_path_factory.mktemp("two") / "set.ledger.sqlite"
    for mu in (0.3, 0.4):
        ledger.charge(made, row(mu))
    return made.read_bytes()


@pytest.fixture
def path(tmp_path: Path, two: bytes) -> Path:
    """A ledger with two rows."""
    made = tmp_path / "set.ledger.sqlite"
    made.write_bytes(two)
    return made


def cap(epsilon: float | None = 3.0, **changed: Any) -> Cap:
    figures: dict[str, Any] = {"epsilon": None, "delta": None, "mu": None, "eta": None}
    if epsilon is not None:
        figures |= {"epsilon": epsilon, "delta": 1e-5, "mu": limit.mu_of_cap(epsilon, 1e-5), "eta": limit.RESERVE}
    return Cap(**{"at": AT, "records": row().records, **figures, "who": "an officer", "note": "a plan", **changed})


def overlap(**changed: Any) -> Overlap:
    return Overlap(**{"at": AT, "records": row().records, "other": "r", "name": "last year", "who": "Ada", **changed})


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def changed(path: Path, sql: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        if values:
            connection.execute(sql, values)
        else:
            connection.executescript(sql)


def refused(path: Path, says: str) -> None:
    """Reading and charging are refused, and the file stays as it is."""
    before = path.read_bytes()
    with pytest.raises(UserError, match=says) as on_reading:
        ledger.read(path)
    with pytest.raises(UserError, match=rf"(?s){says}.*Nothing was charged") as on_charging:
        ledger.charge(path, row(0.5))
    assert on_reading.value.code == on_charging.value.code == "damaged"
    assert "Do not delete it" in on_charging.value.remedy
    assert path.read_bytes() == before


# Exactly our table, and nothing else

CHANGES = {
    "a trigger that deletes": "CREATE TRIGGER t AFTER INSERT ON trainings BEGIN DELETE FROM trainings; END",
    "a trigger that changes": "CREATE TRIGGER t AFTER INSERT ON trainings BEGIN UPDATE trainings SET mu = 0; END",
    "a trigger that waits": "CREATE TRIGGER t AFTER UPDATE ON trainings BEGIN DELETE FROM trainings; END",
    "a trigger that ignores": "CREATE TRIGGER t BEFORE INSERT ON trainings BEGIN SELECT RAISE(IGNORE); END",
    "a trigger that rolls back": "CREATE TRIGGER t BEFORE INSERT ON trainings BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    "a view in its place": "ALTER TABLE trainings RENAME TO kept; CREATE VIEW trainings AS SELECT * FROM kept; CREATE "
    "TRIGGER t INSTEAD OF INSERT ON trainings BEGIN SELECT 1; END",
    "another view": "CREATE VIEW v AS SELECT * FROM trainings",
    "another table": "CREATE TABLE other (a)",
    "an index": "CREATE UNIQUE INDEX i ON trainings (id, head)",
    "statistics": "ANALYZE",
    "another column": "ALTER TABLE trainings ADD COLUMN more TEXT",
    "a computed column": "ALTER TABLE trainings ADD COLUMN more AS (n + 1)",
    "no table": "DROP TABLE trainings",
    "a table of caps that is not there": "DROP TABLE caps",
    "a trigger on caps": "CREATE TRIGGER t AFTER INSERT ON caps BEGIN DELETE FROM caps; END",
    "another column of caps": "ALTER TABLE caps ADD COLUMN more TEXT",
    "a table of overlaps that is not there": "DROP TABLE overlaps",
    "a trigger on overlaps": "CREATE TRIGGER t AFTER INSERT ON overlaps BEGIN DELETE FROM overlaps; END",
    "another column of overlaps": "ALTER TABLE overlaps ADD COLUMN more TEXT",
    "a later version": "PRAGMA user_version = 3",
    "a version below all": "PRAGMA user_version = -1",
    "an older version than its tables": "PRAGMA user_version = 0",
    "a version before its tables": "PRAGMA user_version = 1",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_more_or_less_than_our_table_is_refused(path: Path, change: str) -> None:
    changed(path, CHANGES[change])
    refused(path, "has (more in it than|no|another) .*table|is of version (3|-1), and this dpfc knows versions 0 to 2")


def tables_of(version: int) -> list[str]:
    """What makes the tables of a ledger of this version."""
    columns = tables.FIRST | tables.LATER | (tables.SIGNED if version > 0 else {})
    columns |= tables.LINKED if version > 1 else {}
    return [tables.table_of("trainings", columns), *(tables.CAPS, tables.OVERLAPS)[:version]]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("at TEXT NOT NULL", "at TEXT NOT NULL ON CONFLICT IGNORE"),
        ("head TEXT NOT NULL", "head TEXT NOT NULL UNIQUE ON CONFLICT IGNORE"),
        ("head TEXT NOT NULL", "head TEXT NOT NULL UNIQUE ON CONFLICT REPLACE"),
        ("head TEXT NOT NULL", "head TEXT NOT NULL UNIQUE"),
        ("head TEXT NOT NULL", "head TEXT NOT NULL COLLATE NOCASE"),
        ("head TEXT NOT NULL", "head TEXT NOT NULL DEFAULT 'x'"),
        ("head TEXT NOT NULL", "head TEXT"),
        ("n INTEGER NOT NULL", "n INTEGER NOT NULL CHECK (n > 0)"),
        ("n INTEGER NOT NULL", "n TEXT NOT NULL"),
        ("epsilon REAL", "epsilon REAL GENERATED ALWAYS AS (0.1) STORED"),
        ("epsilon REAL", "epsilon REAL REFERENCES other (a)"),
        ("sha256 TEXT", "sha256 TEXT, UNIQUE (mu) ON CONFLICT REPLACE"),
        ("sha256 TEXT)", "sha256 TEXT) STRICT"),
        ("sha256 TEXT)", "sha256 TEXT) WITHOUT ROWID"),
        ("sha256 TEXT)", "sha256 TEXT /* more */)"),
        ("id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY AUTOINCREMENT"),
        ("id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY ON CONFLICT REPLACE"),
        ("mu REAL, eta REAL", "eta REAL, mu REAL"),
        ("eta REAL, ", ""),
        ("trainings", "Trainings"),
    ],
)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_table_with_other_columns_or_clauses_is_refused(tmp_path: Path, ours: str, theirs: str, version: int) -> None:
    whole, *others = tables_of(version)
    if version:
        # The last column is another one.
        last = {1: "caps", 2: "overlaps"}[version]
        ours, theirs = (text.replace("sha256 TEXT", f"{last} INTEGER NOT NULL DEFAULT 0") for text in (ours, theirs))
    text = whole.replace(ours, theirs)
    assert text != whole
    changed(tmp_path / "l.sqlite", "; ".join((text, *others, f"PRAGMA user_version = {version}")))
    refused(tmp_path / "l.sqlite", "has (another|more|no)")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("at TEXT NOT NULL", "at TEXT"),
        ("mu REAL", "mu REAL DEFAULT 9"),
        ("mu REAL", "mu REAL UNIQUE ON CONFLICT REPLACE"),
        ("mu REAL, eta REAL", "eta REAL, mu REAL"),
        ("note TEXT, ", ""),
        ("persons TEXT)", "persons TEXT) STRICT"),
        ("id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY ON CONFLICT REPLACE"),
        ("TABLE caps", "TABLE Caps"),
    ],
)
def test_so_is_another_table_of_caps(tmp_path: Path, ours: str, theirs: str) -> None:
    trainings, caps, overlaps = tables_of(2)
    text = caps.replace(ours, theirs)
    assert text != caps
    changed(tmp_path / "l.sqlite", f"{trainings}; {text}; {overlaps}; PRAGMA user_version = 2")
    refused(tmp_path / "l.sqlite", "has (another|more|no)")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("other TEXT NOT NULL", "other TEXT"),
        ("other TEXT NOT NULL", "other TEXT NOT NULL UNIQUE ON CONFLICT IGNORE"),
        ("name TEXT NOT NULL, ", ""),
        ("trainings INTEGER NOT NULL)", "trainings INTEGER NOT NULL) STRICT"),
        ("TABLE overlaps", "TABLE Overlaps"),
    ],
)
def test_so_is_another_table_of_overlaps(tmp_path: Path, ours: str, theirs: str) -> None:
    trainings, caps, overlaps = tables_of(2)
    text = overlaps.replace(ours, theirs)
    assert text != overlaps
    changed(tmp_path / "l.sqlite", f"{trainings}; {caps}; {text}; PRAGMA user_version = 2")
    refused(tmp_path / "l.sqlite", "has (another|more|no)")


@pytest.mark.parametrize("name", [*tables.LATER, *tables.SIGNED, *tables.LINKED])
def test_no_column_of_a_version_is_lacking(path: Path, name: str) -> None:
    changed(path, f"ALTER TABLE trainings DROP COLUMN {name}")
    refused(path, "has another table of trainings")


def first_ledger(path: Path, added: list[str]) -> Entry:
    """A ledger of version 0 with one row, which it returns."""
    first = replace(row(), state="unknown")
    columns = ",\n  ".join(f"{name} {kind}" for name, kind in tables.FIRST.items())
    changed(path, f"CREATE TABLE IF NOT EXISTS trainings (\n  {columns}\n)\n")
    for name in added:
        changed(path, f"ALTER TABLE trainings ADD COLUMN {name} {tables.LATER[name]}")
    values = {name: value for name, value in first.__dict__.items() if name in tables.FIRST}
    marks = ", ".join("?" * len(values))
    changed(path, f"INSERT INTO trainings ({', '.join(values)}) VALUES ({marks})", *values.values())
    return first


OLD = [[], ["state"], ["sha256"], ["sha256", "state"], ["state", "sha256"]]


@pytest.mark.parametrize("added", OLD)
def test_the_first_ledgers_are_read_and_go_on(tmp_path: Path, added: list[str]) -> None:
    """Their text had other line ends, and later columns were added in any order."""
    path = tmp_path / "l.sqlite"
    first = first_ledger(path, added)
    before = path.read_bytes()
    assert ledger.read(path) == [first]
    assert path.read_bytes() == before
    receipt = ledger.charge(path, row(0.4))
    assert version_of(path) == 2
    assert ledger.read(path) == [first, row(0.4)]
    ledger.settle(receipt, "stopped")
    ledger.keep_cap(path, cap())
    assert [each.trainings for each in ledger.read_all(path).caps] == [2]


def test_the_first_cap_of_an_old_ledger_brings_it_up_too(tmp_path: Path) -> None:
    first = first_ledger(tmp_path / "l.sqlite", [])
    ledger.keep_cap(tmp_path / "l.sqlite", cap())
    assert version_of(tmp_path / "l.sqlite") == 2
    assert ledger.read_all(tmp_path / "l.sqlite") == Book(entries=(first,), caps=(cap(trainings=1),))


def test_a_ledger_of_version_1_is_read_and_the_next_row_brings_it_up(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    ledger.keep_cap(path, cap())
    ledger.charge(path, row())
    whole = ledger.read_all(path)
    changed(path, "ALTER TABLE trainings DROP COLUMN overlaps; DROP TABLE overlaps; PRAGMA user_version = 1")
    before = path.read_bytes()
    assert (ledger.read_all(path), path.read_bytes()) == (whole, before)
    ledger.keep_overlap(path, overlap())
    assert version_of(path) == 2
    assert ledger.read_all(path) == replace(whole, overlaps=(overlap(trainings=1),))
    with closing(sqlite3.connect(path)) as connection:
        assert [text for (text,) in connection.execute("SELECT sql FROM sqlite_master")] == tables_of(2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *[(f"UPDATE overlaps SET {name} = ''", "an overlap that nobody told") for name in ("at", "other", "who")],
        ("UPDATE overlaps SET trainings = 9 WHERE id = 2", "and an overlap that was told after 9: a row was taken out"),
        ("UPDATE overlaps SET trainings = 0 WHERE id = 2", "'trainings' is less than before"),
        ("DELETE FROM overlaps WHERE id = 1", "a row was taken out"),
        ("DELETE FROM overlaps", "has other overlaps than row 2 was charged under"),
        ("UPDATE trainings SET overlaps = 1", "has other overlaps than row 1 was charged under"),
        ("DELETE FROM trainings", "a row was taken out"),
    ],
)
def test_an_overlap_that_was_changed_or_taken_out_is_seen(tmp_path: Path, change: str, says: str) -> None:
    path = tmp_path / "l.sqlite"
    ledger.charge(path, row())
    ledger.keep_overlap(path, overlap())
    ledger.charge(path, row())
    ledger.keep_overlap(path, overlap(other="s"))
    assert [each.trainings for each in ledger.read_all(path).overlaps] == [1, 2]
    changed(path, change)
    with pytest.raises(UserError, match=says):
        ledger.read(path)
    before = path.read_bytes()
    for write in (lambda: ledger.charge(path, row()), lambda: ledger.keep_overlap(path, overlap())):
        with pytest.raises(UserError) as on_writing:
            write()
        assert on_writing.value.code == "damaged"
    assert path.read_bytes() == before


def test_an_old_ledger_stays_what_it_is_if_its_next_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    first_ledger(path, ["state"])
    before = path.read_bytes()

    def never(locked: frozenset[Path]) -> frozenset[Path]:
        raise UserError("No.", "No.", code="over-cap")

    for refused_row in (lambda: ledger.charge(path, row(), never), lambda: ledger.keep_cap(path, cap(), never)):
        with pytest.raises(UserError, match="No"):
            refused_row()
        assert path.read_bytes() == before


# Rows that a training can have

VALUES: list[tuple[str, Any]] = [
    *[("at", value) for value in ("", "yesterday", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02T03:04:05+01:00")],
    ("at", "0001-01-01T00:00:00+23:59"),
    *[("records", value) for value in ("", b"digest")],
    *[(name, value) for name in ("claim", "adjacency", "state") for value in ("other", "PRIVATE", b"private")],
    *[("n", value) for value in (0, -1, 1.5, "many", b"\1", 2.0**70)],
    *[("epsilon", value) for value in (None, 0.0, -1.0, 0.5, 1.5, 1e9, float("inf"), "low", b"1")],
    *[("delta", value) for value in (None, 0.0, 1.0, 1e-6, 1e-4, "1")],
    *[("mu", value) for value in (None, 0.0, -0.3, 0.3000001, 1e300, float("inf"), "x")],
    *[("eta", value) for value in (None, -1e-9, 1e-6, float("inf"))],
    *[("head", value) for value in ("", "../h.safetensors", "/h.safetensors", ".", "..", "h\0", b"h")],
    *[("sha256", value) for value in (DIGEST, "x", b"0" * 64)],
    ("state", "written"),
    *[("releases", value) for value in ("", "[", "{}", "[]", "[1]", "[{}]", "[" * 100_000, "null", b"[]")],
]


@pytest.mark.parametrize(("name", "value"), VALUES, ids=lambda each: str(each)[:20])
def test_a_row_with_a_value_that_no_training_has_is_refused(path: Path, name: str, value: object) -> None:
    changed(path, f"UPDATE trainings SET {name} = ? WHERE id = 2", value)
    refused(path, "has a row that no training wrote. In row 2|is damaged")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("rate", value) for value in ("0", "-0.5", "1.5", "1e400", "NaN", "true", "null", '"1"')],
        *[("times", value) for value in ("0", "-1", "1.5", "true", "1e3", "9" * 400)],
        *[("sigma", value) for value in ("0", "-3", "0.1", "1e-200", "1e-400", "1e400", "NaN", "Infinity", "null")],
        *[("share", value) for value in ("0", "-1", "2", "null")],
        *[("shape", value) for value in ("3", "[0]", "[1.5]", "null")],
        *[("kind", value) for value in ("3", "null")],
        ("more", "1"),
    ],
)
def test_so_is_one_with_a_release_that_no_training_made(path: Path, name: str, value: str) -> None:
    releases = json.loads(row(0.4).releases)
    releases[0][name] = "HERE"
    changed(path, "UPDATE trainings SET releases = ? WHERE id = 2", json.dumps(releases).replace('"HERE"', value))
    refused(path, "has a row that no training wrote. In row 2")


@pytest.mark.parametrize("digest", ["x", DIGEST.upper(), DIGEST[1:], DIGEST + "0", DIGEST + "\n", b"0" * 64])
def test_the_digest_of_a_head_that_was_written_is_64_digits(digest: Any) -> None:
    ledger.check(replace(row(), state="written", sha256=DIGEST))
    with pytest.raises(ValueError, match="'sha256'"):
        ledger.check(replace(row(), state="written", sha256=digest))


@pytest.mark.parametrize(("sigma", "mu"), [(1e-200, 1e200), (1e200, 1e-200)])
def test_noise_whose_square_no_float64_has_is_refused_even_where_the_figures_agree(
    path: Path, sigma: float, mu: float
) -> None:
    release = {"kind": "gram", "shape": [3, 3], "share": 1.0, "sigma": sigma, "rate": 1, "times": 1}
    agreeing = (json.dumps([release]), mu, 1.0 if mu > 1 else LEAST_EPSILON, 1 - 2**-53 if mu > 1 else 1e-5)
    changed(path, "UPDATE trainings SET releases = ?, mu = ?, epsilon = ?, delta = ?, eta = 0 WHERE id = 2", *agreeing)
    refused(path, "has a row that no training wrote. In row 2")


def test_a_training_without_a_guarantee_claims_none(path: Path) -> None:
    for claim in ("research", "non-private"):
        with pytest.raises(ValueError, match="'epsilon' makes no sense"):
            ledger.check(replace(row(claim=claim), epsilon=1.0))
        ledger.check(row(claim=claim))
    with pytest.raises(ValueError, match="sigma"):
        ledger.check(replace(row(claim="non-private"), releases=row().releases))
    with pytest.raises(ValueError, match="sigma"):
        ledger.check(replace(row(claim="research"), releases=row(claim="non-private").releases))


def test_the_samplers_distance_is_part_of_the_claim() -> None:
    """Here it takes half of δ."""
    eta = 0.5e-5 / (1 + math.e)
    paid = replace(entry(calibrated_at(FACTS, PLAN, mu_for(1.0, 1e-5, eta), "private", 1.0)), eta=eta)
    ledger.check(paid)
    for other in (0.0, 0.9 * eta, 1.1 * eta):
        with pytest.raises(ValueError, match="the figures contradict one another"):
            ledger.check(replace(paid, eta=other))


def test_only_full_passes_under_zero_out_compose_exactly() -> None:
    sampled = entry(calibrated_at(FACTS, plan_of(FACTS, (GRADIENT, 1.0), rate=0.5), 0.3))
    replaced = replace(row(), adjacency="replace-one")
    without = row(claim="non-private")
    assert ledger.composes_exactly([row(), row(0.4), without])
    assert not ledger.composes_exactly([row(), sampled])
    assert not ledger.composes_exactly([row(), replaced])


def test_what_trainings_cost_together_is_the_root_of_the_sum_of_squares() -> None:
    assert ledger.together([row(0.3), row(0.4), row(claim="non-private")], 1e-5) == pytest.approx(
        epsilon_for(0.5, 1e-5), rel=1e-9
    )
    eta = 1e-7
    helped = [replace(row(0.3), eta=eta), replace(row(0.4), eta=eta)]
    assert ledger.together(helped, 1e-5) == pytest.approx(epsilon_for(0.5, 1e-5, 2 * eta), rel=1e-9)
    plan = plan_of(FACTS, *[(GRADIENT, 1.0)] * 3, rate=0.5)
    sampled = entry(calibrated_at(FACTS, plan, 0.6))
    sigma = math.sqrt(3) / 0.6
    with pytest.MonkeyPatch.context() as patch:
        asked: list[Any] = []
        patch.setattr(claims, "poisson_epsilon", lambda *given: (asked.append(given), 0.7)[1])
        assert ledger.together([row(0.3), sampled, row(0.4)], 1e-5) == 0.7
    (((made,), mu, delta, distance),) = asked
    assert (made.rate, made.times, delta) == (0.5, 3, 1e-5)
    assert (made.sigma, mu, distance) == pytest.approx((sigma, 0.5, 3e-60))


def test_a_card_says_how_many_trainings_there_are_and_what_they_cost() -> None:
    rows = [row(0.3), row(claim="research"), row(0.4), row(claim="non-private")]
    said = ledger.standing(rows, 3, 1e-5)
    assert said.pop("epsilon") == pytest.approx(epsilon_for(0.5, 1e-5), rel=1e-9)
    assert said == {"training": 3, "trainings": 4, "private": 2, "unprotected": 2, "exact": True, "unit": "record"}
    assert ledger.standing(rows, 2, None)["epsilon"] is None
    assert ledger.standing([row(0.3), row(1e9)], 1, 1e-5)["epsilon"] is None
    assert ledger.standing([row(claim="research")], 1, 1e-5)["epsilon"] == LEAST_EPSILON
    assert not ledger.standing([replace(row(), adjacency="replace-one")], 1, 1e-5)["exact"]


def test_a_row_that_no_reader_would_take_is_not_written(path: Path) -> None:
    with pytest.raises(ValueError, match="'head' makes no sense"):
        ledger.charge(path, replace(row(), head="a/b.safetensors"))
    assert len(ledger.read(path)) == 2


@pytest.mark.parametrize("method", METHODS)
def test_every_training_makes_a_row_that_is_taken(method: str) -> None:
    """Whatever the method, the claim, the adjacency, and the size of ε and δ."""
    made = METHODS[method]
    for adjacency in get_args(Adjacency):
        facts = Facts(n=1000, m=3, d=4, adjacency=adjacency)
        wanted = [Privacy(epsilon=1.0, seed=3), Privacy(noise_multiplier=3.0), Privacy(noise_multiplier=40.0)]
        wanted += [
            Privacy(epsilon=epsilon, delta=delta, allow_large_delta=True)
            for epsilon in (1e-4, 1.001e-4, 0.01, 1.0, 8.0, 30.0, 100.0)
            for delta in (1e-30, 1e-12, 1e-5, 0.1, 0.9)
            # Where the sampler's distance from a Gaussian leaves something of δ.
            if epsilon <= 30 or delta > 1e-20
        ]
        for privacy in [*wanted, *([Privacy()] if adjacency == "zero-out" else [])]:
            ledger.check(entry(calibrate(made, facts, {}, privacy)))


def test_so_does_a_sampled_one() -> None:
    given = {"sampling_rate": 0.1, "steps": 5}
    calibrated = calibrate(METHODS["dp-sgd"], Facts(n=1000, m=3, d=4), given, Privacy(noise_multiplier=2.0))
    assert calibrated.plan.sampled
    ledger.check(entry(calibrated))


def test_a_sampled_training_that_costs_nothing_claims_the_least_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a record hardly ever takes part, δ covers all of it. An ε of 0 has no digits to be stated with."""
    monkeypatch.setattr(poisson, "mu_for", lambda *given: 1 / poisson.LEAST_SAMPLED_SIGMA)
    monkeypatch.setattr(poisson, "epsilon_for", lambda *given: 0.0)
    facts, given = Facts(n=1000, m=3, d=4), {"sampling_rate": 0.0010002, "steps": 1}
    calibrated = calibrate(METHODS["dp-sgd"], facts, given, Privacy(epsilon=1.0, delta=1e-3))
    assert calibrated.claimed is not None
    assert calibrated.claimed.epsilon == LEAST_EPSILON
    ledger.check(entry(calibrated))


# The numbers of the rows, and the file


def test_a_row_that_was_taken_out_is_missed(path: Path) -> None:
    ledger.charge(path, row(0.5))
    changed(path, "DELETE FROM trainings WHERE id = 2")
    refused(path, "has no row 2, but one with the number 3: a row was taken out")


@pytest.mark.parametrize("number", [-1, 0, 2**63 - 1])
def test_rows_have_numbers_that_a_charge_gave(path: Path, number: int) -> None:
    """After the largest number, SQLite takes numbers at random."""
    changed(path, "UPDATE trainings SET id = ? WHERE id = 2", number)
    refused(path, "a row was taken out")


def test_two_trainings_may_be_alike(path: Path) -> None:
    for _ in range(2):
        ledger.charge(path, row(0.5))
    assert ledger.read(path)[2:] == [row(0.5)] * 2


@pytest.mark.parametrize("where", ["the cells of the table's page", "the list of free pages"])
def test_a_page_that_is_damaged_is_noticed(path: Path, where: str) -> None:
    """Even where all rows can still be read."""
    data = bytearray(path.read_bytes())
    if where == "the list of free pages":
        data[36:40] = (7).to_bytes(4, "big")
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection:
            assert len(connection.execute("SELECT * FROM trainings").fetchall()) == 2
    else:
        page = int.from_bytes(data[16:18], "big")
        data[page + 8 : page + 10] = b"\xff\xf0"
        path.write_bytes(data)
    for touch in (lambda: ledger.read(path), lambda: ledger.charge(path, row(0.5))):
        with pytest.raises(UserError, match=r"damaged|malformed") as found:
            touch()
        assert found.value.code == "damaged"
    assert path.read_bytes() == bytes(data)


def test_a_charge_that_was_killed_in_its_commit_is_taken_back_and_stops_nobody(path: Path) -> None:
    """It leaves a journal beside the ledger. Who may only read could not use it."""
    killed = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for _ in range(50):
    connection.execute("UPDATE trainings SET releases = releases || zeroblob(9000)")
os._exit(9)
"""
    before = ledger.read(path)
    subprocess.run([sys.executable, "-c", killed, str(path)], check=False)
    journal = path.with_name(path.name + "-journal")
    assert journal.stat().st_size > 0
    assert ledger.read(path) == before
    assert not journal.exists()


def test_rows_lie_in_one_file_after_a_charge(path: Path, tmp_path: Path) -> None:
    """A log beside it (WAL) would be missed by a backup."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert len(ledger.read(path)) == 2
    ledger.charge(path, row(0.5))
    (tmp_path / "copy.sqlite").write_bytes(path.read_bytes())
    assert len(ledger.read(tmp_path / "copy.sqlite")) == 3
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT * FROM trainings").fetchone()
        with pytest.MonkeyPatch.context() as patch:
            real = sqlite3.connect
            patch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **{**k, "timeout": 0}))
            with pytest.raises(UserError, match="Nothing was charged") as refused:
                ledger.charge(path, row(0.6))
        assert refused.value.code in ("busy", "damaged")
    assert len(ledger.read(path)) == 3


def test_a_ledger_with_two_names_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").hardlink_to(path)
    refused(path, "has a second name")


def test_a_link_to_a_ledger_that_is_not_there_is_no_new_ledger(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(path)
    assert len(ledger.read(link)) == 2
    ledger.charge(link, row(0.5))
    assert len(ledger.read(path)) == 3
    path.rename(tmp_path / "elsewhere")
    for touch in (lambda: ledger.read(link), lambda: ledger.charge(link, row(0.5))):
        with pytest.raises(UserError, match="is a link that leads nowhere"):
            touch()
    assert not path.exists()


def test_what_is_no_file_is_no_empty_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "folder", "loop"):
        for touch in (ledger.read, lambda path: ledger.charge(path, row())):
            with pytest.raises(UserError, match=r"cannot be (read|written)"):
                touch(tmp_path / name)


# Caps are rows, too


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory, two: bytes) -> bytes:
    """The file of a ledger with two trainings, two caps, and one training more."""
    made = tmp_path_factory.mktemp("five") / "set.ledger.sqlite"
    made.write_bytes(two)
    for number in (3.0, 2.0):
        ledger.keep_cap(made, cap(number))
    ledger.charge(made, row(0.5))
    return made.read_bytes()


@pytest.fixture
def capped(path: Path, five: bytes) -> Path:
    """A ledger with two trainings, two caps, and one training more."""
    path.write_bytes(five)
    return path


def test_every_change_of_a_cap_is_a_row_that_stays(capped: Path) -> None:
    ledger.keep_cap(capped, cap(None, note=None))
    ledger.keep_cap(capped, cap(4.0))
    assert ledger.read_all(capped).caps == (
        cap(3.0, trainings=2),
        cap(2.0, trainings=2),
        cap(None, note=None, trainings=3),
        cap(4.0, trainings=3),
    )
    assert [each.mu for each in ledger.read(capped)] == [0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("at", value) for value in ("", "2026-01-02", b"2026")],
        *[("records", value) for value in ("", b"digest")],
        *[("epsilon", value) for value in (None, 0.0, 2.1, 1e9, float("inf"), "low")],
        *[("delta", value) for value in (None, 0.0, 1.0, 2e-5, "1")],
        *[("mu", value) for value in (None, 0.0, -0.3, 0.6, 1e300, float("inf"), "x")],
        *[("eta", value) for value in (None, -1e-9, 1e-6, 2.0)],
        *[("who", value) for value in ("", "x" * 101, b"officer", "a\0b")],
        *[("note", value) for value in ("", "x" * 501, b"plan")],
        *[("trainings", value) for value in (-1, 0, 1, 3, 4, 1.5, "many")],
    ],
    ids=lambda each: str(each)[:20],
)
def test_a_cap_with_a_value_that_none_has_is_refused(capped: Path, name: str, value: object) -> None:
    changed(capped, f"UPDATE caps SET {name} = ? WHERE id = 2", value)
    refused(capped, "has a cap that nobody set. In its row 2|has other caps than row|is damaged")


@pytest.mark.parametrize("number", [1, 2])
def test_a_cap_that_was_taken_out_is_missed(capped: Path, number: int) -> None:
    """The first one by the numbers, and the last one by the training that was charged under it."""
    changed(capped, "DELETE FROM caps WHERE id = ?", number)
    refused(capped, "a row was taken out|one was taken out or changed")


def test_so_is_a_training_before_a_cap(path: Path) -> None:
    ledger.keep_cap(path, cap())
    changed(path, "DELETE FROM trainings WHERE id = 2")
    refused(path, "has 1 trainings, and a cap that was set after 2: a row was taken out|has other caps than row 2")


@pytest.mark.parametrize("value", [0, 1, 3, -1, 2.5, "two"])
def test_a_training_knows_how_many_caps_were_before_it(capped: Path, value: object) -> None:
    changed(capped, "UPDATE trainings SET caps = ? WHERE id = 3", value)
    refused(capped, "has other caps than row 3 was charged under|is damaged")


@pytest.mark.parametrize("broken", [{"mu": 0.6}, {"delta": 0.0}, {"who": ""}, {"note": "x" * 501}, {"eta": None}])
def test_a_cap_that_no_reader_would_take_is_not_written(path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"makes no sense|contradict"):
        ledger.keep_cap(path, cap(**broken))
    assert ledger.read_all(path).caps == ()


@pytest.mark.parametrize("epsilon", [1e-4, 1e-3, 0.5, 1.0, 8.0, 30.0, 100.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 0.1, 0.9])
def test_every_cap_that_can_be_set_is_one_that_is_read(epsilon: float, delta: float) -> None:
    ledger.check_cap(cap(epsilon, delta=delta, mu=limit.mu_of_cap(epsilon, delta)))


def test_names_and_purposes_may_be_any_text_of_some_length(path: Path) -> None:
    for who, purpose in (("é\u202e\x1b[2J", None), ("x" * 100, "y" * 500), (None, "\n")):
        signed = replace(row(), who=who, purpose=purpose)
        ledger.charge(path, signed)
        assert ledger.read(path)[-1] == signed
    for who, purpose in (("", None), ("x" * 101, None), (None, ""), (None, "y" * 501), ("\ud800", None)):
        with pytest.raises(ValueError, match="makes no sense"):
            ledger.charge(path, replace(row(), who=who, purpose=purpose))
    assert len(ledger.read(path)) == 5


@pytest.mark.parametrize(("name", "value"), [("who", ""), ("who", "x" * 101), ("purpose", b"x"), ("purpose", "a\0b")])
def test_so_they_are_in_the_rows_that_are_read(path: Path, name: str, value: object) -> None:
    changed(path, f"UPDATE trainings SET {name} = ? WHERE id = 2", value)
    refused(path, "has a row that no training wrote. In row 2")


# The row is read back


def test_a_charge_to_a_file_that_was_exchanged_meanwhile_says_that_it_may_stand(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read back is the file of that name, not the one that was written."""
    older, real = path.read_bytes(), tables.entries_in

    def exchanged(connection: sqlite3.Connection) -> Any:
        monkeypatch.undo()
        path.unlink()
        path.write_bytes(older)
        return real(connection)

    monkeypatch.setattr(tables, "entries_in", exchanged)
    with pytest.raises(UserError, match="The training may be charged: 'dpfc budget' says whether it is"):
        ledger.charge(path, row(0.5))
    assert len(ledger.read(path)) == 2


def test_what_became_of_a_training_is_read_back_too(path: Path) -> None:
    receipt: Receipt = ledger.charge(path, row(0.5))
    changed(path, "CREATE TRIGGER t AFTER UPDATE ON trainings BEGIN DELETE FROM trainings WHERE id = 1; END")
    with pytest.raises(UserError, match="has more in it"):
        ledger.settle(receipt, "written", "other.safetensors", DIGEST)
    changed(path, "DROP TRIGGER t")
    assert ledger.read(path)[2] == row(0.5)
    ledger.settle(receipt, "written", "other.safetensors", DIGEST)
    assert ledger.read(path)[2] == replace(row(0.5), state="written", head="other.safetensors", sha256=DIGEST)
