"""A ledger outlives its set: what it says of a set that was there before, or that is exchanged while it is used."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training import ledger
from dpfc_cli.training.account import other_accounts
from dpfc_cli.training.charge import charge
from dpfc_cli.training.kept_digests import beside
from dpfc_cli.training.ledger import ledger_path
from dpfc_cli.training.same_records import rows_about
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


def test_persons_who_were_in_another_split_have_what_was_spent_on_them() -> None:
    first = of("s", range(10), test=range(20, 26), persons=True)
    evaluated(first, 0.5)
    assert account(first).private == 0
    # Not one of the records is here again, and the persons may be.
    again = anew("s", range(30, 40), persons=True)
    assert (account(again).unit, account(again).exact) == ("record", False)
    assert total(again) == pytest.approx(epsilon_for(2 * mu_for(0.5, DELTA), DELTA), rel=1e-6)


def test_the_account_of_a_split_that_is_gone_can_be_asked_for() -> None:
    evaluated(of("s", range(10), test=range(20, 30)), 0.5)
    again = anew("s", range(10))
    assert account(again, split="test").epsilon(DELTA) == spent(0.5)
    assert [each.split for each in other_accounts(ledger_path(again.folder))] == ["test"]


def test_a_set_with_rows_about_a_split_that_it_had_is_not_public() -> None:
    first = of("s", range(10), test=range(20, 30))
    evaluated(first, 0.5)
    assert [len(rows_about(ledger_path(first.folder), first.folder, split)) for split in ("train", "test")] == [0, 1]
    again = anew("s", range(20, 30), test=range(10))
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
    blocks = charge(ready(of("s", range(10)))).opened()
    assert sum(len(y) for _, _, y in blocks(4)) == 10
    passing = blocks(4)
    next(passing)
    anew("s", range(10, 20))
    with pytest.raises(UserError, match="has another feature set now"):
        list(passing)
