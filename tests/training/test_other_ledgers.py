"""The ledgers around that of a set: that all are found, and which rows of theirs count."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import MANIFEST
from dpfc_cli.training import ledger, other_ledgers
from dpfc_cli.training.account import account_of
from tests.training.closed import closed
from tests.training.rows import overlap, row


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


class TestClosed:
    """A ledger that cannot be looked for may have trainings on the same records."""

    def test_a_folder_that_cannot_be_listed_is_refused(self) -> None:
        own = ledger_of(Path("features", "own"))
        ledger_of(Path("features", "other"))
        with closed(own.parent, mode=0o300), pytest.raises(UserError, match=r"features' cannot be read.*Permission"):
            account_of(own)
        own = ledger_of(Path("apart", "own"))
        with closed(Path("features")), pytest.raises(UserError, match=r"features' cannot be read.*Permission"):
            account_of(own)

    def test_links_into_a_closed_folder_hide_no_others(self) -> None:
        own, away = ledger_of(Path("features", "own")), Path("closed")
        for i in range(4):
            linked(f"closed {i}", away / f"{i}")
            linked(f"open {i}", Path(f"open {i}", "set"))
            ledger_of(Path(f"open {i}", "set"))
        with closed(away):
            found = account_of(own)
        assert len(found.linked) == 4
        assert found.not_counted == tuple(f"closed {i}" for i in range(4))

    def test_the_ledger_of_a_closed_set_counts(self) -> None:
        own = ledger_of(Path("features", "own"))
        linked("link", Path("away", "set"))
        ledger_of(Path("away", "set"))
        with closed(Path("away", "set")):
            found = account_of(own)
        assert [name for name, _ in found.linked] == ["set"]
        assert found.not_counted == ()

    def test_of_a_folder_that_cannot_be_listed_the_ledgers_of_linked_sets_count(self) -> None:
        """Others may lie there. So it is told that something is not counted."""
        own = ledger_of(Path("features", "own"))
        linked("link", Path("away", "set"))
        for name in ("set", "other"):
            ledger_of(Path("away", name))
        with closed(Path("away"), mode=0o100):
            found = account_of(own)
        assert [name for name, _ in found.linked] == ["set"]
        assert found.not_counted == ("link",)

    def test_a_closed_set_whose_ledger_has_no_trainings_may_be_about_to_have_one(self) -> None:
        own, other = ledger_of(Path("features", "own")), Path("features", "other").resolve()
        other.mkdir()
        ledger.keep_overlap(ledger.ledger_path(other), overlap())
        with closed(other):
            assert account_of(own).ledgers == {ledger.ledger_path(other)}

    def test_a_set_that_is_closed_to_us_is_refused_itself(self) -> None:
        own = ledger_of(Path("features", "own"))
        Path("features", "own").mkdir()
        with closed(Path("features", "own")), pytest.raises(UserError, match=r"cannot be read: Permission"):
            account_of(own)

    def test_the_newest_ledger_is_not_chosen_from_a_folder_that_cannot_be_listed(self) -> None:
        folder = ledger_of(Path("features", "own")).parent
        with closed(folder, mode=0o300), pytest.raises(UserError, match=r"cannot be read.*Permission"):
            other_ledgers.newest_ledger(folder)
        with pytest.raises(UserError, match="there is no ledger in 'none'"):
            other_ledgers.newest_ledger(Path("none"))
