"""A ledger outlives its set: what it says of a set that was there before, or that is exchanged while it is used."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.account import other_accounts
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.kept_digests import beside
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.same_records import rows_about

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training import ledger
from dpfc_cli.training.charge import charge
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.run import stands
from tests.training.sharing import DELTA, account, alone_in, evaluated, of, ready, spent, total


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone_in(tmp_path, monkeypatch)


def anew(name: str, *numbers: range, **more: Any) -> FeatureSet:
    """A set of that name in place of the one before. The ledger stays."""
    shutil.rmtree(Path("features", name))
    return of(name, *numbers, **more)


def test_what_was_in_another_split_before_the_set_was_made_anew_counts() -> None:
    first = of("s", range(10), test=range(20, 30))
    charge(ready(first, 0.3))
    evaluated(first, 0.5)
    again = anew("s", range(20, 30), test=range(10))
    assert total(again) == spent(0.3, 0.5)
    other = anew("s", range(40, 50), test=range(10))
    assert total(other) == spent(0.3)
    # Nothing can tell any more whose rows these are, so all count.
    beside(ledger_path(other.folder)).unlink()
    assert total(other) == spent(0.3, 0.5)
    assert not account(other).exact
    shutil.rmtree(other.folder)
    assert total(of("s", range(40, 50))) == spent(0.3, 0.5)


def test_without_digests_all_that_was_spent_on_a_split_before_counts_also_under_a_cap() -> None:
    first = of("s", range(10), test=range(20, 30), kind=None)
    evaluated(first, 0.5)
    set_cap(first, 0.6, delta=DELTA)
    again = anew("s", range(20, 31), kind=None)
    assert total(again) == spent(0.5)
    with pytest.raises(UserError, match="does not fit under the cap"):
        ready(again, 0.55)


@pytest.mark.parametrize("kind", ["file", "row"])
def test_a_test_split_that_grows_costs_the_training_nothing(kind: str) -> None:
    first = of("s", range(10), test=range(20, 26), persons=True, kind=kind)
    set_cap(first, 3.0, delta=DELTA)
    charge(ready(first, 0.3))
    evaluated(first, 0.3)
    again = anew("s", range(10), test=range(20, 28), persons=True, kind=kind)
    assert (total(again), account(again).unit) == (spent(0.3), "person")
    # What is no longer there may be in the training split.
    fewer = anew("s", range(10), test=range(20, 25), persons=True, kind=kind)
    assert account(fewer).unit == "record"


def test_a_record_without_a_digest_may_have_been_in_any_split() -> None:
    evaluated(of("s", range(10), test=[-1, *range(20, 26)], persons=True), 0.3)
    again = anew("s", range(10), test=range(20, 28), persons=True)
    assert account(again).unit == "record"


def test_the_ledger_of_a_set_that_is_gone_says_what_it_said_before() -> None:
    first = of("s", range(10), test=range(20, 30), kind=None)
    charge(ready(first, 0.3))
    evaluated(first, 0.5)
    shutil.rmtree(first.folder)
    assert total(first) == spent(0.3)
    # But not for persons, of whom it is not known whether they were the same.
    only = of("p", range(50, 60), persons=True)
    charge(ready(only, 0.5))
    shutil.move(only.folder, "elsewhere")
    assert (account(only).unit, total(only)) == ("person", spent(0.5))
    # Who trained without a guarantee says nothing of persons.
    charge(ready(of("p", range(70, 80), persons=True), privacy=Privacy()))
    shutil.rmtree(only.folder)
    assert (account(only).unit, account(only).unprotected) == ("person", 1)
    shutil.move("elsewhere", only.folder)
    again = anew("p", range(59, 49, -1), persons=True)
    charge(ready(again, 0.5))
    shutil.rmtree(again.folder)
    assert account(again).unit == "record"


def test_the_ledger_of_other_records_that_is_gone_is_told_also_if_they_are_a_split_that_the_set_had() -> None:
    first = of("s", range(10), test=range(20, 30))
    evaluated(first, 0.1)
    held = of("g", range(20, 30))
    charge(ready(held, 0.3))
    ledger_path(held.folder).unlink()
    shutil.rmtree(held.folder)
    assert account(anew("s", range(20, 30))).shared.gone == ("g",)


def test_persons_who_were_in_another_split_have_what_was_spent_on_them() -> None:
    first = of("s", range(10), test=range(20, 26), persons=True)
    evaluated(first, 0.5)
    assert account(first).private == 0
    # Not one of the records is here again, and the persons may be.
    again = anew("s", range(30, 40), persons=True)
    assert (account(again).unit, account(again).exact) == ("record", False)
    assert total(again) == pytest.approx(epsilon_for(2 * mu_for(0.5, DELTA), DELTA), rel=1e-6)


@pytest.mark.parametrize("persons", [False, True])
def test_the_account_of_a_split_that_is_gone_can_be_asked_for(persons: bool) -> None:
    evaluated(of("s", range(10), test=range(20, 30), persons=persons), 0.5)
    again = anew("s", range(10), persons=persons)
    of_person = 2 if persons else 1
    assert account(again, split="test").epsilon(DELTA) == pytest.approx(
        epsilon_for(of_person * mu_for(0.5, DELTA), DELTA), rel=1e-6
    )
    assert [each.split for each in other_accounts(ledger_path(again.folder))] == ["test"]


def test_a_set_with_rows_about_a_split_that_it_had_is_not_public() -> None:
    first = of("s", range(10), test=range(20, 30))
    evaluated(first, 0.5)
    assert [len(rows_about(ledger_path(first.folder), first.folder, split)) for split in ("train", "test")] == [0, 1]
    again = anew("s", range(20, 31), test=range(10))
    assert [len(rows_about(ledger_path(again.folder), again.folder, split)) for split in ("train", "test")] == [1, 1]


def test_persons_are_those_of_their_records() -> None:
    """A digest of who belongs together does not say of which records: an import that was mended has the same one."""
    charge(ready(of("s", range(10), persons=True), 0.5))
    again = anew("s", range(9, -1, -1), persons=True)
    assert (ledger.persons_of(again.manifest), account(again).unit) == ("0" * 64, "record")
    assert total(again) == pytest.approx(epsilon_for(2 * mu_for(0.5, DELTA), DELTA), rel=1e-6)


def test_a_set_that_was_exchanged_since_it_was_opened_is_not_charged() -> None:
    checked = ready(of("s", range(10)))
    anew("s", range(20, 30))
    with pytest.raises(UserError, match="has another feature set now"):
        charge(checked)
    assert account(FeatureSet("features/s")).private == 0


def test_a_pass_over_a_set_that_was_exchanged_ends_with_an_error() -> None:
    """At each block: one of several processes reads a part, and never comes to the end."""
    blocks = charge(ready(of("s", range(10)))).opened()
    assert sum(len(y) for _, _, y in blocks(4)) == 10
    passing = blocks(4)
    next(passing)
    anew("s", range(10, 20))
    with pytest.raises(UserError, match="has another feature set now"):
        next(passing)


def test_a_set_whose_classes_are_asserted_anew_is_the_same_one() -> None:
    opened = of("s", range(10))
    manifest = replace(opened.manifest, classes=("flu", "cold"), origin="asserted")
    (opened.folder / MANIFEST).write_bytes(manifest.to_json())
    assert opened.is_same()
    opened.check_same()
    (opened.folder / MANIFEST).write_bytes(replace(manifest, dim=3).to_json())
    assert not opened.is_same()
    shutil.rmtree(opened.folder)
    assert not opened.is_same()


def test_who_exchanged_a_set_is_told_that_the_next_training_is_charged() -> None:
    charged = charge(ready(of("s", range(10))))
    assert charged.answers is not None
    assert charged.answers.held
    said = "No head was written. The same command {}."
    assert said.format("goes on where it stopped, and charges nothing more") in str(stands(charged, None))
    anew("s", range(20, 30))
    assert said.format("makes a new training, which is charged, too") in str(stands(charged, None))
