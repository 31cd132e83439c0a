"""Rows, caps and the file of a ledger: what was taken out is missed, and what was written is read back."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.ledger import Book, Receipt, tables, writing

from dpfc_cli.errors import UserError
from dpfc_cli.training import ledger, limit
from tests.training.rows import DIGEST, cap, changed, overlap, refused, row

CLOSED = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)

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


def test_a_ledger_that_does_not_give_up_its_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            return super().execute("PRAGMA journal_mode = WAL" if "journal_mode" in sql else sql, *given)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Stubborn))
    with pytest.raises(UserError, match=r"keeps rows in a second file \(WAL\).* Nothing was charged"):
        ledger.charge(path, row(0.5))
    assert len(ledger.read(path)) == 2


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
        for touch, code in ((ledger.read, "unreadable"), (lambda path: ledger.charge(path, row()), "unwritable")):
            with pytest.raises(UserError, match=r"cannot be (read|written)") as refused:
                touch(tmp_path / name)
            assert (refused.value.code, refused.value.remedy[:10]) == (code, "Make that ")


def test_a_ledger_that_another_program_writes_to_is_busy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who only reads it does not ask for more than that."""
    opened, connect = list[str](), sqlite3.connect

    def at_once(name: str, **given: Any) -> sqlite3.Connection:
        opened.append(name.split("?mode=")[-1])
        made: sqlite3.Connection = connect(name, **{**given, "timeout": 0})
        return made

    monkeypatch.setattr(sqlite3, "connect", at_once)
    with closing(connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for touch in (ledger.read, lambda path: ledger.charge(path, row(0.5))):
            with pytest.raises(UserError) as refused:
                touch(path)
            assert (refused.value.code, "try again" in refused.value.remedy) == ("busy", True)
    assert opened == ["ro", "rwc"]


@pytest.mark.parametrize(
    ("number", "read", "written", "remedy"),
    [
        *[(sqlite3.SQLITE_BUSY | more << 8, "busy", "busy", "try again") for more in (0, 1, 2)],
        (sqlite3.SQLITE_LOCKED, "busy", "busy", "try again"),
        *[(sqlite3.SQLITE_READONLY | more << 8, "unreadable", "unwritable", "Make that place") for more in (0, 5)],
        *[(code, "unreadable", "unwritable", "Make that place") for code in CLOSED],
        *[(code, "damaged", "damaged", "Restore it") for code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, None)],
    ],
)
def test_of_each_error_of_sqlite_it_is_told_what_to_do(
    number: int | None, read: str, written: str, remedy: str
) -> None:
    """Its code may have details in the upper bits. An error of Python's own module has none."""
    error = sqlite3.OperationalError("no")
    if number is not None:
        error.sqlite_errorcode = number
    assert (tables.code_of(error), tables.code_of(error, "unwritable")) == (read, written)
    assert remedy in tables.remedy_of(error)


def test_nobody_changes_a_ledger_between_its_schema_and_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, tried = tables.layout, list[str]()

    def meanwhile(connection: sqlite3.Connection) -> Any:
        found = checked(connection)
        with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError) as refused:
            other.executescript("DELETE FROM trainings WHERE id = 2")
        tried.append(str(refused.value))
        return found

    monkeypatch.setattr(tables, "layout", meanwhile)
    assert len(ledger.read(path)) == 2
    assert set(tried) == {"database is locked"}


# Caps are rows, too


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
        *[("unit", "person"), ("persons", DIGEST)],
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


