"""What an account says, by what counts together for some of the records. No files are read."""

import errno
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dpfc_cli.training.account import Account, account_of, other_accounts
from dpfc_cli.training.ledger import Cap, Entry
from dpfc_cli.training.sharing import Share, Shared

from dpfc_cli.errors import UserError
from dpfc_cli.privacy.accounting import epsilon_for
from dpfc_cli.training import ledger, limit, other_ledgers
from tests.training import caps
from tests.training.rows import cap, row

SAMPLED = caps.row(1.0, rate=0.5)
PERSONS = replace(row(0.4), unit="person", persons="a" * 64)
OPEN = replace(row(claim="non-private"), unit="person", persons="a" * 64)


def account(
    *shares: tuple[Sequence[Entry], Sequence[Cap]], cases: Sequence[Sequence[int]] = ((),), **changed: Any
) -> Account:
    """An account of `one`. shares: what other sets have, by their rows and caps."""
    made = tuple(
        Share(name=f"other {i}", records=3, entries=tuple(entries), caps=tuple(caps))
        for i, (entries, caps) in enumerate(shares)
    )
    known: dict[str, Any] = {
        **dict.fromkeys(("folders", "own", "linked", "not_counted", "lost", "caps", "overlaps"), ()),
        **{"ledger": Path("one.ledger.sqlite"), "name": "one", "ledgers": frozenset(), "protects": ledger.RECORD},
        **{"split": "train", "shared": Shared(shares=made, cases=tuple(map(frozenset, cases)))},
    }
    return Account(**(known | changed))


@pytest.mark.parametrize(
    ("entries", "exact"),
    [([row()], True), ([SAMPLED], False), ([PERSONS], False), ([OPEN], True)],
    ids=["a full pass", "samples", "persons", "persons without a guarantee"],
)
def test_a_total_is_exact_if_it_is_for_each_record(entries: list[Entry], exact: bool) -> None:
    """The largest case is not always the one that has the largest share."""
    found = account((entries, ()), ([row()], ()), cases=([0], [1]))
    assert found.exact is exact


def test_what_is_shared_counts_for_the_records_that_are_there() -> None:
    found = account(([row(0.3)], ()), ([row(0.4)], ()), cases=([0], [1]), own=(row(0.4),))
    assert found.epsilon(1e-5) == pytest.approx(epsilon_for(0.32**0.5, 1e-5), rel=1e-9)
    assert (len(found.entries), found.private, found.unprotected) == (3, 3, 0)
    both = replace(found, shared=replace(found.shared, cases=(frozenset({0, 1}),)))
    assert both.epsilon(1e-5) == pytest.approx(epsilon_for(0.41**0.5, 1e-5), rel=1e-9)


def test_a_cap_leaves_what_the_record_has_left_that_has_least_of_it() -> None:
    tight, wide = cap(1.0), cap(3.0)
    found = account(([row(0.2)], [wide]), ([row(0.1)], [tight]), cases=([0], [1]))
    assert found.in_force == [("other 1", tight), ("other 0", wide)]
    assert tight.mu is not None
    assert found.room(tight) == pytest.approx(tight.mu**2 - 0.01, rel=1e-6)
    assert found.left(1e-5) == account(([row(0.1)], [tight]), cases=([0],)).left(1e-5)
    assert found.left(1e-5) == limit.fitting(found.room(tight), 1e-5)
    # Another cap holds there, too.
    more = account(([row(0.2)], ()), ([row(0.1)], [tight, cap(3.0, records="more")]), cases=([0], [1]))
    assert more.room(tight) == found.room(tight)
    assert account().left(1e-5) is None
    # A cap that holds nowhere could be for any of the records.
    assert found.room(cap(2.0)) == pytest.approx(limit.mu_of_cap(2.0, 1e-5) ** 2 - 0.04, rel=1e-6)
    with pytest.raises(UserError, match=r"does not fit.* for other 1"):
        found.check(row(0.25))
    assert account(own=(row(0.3),), caps=(("one", tight),)).left(1e-5) == 0.0


def test_a_cap_replaces_those_that_were_set_before_for_the_same_set_and_no_others() -> None:
    first, second, third = (cap(epsilon, records=f"{epsilon}") for epsilon in (1.0, 2.0, 3.0))
    # In its own ledger a set has those of all records that it had.
    assert account(caps=(("one", first), ("one", second))).in_force == [("one", second)]
    # In other ledgers they are of the records that they name.
    assert account(caps=(("two", second), ("one", first), ("two", third))).in_force == [
        *(("one", first), ("two", second), ("two", third)),
    ]
    again = replace(second, epsilon=None, mu=None, eta=None, delta=None)
    assert account(caps=(("two", second), ("two", again))).in_force == []
    shared = account(([], [second, third]), cases=([0],), caps=(("one", first),))
    assert shared.in_force == [("one", first), ("other 0", second), ("other 0", third)]
    assert shared.all_caps == [("one", first), ("other 0", second), ("other 0", third)]
    assert shared.left(1e-5) == limit.fitting(shared.room(first), 1e-5)
    # Two sources of one ledger may have the same caps.
    assert account(caps=(("one", first), ("one", first))).all_caps == [("one", first)]


