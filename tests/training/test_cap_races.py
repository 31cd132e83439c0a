"""A cap is never passed, however many train at once.

In each scenario something else happens between the check of one row and its commit.
"""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.account import account_of
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.ledger import Entry, ledger_path, tables, writing

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.training import account as accounts
from dpfc_cli.training import cap as caps
from dpfc_cli.training import charge as charging
from dpfc_cli.training import ledger, limit, other_ledgers
from dpfc_cli.training.charge import charge
from tests.support import blobs
from tests.training.caps import account, meanwhile, ready, row


def over(features: FeatureSet) -> bool:
    """Whether more is spent than the caps allow."""
    now = account(features)
    return any(limit.room(cap, now.entries) < 0 for _, cap in now.in_force)


def unlocked(patch: pytest.MonkeyPatch) -> None:
    """The check is done first, and then the row is written."""
    real = ledger.charge

    def apart(path: Path, entry: Entry, allow: ledger.Allow) -> ledger.Receipt:
        allow(account_of(path).ledgers)
        return real(path, entry)

    patch.setattr(ledger, "charge", apart)


def late(patch: pytest.MonkeyPatch) -> None:
    """The ledger is locked by its first write, and not before it is read."""

    class Late(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            return super().execute("BEGIN" if sql == "BEGIN IMMEDIATE" else sql, *given)

    connect = sqlite3.connect
    patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Late))


def unheld(patch: pytest.MonkeyPatch) -> None:
    """Linked ledgers are read, and not locked."""
    patch.setattr(writing, "_hold", lambda connection: None)


def alone(patch: pytest.MonkeyPatch) -> None:
    """Nobody asks for the linked ledgers to be locked."""
    real = accounts.account_of
    for place in (charging, caps):
        patch.setattr(place, "account_of", lambda *given, **named: replace(real(*given, **named), ledgers=frozenset()))


def nothing(patch: pytest.MonkeyPatch) -> None:
    """No fault."""


@pytest.mark.parametrize(
    ("first", "second", "fault", "passes"),
    [
        *[("a", "a", fault, fault in (unlocked, late)) for fault in (nothing, unlocked, late)],
        *[("a", "b", fault, fault is not nothing) for fault in (nothing, unlocked, late, unheld, alone)],
        *[("b", "a", fault, fault is not nothing) for fault in (nothing, unheld, alone)],
        *[("b", "c", fault, fault is not nothing) for fault in (nothing, unheld, alone)],
    ],
)
def test_two_trainings_that_do_not_fit_together_are_never_both_charged_unless_a_fault_is_planted(
    sets: dict[str, FeatureSet],
    first: str,
    second: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    passes: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cap is set for `a`. The second training is charged while the first one is."""
    set_cap(sets["a"], 3.0)
    one, other = ready(sets[first]), ready(sets[second])
    with monkeypatch.context() as patch:
        fault(patch)
        seen = meanwhile(patch, limit, "check", lambda: charge(other))
        charge(one)
    assert seen == ["done" if passes else "busy"]
    assert over(sets["a"]) == passes
    if not passes:
        assert len(account(sets["a"]).entries) == 1
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


@pytest.mark.parametrize("fault", [False, True])
def test_a_cap_and_the_first_training_of_another_set_do_not_miss_each_other(
    sets: dict[str, FeatureSet], fault: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither ledger exists. Each of the two must see the file that the other one has just made."""
    other = ready(sets["b"])
    with monkeypatch.context() as patch:
        if fault:
            patch.setattr(other_ledgers, "begun", lambda *given: False)
        seen = meanwhile(patch, caps, "_check", lambda: charge(other), skip=1)
        set_cap(sets["a"], 1.0)
    assert seen == ["done" if fault else "busy"]
    assert over(sets["a"]) == fault
    if not fault:
        with pytest.raises(UserError, match="does not fit"):
            charge(other)


@pytest.mark.parametrize("fault", [nothing, unheld, alone])
def test_a_cap_waits_for_a_first_training_of_another_set_that_is_being_charged(
    sets: dict[str, FeatureSet], fault: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training has seen no ledger of `a`, and its row is not written yet."""
    one = ready(sets["b"])
    with monkeypatch.context() as patch:
        fault(patch)
        seen = meanwhile(patch, limit, "check", lambda: set_cap(sets["a"], 1.0))
        charge(one)
    assert seen == ["busy" if fault is nothing else "done"]
    assert over(sets["a"]) == (fault is not nothing)
    if fault is nothing:
        with pytest.raises(UserError, match="would promise what is not true"):
            set_cap(sets["a"], 1.0)


def test_a_cap_that_was_lowered_after_the_check_counts_at_the_charge(sets: dict[str, FeatureSet]) -> None:
    set_cap(sets["a"], 3.0)
    planned = ready(sets["b"])
    set_cap(sets["a"], 1.0)
    with pytest.raises(UserError, match="does not fit under the cap of these records: epsilon = 1 "):
        charge(planned)
    assert account(sets["b"]).entries == []
    assert not list(Path("heads").iterdir()), "the place that was kept for the head is free again"


def test_what_was_charged_to_a_linked_ledger_before_it_was_locked_is_seen(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`a` finds the ledger of `b`, and waits for it. Meanwhile `b` is charged."""
    set_cap(sets["c"], 3.0)
    charge(ready(sets["b"], 0.1))
    one, other = ready(sets["c"]), ready(sets["b"])
    real, charged = writing._hold, list[int]()

    def held(connection: sqlite3.Connection) -> None:
        if not charged:
            charged.append(1)
            monkeypatch.setattr(writing, "_hold", real)
            charge(other)
        real(connection)

    monkeypatch.setattr(writing, "_hold", held)
    with pytest.raises(UserError, match="does not fit"):
        charge(one)
    assert charged == [1]
    assert not over(sets["a"])


@pytest.mark.parametrize(("own", "linked"), [("a", "b"), ("b", "a")])
def test_linked_ledgers_are_let_go_after_the_row_is_on_disk(
    sets: dict[str, FeatureSet], own: str, linked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of them was locked first."""
    charge(ready(sets[linked]))
    planned, path = ready(sets[own]), ledger_path(sets[own].folder)
    real, connect, held, there = writing._hold, sqlite3.connect, list[sqlite3.Connection](), list[int]()

    class Watched(sqlite3.Connection):
        def close(self) -> None:
            if self in held:
                there.append(len(ledger.read(path)))
            super().close()

    def hold(connection: sqlite3.Connection) -> None:
        held.append(connection)
        real(connection)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Watched))
    monkeypatch.setattr(writing, "_hold", hold)
    charge(planned)
    assert there == [1]


@pytest.mark.parametrize("older", [False, True])
def test_a_linked_ledger_that_may_only_be_read_is_locked_for_reading(
    sets: dict[str, FeatureSet], older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of SQLite must be asked in another way."""
    set_cap(sets["a"], 3.0)
    mine, other = ready(sets["b"]), ready(sets["a"])
    theirs = ledger_path(sets["a"].folder)
    real = tables.connected

    class Older(sqlite3.Connection):
        def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
            if sql != "BEGIN IMMEDIATE":
                return super().execute(sql, *given)
            error = sqlite3.OperationalError("attempt to write a readonly database")
            error.sqlite_errorcode = sqlite3.SQLITE_READONLY
            raise error

    def connected(path: Path, mode: tables.Mode) -> sqlite3.Connection:
        if path != theirs:
            return real(path, mode)
        with monkeypatch.context() as patch:
            connect, how = sqlite3.connect, dict[str, Any](factory=Older if older else sqlite3.Connection)
            patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **{**k, **how}))
            return real(path, "ro")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "connected", connected)
        with pytest.raises(UserError, match="cannot be written: attempt to write a readonly database"):
            charge(other)

        def meddle() -> None:
            patch.setattr(tables, "connected", real)
            ledger.charge(theirs, row(1.0))

        seen = meanwhile(patch, limit, "check", meddle)
        charge(mine)
    assert seen == ["busy"]
    assert ledger.read(theirs) == []


