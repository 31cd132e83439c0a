"""What becomes of a training is in its row, and whoever stops one is told whether it was charged."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.ledger import tables

from dpfc_cli import files
from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import head as head_files
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.training import ledger
from dpfc_cli.training.answers import Answers
from dpfc_cli.training.charge import Charged, charge
from dpfc_cli.training.observer import Observer, TrainingWarning
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.run import run
from dpfc_cli.training.train import finish
from tests.training.requests import checked, entries


def test_a_row_says_what_became_of_its_training(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    made = finish(checked(features), Observer())
    charged = charge(checked(features))
    assert [row.state for row in entries(features)] == ["written", "charged"]

    def broken(*given: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(curator_module, "draw_noise", broken)
    with pytest.raises(KeyboardInterrupt):
        run(charged, Observer())
    first, second = entries(features)
    assert (first.state, first.head, first.sha256) == ("written", made.path.name, made.sha256)
    assert (second.state, second.sha256) == ("stopped", None)
    assert list(made.path.parent.glob("[!.]*")) == [made.path]


def test_who_stops_a_training_is_told_whether_it_was_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Observer):
        def confirm(self, charge: str) -> bool:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as before:
        finish(checked(features), Stopping())
    assert before.value.__notes__ == ["Nothing was charged, and no head was written."]
    assert entries(features) == []

    def stopped(*given: object) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(curator_module, "draw_noise", stopped)
    with pytest.raises(KeyboardInterrupt) as after:
        finish(checked(features), Observer())
    assert ["stays charged" in note for note in after.value.__notes__] == [True]
    assert len(entries(features)) == 1


def test_an_observer_that_says_no_stops_the_charge(features: FeatureSet) -> None:
    asked: list[str] = []

    class Refusing(Observer):
        def confirm(self, charge: str) -> bool:
            asked.append(charge)
            return False

    with pytest.raises(UserError, match="Nothing was charged") as refused:
        finish(checked(features), Refusing())
    assert (refused.value.code, asked) == ("declined", ["ε = 2 to set"])
    assert entries(features) == []


def test_the_row_names_the_head_that_was_really_written(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = checked(features)
    charged = charge(ready)
    ready.path.write_bytes(b"somebody else's head")
    made = run(charged, Observer())
    assert made.path != ready.path
    assert entries(features)[0].head == made.path.name


def test_a_ledger_of_the_first_version_is_read_and_goes_on(features: FeatureSet) -> None:
    import sqlite3
    from contextlib import closing

    path = ledger.ledger_path(features.folder)
    finish(checked(features), Observer())
    with closing(sqlite3.connect(path)) as connection, connection:
        for column in ("state", "sha256", "who", "purpose", "persons", "caps", "overlaps"):
            connection.execute(f"ALTER TABLE trainings DROP COLUMN {column}")
        connection.execute("DROP TABLE caps")
        connection.execute("DROP TABLE overlaps")
        connection.execute("PRAGMA user_version = 0")
    (old,) = ledger.read(path)
    assert (old.state, old.sha256) == ("unknown", None)
    finish(checked(features), Observer())
    assert [row.state for row in ledger.read(path)] == ["unknown", "written"]


def stopped(*given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["sync", "settle"])
def test_a_head_that_is_there_is_told_however_late_the_training_was_stopped(
    features: FeatureSet, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = checked(features)
    charged = charge(ready)
    with monkeypatch.context() as patch:
        if moment == "sync":
            patch.setattr(files, "sync", stopped)
        else:
            real = ledger.settle
            calls: list[str] = []
            patch.setattr(
                ledger, "settle", lambda *a: (calls.append("x"), stopped() if len(calls) == 1 else real(*a))[1]
            )
        with pytest.raises(KeyboardInterrupt) as end:
            run(charged, Observer())
    assert f"The head was written: '{ready.path}'" in end.value.__notes__[0]
    (row,) = entries(features)
    assert (row.state, row.head, row.sha256) == ("written", ready.path.name, sha256_of(ready.path))


@pytest.mark.parametrize(("place", "name"), [(Answers, "remove"), (InMemory, "clear")])
def test_so_is_one_that_was_written_before_the_rest_was_tidied_up(
    place: Any, name: str, features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, real = checked(features), getattr(place, name)
    monkeypatch.setattr(place, name, lambda self: stopped() if ready.path.exists() else real(self))
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    assert [f"The head was written: '{ready.path}'" in note for note in end.value.__notes__] == [True]
    assert [row.state for row in entries(features)] == ["written"]


def test_so_is_one_of_a_training_that_is_stopped_at_its_very_end(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, closed = Answers.close, list[int]()

    def closing(self: Answers) -> None:
        real(self)
        closed.append(1)
        # Once when they are removed, and once by each who tidies up.
        if len(closed) == 3:
            raise KeyboardInterrupt

    ready = checked(features)
    monkeypatch.setattr(Answers, "close", closing)
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    assert [f"The head was written: '{ready.path}'" in note for note in end.value.__notes__] == [True]


def test_so_is_one_whose_row_does_not_say_so_where_warnings_are_errors(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise UserError("The disk is full.", "Make room.")

    ready = checked(features)
    monkeypatch.setattr(ledger, "settle", full)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TrainingWarning, match="the ledger's row does not say so") as end:
            finish(ready, Observer())
    assert [f"The head was written: '{ready.path}'" in note for note in end.value.__notes__] == [True]
    assert [path.name for path in ready.path.parent.iterdir()] == [ready.path.name]


@pytest.mark.parametrize("there", [False, True], ids=["nothing", "another head"])
def test_a_head_that_was_not_saved_is_not_told(
    features: FeatureSet, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = checked(features)
    charged = charge(ready)
    if there:
        ready.path.write_bytes(b"somebody else's head")
    monkeypatch.setattr(head_files, "save", stopped)
    with pytest.raises(KeyboardInterrupt) as end:
        run(charged, Observer())
    assert "No head was written" in end.value.__notes__[0]
    (row,) = entries(features)
    assert (row.state, row.head, row.sha256) == ("stopped", ready.path.name, None)


def test_so_is_one_that_had_to_take_another_name(features: FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = checked(features)
    charged, real = charge(ready), ledger.settle
    ready.path.write_bytes(b"somebody else's head")
    calls: list[str] = []

    def stopped_once(*given: Any) -> None:
        calls.append("settle")
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(ledger, "settle", stopped_once)
    with pytest.raises(KeyboardInterrupt) as end:
        run(charged, Observer())
    (row,) = entries(features)
    assert (row.state, row.head) == ("written", ready.path.name.replace(".safetensors", "-2.safetensors"))
    assert row.head in end.value.__notes__[0]


def test_a_training_that_is_stopped_during_the_charge_says_that_it_may_be_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(connection: object) -> object:
        raise KeyboardInterrupt

    ready, real = checked(features), tables.entries_in
    seen: list[int] = []
    # The row is read back before the commit and after it.
    monkeypatch.setattr(tables, "entries_in", lambda c: (seen.append(1), stopped(c) if len(seen) == 2 else real(c))[1])
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    monkeypatch.setattr(tables, "entries_in", real)
    assert "'dpfc budget' says whether it is charged" in end.value.__notes__[0]
    assert [row.state for row in entries(features)] == ["charged"]


def test_so_does_one_that_is_stopped_before_the_records_are_opened(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(charged: Charged) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Charged, "opened", stopped)
    ready = checked(features)
    with pytest.raises(KeyboardInterrupt) as end:
        finish(ready, Observer())
    (note,) = end.value.__notes__
    assert "stays charged" in note
    assert len(entries(features)) == 1
    assert [path.suffix for path in ready.path.parent.iterdir()] == [".answers"], "the head's place is free again"


def test_a_row_that_the_ledger_does_not_keep_is_not_charged(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, real = checked(features), tables.entries_in
    monkeypatch.setattr(tables, "entries_in", lambda c: ((n, replace(row, epsilon=9.0)) for n, row in real(c)))
    with pytest.raises(UserError, match="Nothing was charged") as refused:
        charge(ready)
    monkeypatch.setattr(tables, "entries_in", real)
    assert refused.value.code == "damaged"
    assert entries(features) == []


def test_a_ledger_that_went_or_was_exchanged_meanwhile_is_left_alone(features: FeatureSet) -> None:
    path = ledger.ledger_path(features.folder)
    charged = charge(checked(features))
    path.unlink()
    with pytest.warns(TrainingWarning, match=r"The head is written to .*, but the ledger's row does not say so"):
        made = run(charged, Observer())
    assert made.path.exists()
    assert not path.exists()
    with pytest.warns(TrainingWarning, match="do not have the training of"):
        ready = [checked(features, privacy=Privacy(epsilon=epsilon)) for epsilon in (7.0, 1.0)]
    other, charged = map(charge, ready)
    path.unlink()
    ledger.charge(path, other.receipt.entry)
    ledger.charge(path, other.receipt.entry)
    with pytest.warns(TrainingWarning, match="no open row of this training"):
        run(charged, Observer())
    assert [(row.epsilon, row.state) for row in entries(features)] == [(7.0, "charged")] * 2


def test_what_is_spent_counts_trainings_that_ended_meanwhile(features: FeatureSet, tmp_path: Path) -> None:
    """On another set of the same records."""
    again = import_features(tmp_path / "raw.npz", tmp_path / "again", classes=("a", "b", "c"), shards=2).features
    ready = checked(features)
    finish(checked(again), Observer())
    made = finish(ready, Observer())
    assert made.spent.private == 2
    assert made.spent.epsilon(1e-5) == pytest.approx(epsilon_for(mu_for(2.0, 1e-5) * 2**0.5, 1e-5), rel=1e-6)