def test_rows_are_told_in_the_order_of_time_and_names_by_the_alphabet() -> None:
    early, late = row(0.2), replace(row(0.1), at="2026-02-02T03:04:05+00:00")
    found = account(([late, early], ()), cases=([0],), own=(late, early), linked=(("zoo", early), ("a", late)))
    assert found.rows == [
        *[(name, early) for name in ("one", "zoo", "other 0")],
        *[(name, late) for name in ("one", "a", "other 0")],
    ]
    assert found.names == ["a", "one", "other 0", "zoo"]
    assert found.with_planned(early).own == (late, early, early)


def test_a_total_is_for_persons_if_all_trainings_protect_them_and_no_other_source_counts() -> None:
    known = account(own=(PERSONS,), protects=PERSONS.protects)
    assert (known.unit, known.exact) == ("person", True)
    assert account(own=(PERSONS,), protects=("person", "b" * 64)).unit == "record"
    assert account(own=(PERSONS, row(0.1)), protects=PERSONS.protects).unit == "record"
    # Who trained without a guarantee protected nobody.
    assert account(own=(PERSONS, replace(OPEN, persons="b" * 64)), protects=PERSONS.protects).unit == "person"
    # Before the first training it is what a training would protect.
    assert account(protects=PERSONS.protects).unit == account(own=(OPEN,), protects=PERSONS.protects).unit == "person"
    for others in ([([PERSONS], ())], [([PERSONS], ()), ([], [cap(1.0)])]):
        found = account(*others, cases=(range(len(others)),), own=(PERSONS,), protects=PERSONS.protects)
        assert (found.unit, found.exact) == ("record", False)
        assert found.epsilon(1e-5) == pytest.approx(epsilon_for(2 * math.hypot(0.4, 0.4), 1e-5), rel=1e-9)
    found = account(([], [cap(1.0)]), cases=([0],), own=(PERSONS,), protects=PERSONS.protects)
    assert found.unit == "person"


def test_a_total_of_all_that_might_be_is_not_exact() -> None:
    found = account(([row()], ()), cases=([0],))
    assert found.exact
    assert not replace(found, shared=replace(found.shared, summed=True)).exact


def test_a_ledger_that_is_gone_is_told_unless_heads_say_that_this_one_is_not_whole() -> None:
    gone = Shared(gone=("two", "three"))
    assert account().warning is None
    assert "ledger of two, three is gone" in str(account(shared=gone).warning)
    assert "of 'x', made of one" in str(account(shared=gone, lost=("x",)).warning)


def test_the_accounts_of_other_splits_are_told_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    path, splits = tmp_path / "one.ledger.sqlite", ["val", "a", "train", "test", "d", "c", "b"]
    for split in splits:
        ledger.charge(path, replace(row(), split=split))
    assert [each.split for each in other_accounts(path)] == sorted({*splits} - {"train"})


def test_there_is_no_account_where_ledgers_cannot_be_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(roots: list[Path]) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(roots[0]))

    monkeypatch.setattr(other_ledgers, "search", closed)
    with pytest.raises(UserError, match="Permission denied") as refused:
        account_of(tmp_path / "one.ledger.sqlite")
    assert (refused.value.code, refused.value.fields["path"]) == ("unreadable", str(tmp_path))


@pytest.mark.parametrize(("lost", "says"), [(("x",), "of 'x', made"), (("x", "y"), "of 'x' and 1 more, made")])
def test_heads_without_a_row_are_told_with_their_number(lost: tuple[str, ...], says: str) -> None:
    assert says in str(account(lost=lost).warning)


def test_programs_are_told_which_caps_hold_and_what_they_leave() -> None:
    assert account().to_json((1e-5,))["left"] is None
    first, second = cap(1.0), cap(3.0)
    said = account(own=(row(0.1),), caps=(("one", first), ("one", second))).to_json((1e-5,))
    assert [(each["feature_set"], each["epsilon"], each["in_force"]) for each in said["caps"]] == [
        ("one", 1.0, False),
        ("one", 3.0, True),
    ]
    assert {each["by"] for each in said["caps"]} == {"an officer"}
    assert [(each["feature_set"], each["epsilon"], each["by"]) for each in said["trainings"]] == [
        ("one", row(0.1).epsilon, None)
    ]
    assert said["epsilon"] == {"1e-05": pytest.approx(row(0.1).epsilon, rel=1e-6)}
    assert said["left"] == {"1e-05": account(own=(row(0.1),), caps=(("one", second),)).left(1e-5)}
