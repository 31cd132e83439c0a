"""Uniting ledgers: all facts of both, no total smaller, no cap looser, and nothing believed but charges and caps."""

import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Cap, Fact, Merge, Outcome, Set, new_id
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.merge import merge_ledgers
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.facts import Unit
from tests.ledger.facts import (
    DELTA,
    POPULATIONS,
    a_cap,
    a_charge,
    a_set,
    changed,
    kept,
    made_set,
    some_facts,
    spent_by,
    written,
)  # fmt: skip
from tests.support import refuses, replace

UNITS: tuple[Unit, ...] = ("record", "person")
A, B, UNSAID = a_set("a"), a_set("b"), a_set()
BASE: list[Fact] = [A, B, UNSAID, a_set("c"), a_charge(A), a_charge(UNSAID, 0.5)]


def book(folder: Path, name: str, *facts: Fact) -> Path:
    """The folder of a ledger with these facts."""
    written(folder / name / "ledger.sqlite", *facts)
    return folder / name


def held(place: Path) -> Ledger:
    return read(place / "ledger.sqlite")


def refused(code: str, does: Callable[[], object], *places: Path) -> UserError:
    """It is refused with this code, and nothing is written."""
    before = [kept(place) for place in places]
    with refuses(code) as error:
        does()
    assert [kept(place) for place in places] == before
    return error.value


def not_smaller(before: Ledger, *later: Ledger) -> None:
    """No total is smaller than before, and no cap looser: what it refused is refused."""
    for after, population in product(later, (None, *POPULATIONS)):
        was, now = before.account(population), after.account(after.named(population))
        assert all(now.used(unit) >= was.used(unit) for unit in UNITS)
        assert (len(now.charges), now.unprotected, now.adopted) >= (len(was.charges), was.unprotected, was.adopted)
        for cap in was.caps:
            assert any(each.unit == cap.unit and (each.most or 0) <= (cap.most or 0) for each in now.caps)
    for of, epsilon, unit in product(before.sets, (0.05, 2.5, 9.0), UNITS):
        charge = a_charge(of, epsilon, unit=unit)
        try:
            caps.check(before, charge)
        except UserError:
            for after in later:
                with pytest.raises(UserError):
                    caps.check(after, charge)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.randoms(use_true_random=False), st.integers(0, 4), st.integers(0, 5), st.integers(0, 5))
def test_no_total_is_smaller_and_no_cap_looser_on_either_side(
    tmp_path_factory: pytest.TempPathFactory, draw: random.Random, common: int, one: int, other: int
) -> None:
    """Of two copies that went on by themselves, whatever was written there."""
    folder = tmp_path_factory.mktemp("m")
    base = [*BASE, *some_facts(draw, common, BASE, sampled=False)]
    # Both have heard of all populations: what is new to one of them has to be asked for.
    parts = [some_facts(draw, count, base, sampled=False) for count in (one, other)]
    here, there = (book(folder, name, *base, *part) for name, part in zip("xy", parts, strict=True))
    before = held(here), held(there)
    united = merge_ledgers(here, there)
    assert {fact.id for fact in united.facts} >= {fact.id for ledger in before for fact in ledger.facts}
    assert united.facts[: len(before[0].facts)] == before[0].facts
    assert held(there) == before[1]
    # It can be done again, and in both directions.
    files = kept(here)
    assert merge_ledgers(here, there).facts == united.facts
    assert kept(here) == files
    back = merge_ledgers(there, here)
    again = merge_ledgers(here, there)
    not_smaller(before[0], united, again, back)
    not_smaller(before[1], again, back)
    assert {fact.id for fact in again.facts} == {fact.id for fact in held(there).facts}
    for population, unit in product((None, *POPULATIONS), UNITS):
        totals = {each.account(population).used(unit) for each in (again, held(there))}
        assert len(totals) == 1 or max(totals) == pytest.approx(min(totals), rel=1e-12)
    files = kept(folder)
    merge_ledgers(here, there)
    merge_ledgers(there, here)
    assert kept(folder) == files


