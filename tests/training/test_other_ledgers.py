"""The ledgers around that of a set: that all are found, and which rows of theirs count."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.account import account_of
from dpfc_cli.training.ledger import Book, Entry

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST, SplitFacts
from dpfc_cli.training import ledger, other_ledgers
from tests.closed import closed, failing
from tests.support import bare_manifest
from tests.training.rows import cap, overlap, row
from tests.training.sharing import of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFC_FEATURES", raising=False)


def ledger_of(place: Path, mu: float = 0.3) -> Path:
    """The ledger of a set that is no more, with one training on the records of `row`."""
    place.parent.mkdir(exist_ok=True)
    ledger.charge(made := ledger.ledger_path(place), replace(row(mu), records="r"))
    return made


def linked(name: str, to: Path) -> None:
    """A set in another folder, with a link to it among the features. Its manifest says nothing."""
    to.mkdir(parents=True)
    (to / MANIFEST).write_text("{}")
    Path("features", name).symlink_to(to.resolve())


# What is closed to us. A ledger there may have trainings on the same records.


def test_a_folder_that_cannot_be_listed_is_refused() -> None:
    own = ledger_of(Path("features", "own"))
    ledger_of(Path("features", "other"))
    with closed(own.parent, mode=0o300), pytest.raises(UserError, match=r"features' cannot be read.*Permission"):
        account_of(own)
    with closed(own.parent, mode=0o400), pytest.raises(UserError, match=r"cannot be read as a ledger.*Permission"):
        account_of(own)
    own = ledger_of(Path("apart", "own"))
    with closed(Path("features")), pytest.raises(UserError, match=r"features' cannot be read.*Permission"):
        account_of(own)


def test_links_into_a_closed_folder_hide_no_others() -> None:
    own, away = ledger_of(Path("features", "own")), Path("closed")
    for i in range(4):
        linked(f"closed {i}", away / f"{i}")
        linked(f"open {i}", Path(f"open {i}", "set"))
        ledger_of(Path(f"open {i}", "set"))
    with closed(away):
        found = account_of(own)
    assert len(found.linked) == 4
    assert found.not_counted == tuple(f"closed {i}" for i in range(4))


def test_a_disk_that_fails_behind_a_link_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own, stat = ledger_of(Path("features", "own")), os.stat
    linked("link", Path("away", "set"))
    Path("features", "round").symlink_to("round")
    assert account_of(own).not_counted == ("round",)

    def failed(path: Any, **how: Any) -> os.stat_result:
        return failing(errno.EIO)() if str(path).endswith(f"link/{MANIFEST}") else stat(path, **how)

    monkeypatch.setattr(os, "stat", failed)
    with pytest.raises(UserError, match="cannot be read: Input/output error"):
        account_of(own)


def test_the_ledger_of_a_closed_set_counts() -> None:
    own = ledger_of(Path("features", "own"))
    linked("link", Path("away", "set"))
    ledger_of(Path("away", "set"))
    with closed(Path("away", "set")):
        found = account_of(own)
    assert [name for name, _ in found.linked] == ["set"]
    assert found.not_counted == ()


def test_of_a_folder_that_cannot_be_listed_the_ledgers_of_linked_sets_count() -> None:
    """Others may lie there. So it is told that something is not counted."""
    own = ledger_of(Path("features", "own"))
    linked("link", Path("away", "set"))
    for name in ("set", "other"):
        ledger_of(Path("away", name))
    with closed(Path("away"), mode=0o100):
        found = account_of(own)
    assert [name for name, _ in found.linked] == ["set"]
    assert (found.not_counted, found.folders) == (("link",), (own.parent,))


def test_a_closed_set_whose_ledger_has_no_trainings_may_be_about_to_have_one() -> None:
    own, other = ledger_of(Path("features", "own")), Path("features", "other").resolve()
    other.mkdir()
    ledger.keep_overlap(ledger.ledger_path(other), overlap())
    with closed(other):
        assert account_of(own).ledgers == {ledger.ledger_path(other)}


def test_a_set_that_is_closed_to_us_is_refused_itself() -> None:
    own = ledger_of(Path("features", "own"))
    Path("features", "own").mkdir()
    with closed(Path("features", "own")), pytest.raises(UserError, match=r"cannot be read: Permission"):
        account_of(own)


def test_the_newest_ledger_is_not_chosen_from_a_folder_that_cannot_be_listed() -> None:
    folder = ledger_of(Path("features", "own")).parent
    with closed(folder, mode=0o300), pytest.raises(UserError, match=r"cannot be read.*Permission"):
        other_ledgers.newest_ledger(folder)
    with pytest.raises(UserError, match="there is no ledger in 'none'"):
        other_ledgers.newest_ledger(Path("none"))


def about(split: str, n: int, persons: str | None = None) -> Entry:
    return replace(row(), split=split, n=n, persons=persons, unit="record" if persons is None else "person")


SPLITS = {"train": SplitFacts(n=80, shards=()), "test": SplitFacts(n=20, shards=())}
GROUPED = {name: replace(split, groups=split.n // 2) for name, split in SPLITS.items()}
HELD: dict[str, Any] = {"hold_out": 0.2}
GROUPS: dict[str, Any] = {**HELD, "groups": {"train": "a" * 64, "test": "b" * 64}}
UNKNOWN: dict[str, Any] = {**HELD, "groups": None}
"""Of a set that knows persons, and does not say which."""


@pytest.mark.parametrize(
    ("identity", "row", "apart"),
    [
        (HELD, about("test", 20), True),
        (HELD, about("test", 30), False),
        (HELD, about("train", 80), False),
        (HELD, about("train", 20), False),
        (HELD, about("val", 20), False),
        ({}, about("test", 20), False),
        ({**HELD, "spread": 100}, about("test", 20), False),
        (GROUPS, about("test", 20, "b" * 64), True),
        (GROUPS, about("test", 30, "b" * 64), True),
        (GROUPS, about("test", 20, "c" * 64), False),
        (GROUPS, about("test", 20), False),
        (HELD, about("test", 20, "b" * 64), False),
        (UNKNOWN, about("test", 20), False),
    ],
)
def test_a_row_is_about_other_records_only_if_it_is_about_the_split_that_is_held_out_here(
    identity: dict[str, Any], row: Entry, apart: bool
) -> None:
    """A row that might be about these records counts."""
    grouped = "groups" in identity
    manifest = replace(
        bare_manifest({"identity": identity}),
        splits=GROUPED if grouped else SPLITS,
        grouped_by={"by": "folder", "level": 1} if grouped else None,
    )
    assert other_ledgers.elsewhere(manifest, "train", row) is apart


def test_what_is_counted_already_is_left_out() -> None:
    book = Book(entries=(row(0.1), row(0.2), row(0.3)), caps=(cap(1.0), cap(2.0)), overlaps=(overlap(),))
    left = other_ledgers.without(book, iter([row(0.2)]), iter([cap(1.0)]))
    assert left == Book(entries=(row(0.1), row(0.3)), caps=(cap(2.0),), overlaps=(overlap(),))


# What a set says of itself


def test_an_untrained_set_is_known_by_its_folder() -> None:
    set_ = of("one", range(4), test=range(4, 6))
    found = other_ledgers.untrained(set_.folder)
    assert (found.name, found.path, found.of, found.book) == ("one", set_.folder, "set", Book())
    assert {split for _, split in found.splits} == {each.section.split for each in found.stored} == {"train", "test"}
    (set_.folder / "records.digests").write_text("damaged")
    assert other_ledgers.untrained(set_.folder) == replace(found, stored=())


def test_a_ledger_is_known_by_its_rows_and_by_the_set_beside_it() -> None:
    place = ledger.ledger_path(of("one", range(4), test=range(4, 6)).folder)
    book = Book(entries=(replace(row(), records="r", split="val"),))
    found = other_ledgers.known("name", place, book)
    assert (found.name, found.path, found.book, found.of, found.stored) == ("name", place, book, "ledger", ())
    assert {split for _, split in found.splits} == {"train", "test", "val"}


def test_how_a_source_is_cut_says_the_manifest_of_its_set() -> None:
    place = Path("features/one.ledger.sqlite")
    assert other_ledgers.cut(place) is None
    manifest = of("one", range(4), persons=True).folder / MANIFEST
    assert other_ledgers.cut(place) == (None, None, {"train": "0" * 64})
    told = json.loads(manifest.read_text())
    told["source"]["identity"] |= {"hold_out": 0.2, "spread": 7}
    manifest.write_text(json.dumps(told))
    assert other_ledgers.cut(place) == (0.2, 7, {"train": "0" * 64})
    manifest.write_text("damaged")
    assert other_ledgers.cut(place) is None


def test_the_first_row_of_a_set_with_these_records_may_be_about_to_be_written() -> None:
    set_ = of("one", range(4), test=range(4, 6))
    place, listings = ledger.ledger_path(set_.folder), set_.manifest.source["identity"]["listing"]
    for records in ({listings["train"]}, {listings["test"], "others"}):
        assert other_ledgers.begun(place, Book(overlaps=(overlap(),)), records)
        assert not other_ledgers.begun(place, Book(entries=(row(),)), records)
        assert not other_ledgers.begun(place, Book(caps=(cap(),)), records)
    assert not other_ledgers.begun(place, Book(), {"others"})
    assert not other_ledgers.begun(ledger.ledger_path(Path("features/none")), Book(), {listings["train"]})
    # A damaged one may have any.
    (set_.folder / MANIFEST).write_text("damaged")
    assert other_ledgers.begun(place, Book(), {"others"})


# What is looked for, and where


def test_of_a_ledger_that_is_gone_the_digests_say_where_it_was() -> None:
    ledger_of(Path("features", "there"))
    for name in ("there", "gone"):
        Path("features", f"{name}.ledger.digests").touch()
    found, left, folders, nowhere = other_ledgers.search([Path("features"), Path("none")])
    here = Path("features").resolve()
    assert left == [here / "gone.ledger.sqlite"]
    assert found == {here / "there.ledger.sqlite": here / "there.ledger.sqlite"}
    assert (folders, nowhere) == ([here], [])


def test_a_link_that_leads_nowhere_is_told_and_a_ledger_that_is_one_is_found() -> None:
    here = ledger_of(Path("features", "one")).parent
    for name in ("b", "a", "c.ledger.sqlite"):
        (here / name).symlink_to("nothing")
    (here / "d").symlink_to(here / "one.ledger.sqlite")
    Path("away", "pictures").mkdir(parents=True)
    (here / "no set").symlink_to(Path("away", "pictures").resolve())
    found, _, folders, nowhere = other_ledgers.search([here])
    assert (nowhere, folders) == (["a", "b", "c.ledger.sqlite"], [here])
    assert set(found.values()) == {here / "one.ledger.sqlite", here / "c.ledger.sqlite"}


def test_the_newest_ledger_of_a_folder_is_that_of_a_linked_set_too() -> None:
    first = ledger_of(Path("features", "own"))
    assert other_ledgers.newest_ledger(Path("features")) == first
    linked("link", Path("away", "set"))
    Path("features", "gone.ledger.sqlite").symlink_to("nothing")
    assert other_ledgers.newest_ledger(Path("features")) == first
    then = ledger_of(Path("away", "set"))
    assert other_ledgers.newest_ledger(Path("features")) == then


def test_ledgers_of_one_name_are_told_apart_by_their_paths() -> None:
    assert other_ledgers.names_of([Path(f"{name}.ledger.sqlite") for name in ("x/a", "y/a", "y/b")]) == {
        Path("x/a.ledger.sqlite"): "x/a",
        Path("y/a.ledger.sqlite"): "y/a",
        Path("y/b.ledger.sqlite"): "b",
    }


def test_the_row_of_a_head_is_that_of_its_number_and_of_its_own_releases() -> None:
    first, second = row(0.3), row(0.4)
    card = {name: getattr(second, name) for name in ("method", "claim", "plan")} | {"date": second.at}
    rows = (first, second)
    assert other_ledgers.has_row_of((), card), "a head of an earlier version names none"
    assert other_ledgers.has_row_of(rows, {**card, "ledger": {"training": 2}})
    for other in ({"training": 1}, {"training": 3}):
        assert not other_ledgers.has_row_of(rows, {**card, "ledger": other})
    shared = [{**release, "share": 0.5} for release in second.plan]
    before = {"plan": [*first.plan, *shared], "public_head": {"releases": len(first.plan)}}
    assert other_ledgers.has_row_of(rows, {**card, **before, "ledger": {"training": 2}})
    # A head that is public has no releases that count.
    assert other_ledgers.has_row_of(rows, {**card, "public_head": {}, "ledger": {"training": 2}})


def test_a_file_that_vanishes_while_it_is_looked_for_is_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process charges something meanwhile, and SQLite removes its journal."""
    there = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [*there(folder), "s.ledger.sqlite-journal"])
    assert other_ledgers.search([tmp_path]) == ({}, [], [tmp_path.resolve()], [])