def test_so_are_all_trainings_before_a_cap(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    ledger.charge(path, row(0.3))
    ledger.keep_cap(path, cap())
    changed(path, "DELETE FROM trainings")
    refused(path, "has 0 trainings, and a cap that was set after 1: a row was taken out|has other caps than row 1")


@pytest.mark.parametrize("value", [0, 1, 3, -1, 2.5, "two"])
def test_a_training_knows_how_many_caps_were_before_it(capped: Path, value: object) -> None:
    changed(capped, "UPDATE trainings SET caps = ? WHERE id = 3", value)
    refused(capped, "has other caps than row 3 was charged under|is damaged")


@pytest.mark.parametrize("broken", [{"mu": 0.6}, {"delta": 0.0}, {"who": ""}, {"note": "x" * 501}, {"eta": None}])
def test_a_cap_that_no_reader_would_take_is_not_written(path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"makes no sense|contradict"):
        ledger.keep_cap(path, cap(**broken))
    assert ledger.read_all(path).caps == ()


@pytest.mark.parametrize("broken", [{"other": ""}, {"name": ""}, {"records": ""}, {"who": "x" * 101}, {"at": "now"}])
def test_so_is_an_overlap(path: Path, broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        ledger.keep_overlap(path, overlap(**broken))
    assert ledger.read_all(path).overlaps == ()


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


@pytest.mark.parametrize(
    ("write", "row", "nothing"),
    [
        (ledger.charge, row(0.5), "Nothing was charged, and nothing is trained that is not charged."),
        (ledger.keep_cap, cap(), "The cap is as it was."),
        (ledger.keep_overlap, overlap(), "It is not kept."),
    ],
    ids=["a training", "a cap", "an overlap"],
)
def test_a_row_that_is_kept_otherwise_is_taken_back(
    path: Path, write: Any, row: Any, nothing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read before the commit. Afterwards it could only be said that it may be there."""
    before, real = path.read_bytes(), writing._insert
    monkeypatch.setattr(
        writing, "_insert", lambda connection, table, values: real(connection, table, {**values, "who": "Eve"})
    )
    with pytest.raises(UserError) as refused:
        write(path, row)
    assert refused.value.what == f"The ledger '{path}' does not keep the row that was written. {nothing}"
    assert path.read_bytes() == before


def test_rows_that_others_add_behind_it_change_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process charges before the row is read back."""
    real = tables.read_all

    def meanwhile(path: Path) -> Book:
        monkeypatch.undo()
        ledger.charge(path, row(0.6))
        return real(path)

    monkeypatch.setattr(tables, "read_all", meanwhile)
    receipt = ledger.charge(path, row(0.5))
    assert (receipt.number, receipt.entry) == (3, row(0.5))
    assert [each.mu for each in ledger.read(path)[2:]] == [0.5, 0.6]


def test_a_row_is_on_disk_with_its_folder_before_the_charge_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Level 3 (EXTRA) also syncs the folder. Without it a power cut could take a row back."""
    levels, connect = list[int](), sqlite3.connect

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                levels.extend(super().execute("PRAGMA synchronous").fetchone())
            return super().execute(sql, *given)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Watched))
    ledger.charge(path, row(0.5))
    assert levels == [3]


def test_what_became_of_a_training_is_read_back_too(path: Path) -> None:
    receipt: Receipt = ledger.charge(path, row(0.5))
    changed(path, "CREATE TRIGGER t AFTER UPDATE ON trainings BEGIN DELETE FROM trainings WHERE id = 1; END")
    with pytest.raises(UserError, match="has more in it"):
        ledger.settle(receipt, "written", "other.safetensors", DIGEST)
    changed(path, "DROP TRIGGER t")
    assert ledger.read(path)[2] == row(0.5)
    ledger.settle(receipt, "written", "other.safetensors", DIGEST)
    assert ledger.read(path)[2] == replace(row(0.5), state="written", head="other.safetensors", sha256=DIGEST)


def test_a_row_is_found_again_until_it_says_that_there_is_a_head(path: Path) -> None:
    """Whoever goes on with a training has its row. There is no second head for one charge."""
    first = ledger.charge(path, row(0.5))
    ledger.settle(first, "stopped")
    ledger.charge(path, row(0.6))
    again = ledger.receipt_of(path, row(0.5))
    assert again is not None
    stopped = replace(row(0.5), state="stopped")
    assert again == replace(first, entry=stopped, entries=(*first.entries[:2], stopped))
    ledger.settle(again, "written", "h.safetensors", DIGEST)
    assert ledger.receipt_of(path, row(0.5)) is None
    for receipt in (first, again):
        with pytest.raises(UserError, match="has no open row of this training any more"):
            ledger.settle(receipt, "written", "h.safetensors", DIGEST)