def test_what_one_ledger_says_of_a_fact_that_both_had_replaces_nothing_in_the_other(tmp_path: Path) -> None:
    cap = a_cap(1.2)
    base: list[Fact] = [A, B, UNSAID, a_charge(UNSAID), cap]
    here = book(tmp_path, "x", *base)
    looser = [a_cap(50.0, replaces=(cap.id,)), a_cap(None, replaces=(cap.id,)), a_cap(None, replaces=(cap.id,))]
    moved = a_set("a", set=UNSAID.set, replaces=(UNSAID.id,))
    own = a_cap(40.0, "b")
    there = book(tmp_path, "y", *base, *looser, moved, own, a_cap(None, "b", replaces=(own.id,)))
    united = merge_ledgers(here, there)
    assert united.account("b").used("record") == held(here).account("b").used("record") > 0
    assert cap in united.account("a").caps
    assert united.populations_of(UNSAID.set) is None
    # What replaced a fact of its own ledger alone does so here, too.
    assert own not in united.account("b").caps
    assert {fact.id for fact in held(there).facts} <= {fact.id for fact in united.facts}
    # In the other direction the older facts come back to hold.
    back = merge_ledgers(there, here)
    assert cap in back.account("a").caps
    assert back.populations_of(UNSAID.set) is None


def test_a_charge_that_went_on_in_two_copies_counts_twice(tmp_path: Path) -> None:
    charge = a_charge(A)

    def outcome(after: Outcome | None, state: str) -> Outcome:
        after_ = None if after is None else after.id
        return Outcome(by="Ada", charge=charge.id, state=state, after=after_)  # type: ignore[arg-type]

    stopped = outcome(None, "stopped")
    resumed = [outcome(stopped, "resumed"), outcome(stopped, "resumed")]
    here = book(tmp_path, "x", A, charge, stopped, resumed[0], outcome(resumed[0], "written"))
    there = book(tmp_path, "y", A, charge, stopped, resumed[1])
    for one, other in ((here, there), (there, here)):
        united = merge_ledgers(one, other)
        assert united.account("a").charges == (charge, charge)
        assert united.account("a").epsilon(DELTA) == pytest.approx(spent_by(1.0, 1.0), rel=1e-6)
    behind = book(tmp_path, "z", A, charge, stopped)
    assert len(merge_ledgers(behind, book(tmp_path, "w", A, charge, stopped, resumed[0])).account("a").charges) == 1


def test_one_id_with_two_texts_refuses_all(tmp_path: Path) -> None:
    charge = a_charge(A, 2.5)
    here = book(tmp_path, "x", A, charge)
    for other in (replace(charge, purpose="another"), replace(charge, head="x"), a_charge(A, 0.5, id=charge.id)):
        there = book(tmp_path, new_id(), A, a_charge(A), other)
        refused("damaged", lambda there=there: merge_ledgers(here, there), here, there)  # type: ignore[misc]
    there = book(tmp_path, new_id(), A, a_set(id=charge.id))
    refused("damaged", lambda: merge_ledgers(here, there), here, there)


def test_a_ledger_that_is_not_there_or_is_damaged_is_refused(tmp_path: Path) -> None:
    here, there = book(tmp_path, "x", A), book(tmp_path, "y", A, a_charge(A))
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none", "none/ledger.sqlite"):
        refused("missing", lambda name=name: merge_ledgers(here, tmp_path / name), here)  # type: ignore[misc]
    changed(there / "ledger.sqlite", "UPDATE facts SET body = replace(body, 'Ada', 'Eve') WHERE n = 2")
    refused("damaged", lambda: merge_ledgers(here, there), here, there)
    refused("damaged", lambda: merge_ledgers(there, here), here, there)
    # A folder without a ledger gets one.
    new = tmp_path / "new"
    new.mkdir()
    merge_ledgers(new, here / "ledger.sqlite", apart=["a"])
    assert held(new).facts[0] == A


