"""The file of a ledger: all facts or none, and nothing that dpfc did not write."""

import hashlib
import itertools
import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dpfc_cli.errors import UserError, notes
from dpfc_cli.ledger import file as file_module
from dpfc_cli.ledger.facts import Fact, Outcome, new_id
from dpfc_cli.ledger.file import TABLES, append, ledger_path, read
from dpfc_cli.ledger.totals import Ledger
from tests.closed import closed
from tests.ledger.facts import a_cap, a_charge, a_set, changed, kept, written
from tests.support import refuses

SET = a_set("ward7")
CHARGE = a_charge(SET)
FACTS: list[Fact] = [SET, CHARGE, a_charge(SET, 0.5), a_cap(8.0), Outcome(by="Ada", charge=CHARGE.id, state="written")]
MORE = a_charge(SET, 0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with five facts, in a folder of its own."""
    written(tmp_path / "a?mode=memory#%41 é" / "ledger.sqlite", *FACTS)
    return tmp_path / "a?mode=memory#%41 é" / "ledger.sqlite"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a lock."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, "timeout": 0}))


def refused(path: Path, *codes: str) -> None:
    """Reading and writing are refused with these codes, and everything stays as it is."""
    before = kept(path.parent)
    doors: list[Callable[[Path], object]] = [read, lambda path: written(path, MORE)]
    for touch, code in zip(doors, codes * (2 // len(codes)), strict=True):
        with refuses(code) as error:
            touch(path)
        assert error.value.fields["path"] == str(path)
    assert kept(path.parent) == before


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM facts ORDER BY n").fetchall()


def with_rows(path: Path, rows: Sequence[tuple[Any, ...]]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("DELETE FROM facts")
        connection.executemany("INSERT INTO facts VALUES (?, ?, ?, ?, ?)", rows)


def hashed(rows: Sequence[tuple[str, str, str]]) -> list[tuple[Any, ...]]:
    """Rows of ids, kinds and bodies, with numbers and hashes as somebody who knows the format makes them."""
    found, end = [], ""
    for n, row in enumerate(rows, start=1):
        end = hashlib.sha256(json.dumps([end, n, *row]).encode()).hexdigest()
        found.append((n, *row, end))
    return found


# What others did to the rows


def test_a_row_that_was_changed_taken_out_put_in_or_exchanged_is_refused(path: Path, tmp_path: Path) -> None:
    rows = rows_of(path)
    # Another ledger, with the same beginning.
    twin = written(tmp_path / "twin" / "ledger.sqlite", *FACTS[:2], MORE, a_cap(7.0), FACTS[4])
    assert twin.facts[:2] == tuple(FACTS[:2])
    others = rows_of(twin.path)
    assert others[:2] == rows[:2]
    hostile = [
        *(rows[:i] + rows[i + 1 :] for i in range(len(rows) - 1)),
        *([*rows[:i], *((n - 1, *row) for n, *row in rows[i + 1 :])] for i in range(len(rows) - 1)),
        *([*rows[:i], (i + 1, *others[-1][1:]), *((n + 1, *row) for n, *row in rows[i:])] for i in range(len(rows))),
        *([*rows[:i], others[i], *rows[i + 1 :]] for i in range(2, len(rows) - 1)),
        [*rows, (6, *others[2][1:])],
        [*rows, (6, *rows[1][1:])],
        [*rows[:-1], others[-1]],
        [*rows[:-1], (2**63 - 1, *rows[-1][1:])],
        [*rows[:-1], (-1, *rows[-1][1:])],
    ]
    for i in range(len(rows)):
        for j in range(i + 1, len(rows)):
            swapped = list(rows)
            swapped[i], swapped[j] = (i + 1, *rows[j][1:]), (j + 1, *rows[i][1:])
            hostile.append(swapped)
        for column in range(1, 5):
            for odd in ("", "x", rows[i][column] + " ", b"bytes", 7, 2**62, 0.5):
                row = list(rows[i])
                row[column] = odd
                hostile.append([*rows[:i], tuple(row), *rows[i + 1 :]])
        body = rows[i][3].replace('"Ada"', '"Eve"').replace("officer", "intruder")
        assert body != rows[i][3]
        # A hash for the changed row alone does not help, but for the last row: nothing comes after it.
        for end in {rows[i][4], *([hashed([*(r[1:4] for r in rows[:i]), (*rows[i][1:3], body)])[-1][4]] * (i < 4))}:
            hostile.append([*rows[:i], (i + 1, *rows[i][1:3], body, end), *rows[i + 1 :]])
    for each in hostile:
        with_rows(path, each)
        refused(path, "damaged")
    with_rows(path, rows)
    assert list(read(path).facts) == FACTS


def test_facts_that_make_no_sense_are_refused_even_where_all_hashes_were_made_anew(path: Path) -> None:
    rows = [(fact.id, fact.kind, fact.body) for fact in FACTS]
    strange: list[tuple[str, str, str]] = []
    # Text that is no JSON, or none that dpfc writes.
    strange += [(new_id(), kind, body) for kind in ("set", "x") for body in ("", "{", "null", "[" * 5000, "NaN", "[]")]
    pairs = json.dumps(list(json.loads(SET.body).items()))
    strange += [(new_id(), "set", pairs), (new_id(), "cap", SET.body), (SET.id.upper(), "set", SET.body)]
    for each in strange:
        with_rows(path, hashed([*rows, each]))
        refused(path, "damaged")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON facts BEGIN DELETE FROM facts WHERE n = NEW.n; END",
        "CREATE TRIGGER t BEFORE INSERT ON facts BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW v AS SELECT * FROM facts",
        "CREATE INDEX i ON facts (id)",
        "CREATE TABLE other (x)",
        "ALTER TABLE facts ADD COLUMN more",
        "ALTER TABLE facts RENAME COLUMN hash TO digest",
        "ALTER TABLE facts RENAME TO rows; CREATE VIEW facts AS SELECT * FROM rows",
        "DROP TABLE facts",
        "DROP TABLE answers",
        *(
            f"ALTER TABLE {name} RENAME TO old; {table}; INSERT INTO {name} SELECT * FROM old; DROP TABLE old"
            for name, table in (
                ("facts", TABLES[0].replace("PRIMARY KEY", "PRIMARY KEY ON CONFLICT IGNORE")),
                ("facts", TABLES[0].replace("id TEXT NOT NULL", "id TEXT NOT NULL UNIQUE ON CONFLICT REPLACE")),
                ("facts", TABLES[0].replace("body TEXT", "body TEXT COLLATE NOCASE")),
                ("facts", TABLES[0].replace("body TEXT", "body\u00a0TEXT")),
                ("facts", TABLES[0].replace("body TEXT", "body  TEXT")),
                ("facts", TABLES[0] + " WITHOUT ROWID"),
                ("facts", TABLES[0].replace("TABLE facts", 'TABLE "facts"')),
                ("answers", TABLES[1].replace("number)", "number) ON CONFLICT IGNORE")),
            )
        ),
        "PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = CAST(x'ff' AS TEXT)",
    ],
)
def test_a_file_with_anything_but_our_table_is_refused(path: Path, sql: str) -> None:
    changed(path, sql)
    refused(path, "damaged")


def test_a_file_that_is_damaged_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    cells = bytearray(whole)
    page = int.from_bytes(cells[16:18], "big")
    cells[2 * page + 8 : 2 * page + 10] = b"\xff\xf0"
    for data in (cells, whole[:5000], b"no ledger at all, but longer than the header of one" * 20, b"x"):
        path.write_bytes(bytes(data))
        refused(path, "damaged")


# Other names, other kinds of files, and places that are closed


def test_the_ledger_of_a_set_is_the_one_of_the_folder_where_the_set_really_lies(tmp_path: Path) -> None:
    (tmp_path / "disk" / "set").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "set")
    assert ledger_path(tmp_path / "link") == tmp_path.resolve() / "disk" / "ledger.sqlite"
    assert read(ledger_path(tmp_path / "link")).facts == ()
    assert kept(tmp_path) == {}


def test_a_link_is_followed_and_a_second_name_or_a_dead_link_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    link = tmp_path / "link" / "ledger.sqlite"
    link.symlink_to(path)
    written(link, MORE)
    assert list(read(path).facts) == [*FACTS, MORE] == list(read(link).facts)
    (tmp_path / "backup").hardlink_to(path)
    refused(path, "damaged")
    path.rename(tmp_path / "elsewhere")
    refused(link, "damaged")
    assert not path.exists()


def test_what_is_no_file_is_no_empty_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("pipe", "folder", "loop"):
        refused(tmp_path / name, "unreadable", "unwritable")
    # A write that was stopped before its commit leaves an empty file.
    (tmp_path / "empty").touch()
    assert read(tmp_path / "empty").facts == ()
    assert list(written(tmp_path / "empty", *FACTS).facts) == FACTS


def test_a_place_that_is_closed_is_told(path: Path) -> None:
    with closed(path.parent, mode=0o500), closed(path, mode=0o400):
        assert list(read(path).facts) == FACTS
        with refuses("unwritable"):
            written(path, MORE)
        with refuses("unwritable"):
            written(path.with_name("new.sqlite"), SET)
    with closed(path):
        refused_codes = []
        for touch in (read, lambda path: written(path, MORE)):
            with pytest.raises(UserError) as error:
                touch(path)
            refused_codes.append(error.value.code)
    assert refused_codes == ["unreadable", "unwritable"]
    assert list(read(path).facts) == FACTS


def test_a_new_ledger_is_its_owners_alone_and_a_mode_that_it_was_given_stays(tmp_path: Path) -> None:
    """It names persons and purposes. SQLite gives its journal the mode of the ledger."""
    before = os.umask(0)
    try:
        new = written(tmp_path / "ledger.sqlite", SET).path
        modes = [stat.S_IMODE(new.stat().st_mode)]
        new.chmod(0o660)
        written(new, CHARGE)
    finally:
        os.umask(before)
    assert [*modes, stat.S_IMODE(new.stat().st_mode)] == [0o600, 0o660]


def run(program: str, *given: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, *map(str, given)]
    return subprocess.run(words, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])


FULL = """
import resource, signal, sys
from pathlib import Path
from dpfc_cli.errors import UserError
from tests.ledger.facts import a_set, written
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    try:
        written(Path(sys.argv[1]), *(a_set() for _ in range(100)))
    except UserError as error:
        print(error.code)
"""


def test_where_there_is_no_room_nothing_is_written(path: Path) -> None:
    assert run(FULL, path, 100, 9000, 20_000).stdout == "unwritable\n" * 3
    assert list(read(path).facts) == FACTS


# All or nothing


def test_what_is_refused_in_the_transaction_leaves_the_file_as_it_was(path: Path) -> None:
    def refusing(ledger: Ledger) -> list[Fact]:
        raise UserError("No.", "Leave it.", code="over-cap")

    before = kept(path.parent)
    with refuses("over-cap"):
        append(path, refusing, "It")
    assert list(append(path, lambda ledger: [], "It").facts) == FACTS
    assert kept(path.parent) == before
    new = path.with_name("new.sqlite")
    makes: list[Callable[[Ledger], list[Fact]]] = [refusing, lambda ledger: []]
    for make in makes:
        with suppress(UserError):
            assert append(new, make, "It").facts == ()
        assert read(new).facts == ()


def test_what_would_be_read_back_otherwise_is_not_written(path: Path) -> None:
    odd: Any = [SET.id]
    with refuses("damaged"):
        written(path, a_set(replaces=odd))
    assert list(read(path).facts) == FACTS


def test_while_one_decides_nobody_else_writes_and_the_next_one_sees_what_was_written(
    path: Path, impatient: None
) -> None:
    codes = []

    def decides(ledger: Ledger) -> list[Fact]:
        assert list(ledger.facts) == FACTS
        for touch in (lambda: written(path, a_set()), lambda: changed(path, "DELETE FROM facts WHERE n = 5")):
            try:
                touch()
            except (UserError, sqlite3.OperationalError) as error:
                codes.append(getattr(error, "code", "locked"))
        return [MORE]

    append(path, decides, "It")
    assert codes == ["busy", "locked"]
    assert list(append(path, lambda ledger: [a_set(name=str(len(ledger.facts)))], "It").facts)[5:6] == [MORE]
    assert getattr(read(path).facts[-1], "name", None) == "6"


def test_facts_lie_in_one_file_after_a_write(path: Path, tmp_path: Path, impatient: None) -> None:
    """A log beside it (WAL) would be missed by a backup."""
    changed(path, "PRAGMA journal_mode = WAL")
    assert list(read(path).facts) == FACTS
    written(path, MORE)
    (tmp_path / "copy.sqlite").write_bytes(path.read_bytes())
    assert list(read(tmp_path / "copy.sqlite").facts) == [*FACTS, MORE]
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("SELECT * FROM facts").fetchone()
        with refuses("busy"):
            written(path, a_set())
    assert list(read(path).facts) == [*FACTS, MORE]


def test_what_is_written_is_on_disk_with_its_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Level 3 (EXTRA) also syncs the folder. Without it a power cut could take a fact back."""
    levels, connect = list[int](), sqlite3.connect

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql.startswith("INSERT"):
                levels.extend(super().execute("PRAGMA synchronous").fetchone())
            return super().execute(sql, *given)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Watched))
    written(path, MORE)
    assert levels == [3]


