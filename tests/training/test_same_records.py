"""Which rows of ledgers are about the same records: where ledgers are looked for, and which rows of them count."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from dpfc_cli.training.ledger import Book, real

from dpfc_cli.errors import UserError
from dpfc_cli.training import ledger, other_ledgers, same_records
from tests.training.rows import row


def ledger_in(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.ledger.sqlite"
    ledger.charge(made, row())
    return made


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFC_FEATURES", str(tmp_path / "features"))


def test_ledgers_are_looked_for_around_the_set_around_its_name_and_among_the_features(tmp_path: Path) -> None:
    own = ledger_in(tmp_path / "own", "set")
    beside, far, kept = (
        ledger_in(tmp_path / "own", "b"),
        ledger_in(tmp_path / "far", "a"),
        ledger_in(tmp_path / "features", "c"),
    )
    found, *_ = same_records.others_around(own, tmp_path / "far" / "set")
    assert [real(path) for path in found] == sorted(map(real, (beside, far, kept)))
    assert all(len(book.entries) == 1 for book in found.values())
    found, *_ = same_records.others_around(own, None)
    assert {real(path) for path in found} == {real(beside), real(kept)}


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(roots: list[Path]) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "closed"))

    monkeypatch.setattr(other_ledgers, "search", denied)
    with pytest.raises(UserError, match=r"closed.*Permission denied"):
        same_records.others_around(tmp_path / "set.ledger.sqlite", None)


def test_a_row_about_another_split_counts_unless_the_splits_of_both_sets_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another hold-out of the same source has other records in the other split."""
    cuts = {"own": "a fifth", "same": "a fifth", "other": "a half"}
    monkeypatch.setattr(other_ledgers, "cut", lambda path: cuts[path.name])
    train, test = replace(row(), records="r"), replace(row(), records="r", split="test")
    book = Book(entries=(train, test, replace(test, records="others")))
    found = same_records.linked(
        Path("own"), {Path("same"): book, Path("other"): book}, {"r"}, lambda each: each.split == "test"
    )
    assert found == {Path("same"): [train], Path("other"): [train, test]}
