"""A ledger is exactly our tables. Nothing is charged to any other file."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from dpfc_cli.training.ledger import Book, Entry, tables

from dpfc_cli.errors import UserError
from dpfc_cli.training import ledger
from tests.training.rows import cap, changed, overlap, refused, row, tables_of, version_of

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
    "a trigger of the name of a table": "CREATE TRIGGER caps AFTER INSERT ON trainings BEGIN DELETE FROM caps; END",
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


def test_a_ledger_lies_beside_the_real_folder_of_its_set_and_has_no_rows_before_the_first_charge(
    tmp_path: Path,
) -> None:
    """A charge that was stopped before its commit leaves an empty file."""
    (tmp_path / "disk" / "a.v2").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "a.v2")
    path = ledger.ledger_path(tmp_path / "link")
    assert path == tmp_path.resolve() / "disk" / "a.v2.ledger.sqlite"
    assert (tables.size_of(path), ledger.read_all(path), ledger.read(path)) == (0, Book(), [])
    path.touch()
    assert (tables.size_of(path), ledger.read_all(path)) == (0, Book())
    (tmp_path / "other").symlink_to(path)
    assert ledger.real(tmp_path / "other") == path


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_more_or_less_than_our_table_is_refused(path: Path, change: str) -> None:
    changed(path, CHANGES[change])
    refused(path, "has (more in it than|no|another) .*table|is of version (3|-1), and this dpfc knows versions 0 to 2")


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
        ("head TEXT NOT NULL", "head TEXT\u00a0NOT NULL"),
        ("n INTEGER NOT NULL", "n INTEGER NOT NULL CHECK (n > 0)"),
        ("n INTEGER NOT NULL", "n TEXT NOT NULL"),
        ("epsilon REAL", "epsilon REAL GENERATED ALWAYS AS (0.1) STORED"),
        ("epsilon REAL", "epsilon REAL REFERENCES other (a)"),
        ("sha256 TEXT", "sha256 TEXT, UNIQUE (mu) ON CONFLICT REPLACE"),
        ("sha256 TEXT)", "sha256 TEXT, more TEXT)"),
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
    ("which", "ours", "theirs"),
    [
        ("caps", "at TEXT NOT NULL", "at TEXT"),
        ("caps", "mu REAL", "mu REAL DEFAULT 9"),
        ("caps", "mu REAL", "mu REAL UNIQUE ON CONFLICT REPLACE"),
        ("caps", "mu REAL, eta REAL", "eta REAL, mu REAL"),
        ("caps", "note TEXT, ", ""),
        ("caps", "persons TEXT)", "persons TEXT) STRICT"),
        ("caps", "id INTEGER PRIMARY KEY", "id INTEGER PRIMARY KEY ON CONFLICT REPLACE"),
        ("caps", "TABLE caps", "TABLE Caps"),
        ("overlaps", "other TEXT NOT NULL", "other TEXT"),
        ("overlaps", "other TEXT NOT NULL", "other TEXT NOT NULL UNIQUE ON CONFLICT IGNORE"),
        ("overlaps", "name TEXT NOT NULL, ", ""),
        ("overlaps", "trainings INTEGER NOT NULL)", "trainings INTEGER NOT NULL) STRICT"),
        ("overlaps", "TABLE overlaps", "TABLE Overlaps"),
    ],
)
def test_so_is_another_table_of_caps_or_overlaps(tmp_path: Path, which: str, ours: str, theirs: str) -> None:
    made = dict(zip(("trainings", "caps", "overlaps"), tables_of(2), strict=True))
    text = made[which].replace(ours, theirs)
    assert text != made[which]
    changed(tmp_path / "l.sqlite", "; ".join((*{**made, which: text}.values(), "PRAGMA user_version = 2")))
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