KILLED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
for _ in range(50):
    connection.execute("UPDATE facts SET body = body || zeroblob(9000)")
os._exit(9)
"""


def test_a_write_that_was_killed_in_its_commit_is_taken_back_and_stops_nobody(path: Path) -> None:
    """It leaves a journal beside the ledger. Who may only read could not use it."""
    run(KILLED, path)
    journal = path.with_name(path.name + "-journal")
    assert journal.stat().st_size > 0
    assert list(read(path).facts) == FACTS
    assert not journal.exists()


STEPS = """
import os, sys
from pathlib import Path
from dpfc_cli.ledger import file
from dpfc_cli.ledger.file import read
from tests.ledger.facts import a_set, written
path, step, seen = Path(sys.argv[1]), 0, []
while True:
    step += 1
    child = os.fork()
    if not child:
        left = step
        def trace(frame, event, given):
            global left
            if frame.f_code.co_filename != file.__file__:
                return None
            left -= event == "line"
            if not left:
                os._exit(9)
            return trace
        sys.settrace(trace)
        written(path, a_set(name="one"), a_set(name="two"))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    names = [fact.name for fact in read(path).facts]
    assert names in (seen, [*seen, "one", "two"]), (step, names)
    if code == 0:
        assert names == [*seen, "one", "two"]
        break
    if names != seen:
        path.unlink()