def test_a_population_that_only_one_has_is_asked_for(tmp_path: Path) -> None:
    ward, mine, public = a_set("ward"), a_cap(3.0, "mine"), a_set("dataset:digits")
    here = book(tmp_path, "x", A, mine, a_charge(A))
    there = book(tmp_path, "y", a_set("a"), ward, public, a_charge(ward, 2.5))
    places = here, there
    error = refused("missing", lambda: merge_ledgers(*places), *places)
    assert error.fields["populations"] == ["mine", "ward"]
    error = refused("missing", lambda: merge_ledgers(*places, apart=["ward"]), *places)
    assert error.fields["populations"] == ["mine"]
    for same in ({"nobody": "a"}, {"ward": "nobody"}, {"mine": "ward"}, {"dataset:digits": "a"}):
        with pytest.raises(UserError) as caught:
            merge_ledgers(*places, apart=["ward", "mine"], same=same)
        assert caught.value.code in ("unknown-name", "bad-value")
    apart = tmp_path / "apart"
    shutil.copytree(here, apart)
    united = merge_ledgers(apart, there, apart=["ward", "mine"], by="an officer")
    assert (united.facts[-1].by, united.facts[-1].kind) == ("an officer", "merge")
    assert united.populations == ("a", "dataset:digits", "mine", "ward")
    assert united.account("ward").epsilon(DELTA) == pytest.approx(spent_by(2.5), rel=1e-6)
    # What was asked for once is known.
    assert merge_ledgers(apart, there).facts == united.facts
    united = merge_ledgers(*places, same={"ward": "a"}, apart=["mine"])
    assert united.account("a").epsilon(DELTA) == pytest.approx(spent_by(1.0, 2.5), rel=1e-6)
    assert united.populations == ("a", "dataset:digits", "mine")
    assert held(there).populations == ("a", "dataset:digits", "ward")


def test_a_name_that_two_ledgers_give_to_different_people_makes_no_total_smaller(tmp_path: Path) -> None:
    """The second one is said to be another population here. The first one keeps what it had."""
    sets = [a_set("ward") for _ in range(2)]
    here = book(tmp_path, "x", A, B)
    for name, of, ours in (("y", sets[0], "a"), ("z", sets[1], "b")):
        there = book(tmp_path, name, of, a_charge(of))
        before = held(here)
        not_smaller(before, merge_ledgers(here, there, same={"ward": ours}, apart=["a", "b"]))
    merged = held(here)
    for ours in ("a", "b"):
        assert merged.account(merged.named(ours)).used("record") >= a_charge(A).spent("record")


def test_nothing_of_a_ledger_that_is_offered_makes_less_of_what_is_here(tmp_path: Path) -> None:
    """Whoever offers it may have written anything into it."""
    cap, charge = a_cap(1.1), a_charge(UNSAID)
    base: list[Fact] = [A, B, UNSAID, charge, cap]
    hostile: list[Fact] = [
        a_set("a", set=UNSAID.set, replaces=(UNSAID.id, cap.id, charge.id)),
        a_cap(None, replaces=(cap.id,)),
        Merge(by="Eve", same={"a": "b", "b": "a"}, ignored=(cap.id, charge.id, UNSAID.id)),
        Merge(by="Eve", same={"a": "nobody"}, apart=("a",)),
        Outcome(by="Eve", charge=charge.id, state="written", replaces=(charge.id, cap.id, A.id)),
        a_set("b", set=A.set, replaces=(A.id,)),
        a_set("c", adopted=True),
    ]
    for facts in (*([each] for each in hostile), hostile):
        here, there = book(tmp_path, new_id(), *base), book(tmp_path, new_id(), *base, *facts)
        names = [name for name in held(there).populations if name not in ("a", "b")]
        not_smaller(held(here), merge_ledgers(here, there, apart=[*names, "a", "b"]))


def test_a_source_that_would_be_in_two_populations_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "x", tmp_path / "y"
    made_set(here / "one", range(10), "a")
    made_set(there / "two", range(20, 30), "b")
    third = made_set(there / "three", range(10))
    said = merge_ledgers(here, there, apart=["a", "b"])
    # A set of another folder is known from now on.
    before = kept(here)
    with refuses("conflict"):
        made_set(here / "four", range(20, 30), "a")
    assert kept(here) == before
    # A copy of that set is one that this ledger has.
    shutil.copytree(third.folder, here / "three")
    assert FeatureSet(here / "three").manifest.id in said.sets
    made_set(there / "five", range(10), "b")
    refused("conflict", lambda: merge_ledgers(here, there, apart=["a"]), here, there)
    # The same people may be called by either name.
    made_set(tmp_path / "z" / "six", range(10), "z")
    merge_ledgers(here, tmp_path / "z", same={"z": "a"}, apart=["b"])
    made_set(here / "seven", range(10), "z")
    assert all(isinstance(each, Set | Merge | Cap) for each in held(here).facts)