def test_ledgers_are_locked_in_one_order_whichever_set_is_trained_on(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two trainings could wait for one another."""
    names = [f"{name}{i}" for name in "zdym" for i in range(2)]
    for name in names:
        shutil.copytree("features/a", Path("features", name))
        ledger_path(Path("features", name)).touch()
    locked, real = list[Path](), tables.connected

    def connected(path: Path, mode: tables.Mode) -> sqlite3.Connection:
        locked.extend([path] if mode != "ro" else [])
        return real(path, mode)

    planned = ready(sets["b"], 0.1)
    monkeypatch.setattr(tables, "connected", connected)
    charge(planned)
    assert locked[0] == ledger_path(sets["b"].folder)
    assert locked[1:] == sorted(ledger_path(Path("features", name)) for name in ("b", *names))


def test_ledgers_of_other_records_are_not_locked(
    sets: dict[str, FeatureSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = blobs(30, 3, 2, seed=9)
    np.savez(tmp_path / "other.npz", train_x=x, train_y=y)
    import_features(tmp_path / "other.npz", tmp_path / "features" / "other", classes=("a", "b"))
    other = FeatureSet(Path("features/other"))
    set_cap(sets["a"], 3.0)
    charge(ready(other, 50.0))
    assert account(sets["a"]).not_counted == ("other",)
    one, two = ready(sets["b"]), ready(other, 50.0)
    seen = meanwhile(monkeypatch, limit, "check", lambda: charge(two))
    charge(one)
    assert seen == ["done"]


def test_a_cap_is_held_against_what_was_charged_after_the_first_look(
    sets: dict[str, FeatureSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looked = caps._check, list[int]()

    def checked(*given: Any) -> None:
        real(*given)
        looked.append(1)
        if len(looked) == 1:
            charge(ready(sets["b"]))

    monkeypatch.setattr(caps, "_check", checked)
    with pytest.raises(UserError, match="would promise what is not true"):
        set_cap(sets["a"], 1.0)
    assert not account(sets["a"]).caps