print(step)
"""


def test_a_write_that_is_killed_at_any_line_leaves_all_facts_or_none(tmp_path: Path) -> None:
    ended = run(STEPS, tmp_path / "ledger.sqlite")
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 50


def at_line(number: int, does: Callable[[], object]) -> Callable[[FrameType, str, Any], Any]:
    """What makes something happen before a line of the ledger's file, counted as they are run."""
    left = number

    def trace(frame: FrameType, event: str, given: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != file_module.__file__:
            return None
        left -= event == "line"
        if not left:
            sys.settrace(None)
            does()
        return trace

    return trace


@pytest.mark.parametrize("what", ["stopped", "exchanged"])
def test_what_is_said_of_a_write_that_was_stopped_or_whose_file_was_exchanged_is_true(
    tmp_path: Path, what: str, impatient: None
) -> None:
    """At any line. Ctrl-C leaves a note. A file that another one took the place of is no success."""
    older = written(tmp_path / "older.sqlite", SET).path.read_bytes()
    told, tracing = set[str](), sys.gettrace()
    for step in itertools.count(1):
        path = tmp_path / str(step) / "ledger.sqlite"
        path.parent.mkdir()
        path.write_bytes(older)
        traced = [0]

        def does(path: Path = path, traced: list[int] = traced) -> None:
            traced[0] = 1
            if what == "stopped":
                raise KeyboardInterrupt
            path.rename(path.with_name("elsewhere"))
            path.write_bytes(older)

        said = ""
        try:
            sys.settrace(at_line(step, does))
            append(path, lambda ledger: [CHARGE], "The charge")
            said = "success"
        except KeyboardInterrupt as end:
            said = "".join(notes(end)).replace(str(path), "")
        except UserError as error:
            said = error.what.replace(str(path), "")
        finally:
            sys.settrace(tracing)
        if not traced[0]:
            assert said == "success"
            break
        facts = read(path).facts
        assert facts in ((SET,), (SET, CHARGE))
        said = next((each for each in ("success", "may be", "Nothing was", "written") if each in said), "nothing")
        if what == "exchanged" and said == "success":
            # It was exchanged before all, or after what is in it was read back.
            assert facts == (SET, CHARGE) or "may be" in told, step
        assert facts == (SET,) if said == "Nothing was" else said != "written" or facts == (SET, CHARGE), (step, said)
        told.add(said)
    assert told >= ({"Nothing was", "written"} if what == "stopped" else {"Nothing was", "may be", "success"})
