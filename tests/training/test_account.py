"""What an account says, by what counts together for some of the records. No files are read."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpfc_cli.privacy.accounting import epsilon_for
from dpfc_cli.training import ledger
from dpfc_cli.training.account import Account, other_accounts
from dpfc_cli.training.ledger import Cap, Entry
from dpfc_cli.training.sharing import Share, Shared
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


def test_the_accounts_of_other_splits_are_told_in_one_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path))
    path, splits = tmp_path / "one.ledger.sqlite", ["val", "a", "train", "test", "d", "c", "b"]
    for split in splits:
        ledger.charge(path, replace(row(), split=split))
    assert [each.split for each in other_accounts(path)] == sorted({*splits} - {"train"})


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
    assert said["left"] == {"1e-05": account(own=(row(0.1),), caps=(("one", second),)).left(1e-5)}
