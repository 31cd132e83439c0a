"""A cap is never passed, however charges are chosen, and what is said to fit does fit."""

import math
import random
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Cap, Charge, Fact, Merge
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import delta_of, epsilon_for
from dpfc_cli.privacy.filters import RESERVE
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from tests.ledger.facts import (
    DELTA,
    POPULATIONS,
    a_cap,
    a_charge,
    a_set,
    by_hand,
    kept,
    ledger_of,
    made_set,
    next_fact,
    written,
)  # fmt: skip
from tests.support import refuses, replace

EPSILONS, DELTAS = st.floats(1e-4, 100), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])
DRAWS = st.randoms(use_true_random=False)
A, B, UNSAID = a_set("a"), a_set("b"), a_set()


def code_of(ledger: Ledger, charge: Charge) -> str | None:
    """The code of the refusal; None if it is allowed."""
    try:
        caps.check(ledger, charge)
    except UserError as error:
        return error.code
    return None


def allowed(ledger: Ledger, charge: Charge) -> bool:
    code = code_of(ledger, charge)
    assert code in (None, "over-cap")
    return code is None


def above(epsilon: float) -> float:
    """The next ε of four digits, and a little."""
    return epsilon + 1.001 * 10.0 ** (math.floor(math.log10(epsilon)) - 3)


def is_kept(facts: list[Fact], population: str | None, cap: Cap) -> bool:
    """Whether a cap is not passed, as another program composes it."""
    eta = sum(each.eta or 0.0 for each in facts if isinstance(each, Charge))
    assert eta < RESERVE
    spent = by_hand(facts, population, cap.unit)
    return epsilon_for(math.sqrt(spent * (1 - 1e-8)), cap.delta or 1.0, 2 * RESERVE) <= (cap.epsilon or 0.0)


# The theorem's bookkeeping


@settings(max_examples=50, deadline=None, derandomize=True)
@given(DRAWS, st.integers(1, 25))
def test_no_sequence_of_allowed_charges_passes_a_cap(draw: random.Random, count: int) -> None:
    """Sets, splits, populations, units, adjacencies, forks: whatever comes, in any order."""
    facts: list[Fact] = [A, B, UNSAID, a_set("a")]
    held = [a_cap(draw.choice((1.0, 3.0, 8.0)), draw.choice((None, "a", "b")), unit=draw.choice(("record", "person")))]
    for _ in range(draw.choice((0, 1))):
        held.append(replace(held[0], id=a_cap(None).id, population=draw.choice((None, "a", "b")), replaces=()))
    facts += held
    for _ in range(count):
        fact = next_fact(draw, facts)
        if not isinstance(fact, Charge):
            continue
        fact = replace(fact, eta=2.0**-230) if fact.private else fact
        if allowed(ledger_of(*facts), fact):
            facts.append(fact)
        for cap in held:
            for population in POPULATIONS if cap.population is None else (cap.population,):
                assert is_kept(facts, population, cap), (cap, population)
    assert ledger_of(*facts).account("a").passed == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(EPSILONS, DELTAS)
def test_a_cap_stands_for_its_epsilon_and_for_no_more(epsilon: float, delta: float) -> None:
    cap = a_cap(epsilon, delta=delta)
    room = caps.allowed(cap)
    reserve = (1 + math.exp(epsilon)) * RESERVE
    assert delta_of(epsilon, math.sqrt(room)) + reserve <= delta
    assert delta_of(epsilon, math.sqrt(room) * (1 + 1e-8)) + reserve > delta
    assert ledger_of(UNSAID).account(None).room(cap) == room
    # Beyond, the reserve for the sampler is seen.
    assert epsilon > 50 or allowed(ledger_of(UNSAID, cap), a_charge(UNSAID, epsilon, delta=delta))
    assert not allowed(ledger_of(UNSAID, cap, a_charge(UNSAID, epsilon, delta=delta)), a_charge(UNSAID, 1e-4))
    assert not allowed(ledger_of(UNSAID, cap), a_charge(UNSAID, epsilon * 1.0001, delta=delta)) or epsilon > 99.9


@settings(max_examples=150, deadline=None, derandomize=True)
@given(DRAWS, st.integers(0, 8))
def test_the_epsilon_that_is_said_to_fit_does_and_the_next_one_does_not(draw: random.Random, count: int) -> None:
    """Under all caps together, on whichever split, set and unit, also after sampled trainings."""
    facts: list[Fact] = [A, UNSAID]
    for _ in range(count):
        fact = next_fact(draw, facts)
        # After a training without a guarantee nothing fits.
        facts += [] if isinstance(fact, Cap) or (isinstance(fact, Charge) and not fact.private) else [fact]
    for _ in range(draw.choice((1, 2, 3))):
        facts.append(a_cap(draw.choice((2.0, 5.0, 20.0)), draw.choice((None, "a")), delta=draw.choice((DELTA, 1e-7))))
    ledger = ledger_of(*facts)
    said: dict[str, Any] = {"unit": draw.choice(("record", "person")), "split": draw.choice(("train", "test"))}
    of, delta = draw.choice((A, UNSAID)), draw.choice((DELTA, 1e-6))
    try:
        caps.check(ledger, a_charge(of, 60.0, delta=delta, **said))
        assert all(cap.population not in (None, *(ledger.populations_of(of.set) or "a")) for cap in ledger.all(Cap))
        return
    except UserError as error:
        refusal = error
    left = refusal.fields["left"]
    least = a_charge(of, 1e-4, delta=delta, **said)
    if left is None:
        assert not allowed(ledger, least)
    else:
        assert isinstance(left, float)
        assert float(f"{left:.4g}") == left
        assert allowed(ledger, a_charge(of, left, delta=delta, **said))
        assert not allowed(ledger, a_charge(of, above(left), delta=delta, **said))
    if of is A and ledger.populations_of(A.set) == frozenset("a"):
        found = caps.left(ledger.account("a"), delta, least)
        assert (None if found is None else found[0]) == (left or 0.0)


def test_what_fails_to_fit_by_a_hair_is_not_said_to_fit() -> None:
    cap, more = a_cap(3.0), DELTA * (1 + 1e-8)
    for before, delta, fits in (((), DELTA, 3.0), ((), more, 2.999), ((a_charge(A, 3 - 1e-8),), DELTA, 0.0)):
        assert caps.left(ledger_of(A, cap, *before).account("a"), delta) == (fits, cap)


def test_what_was_spent_on_another_split_takes_no_room_until_it_has_passed_the_cap() -> None:
    cap, on = a_cap(3.0), a_charge(A, 1.0, split="test")
    for before, fits in ((2.0, 3.0), (3.5, 0.0)):
        assert caps.left(ledger_of(A, cap, a_charge(A, before)).account("a"), DELTA, on) == (fits, cap)


# Which cap holds, and for what


def test_a_cap_holds_for_its_population_and_one_without_a_name_for_each() -> None:
    full = [a_charge(A, 2.5), a_charge(B, 2.5)]
    for cap, refused in ((a_cap(2.6, "a"), (A, UNSAID)), (a_cap(2.6), (A, B, UNSAID)), (a_cap(2.6, "c"), ())):
        ledger = ledger_of(A, B, UNSAID, *full, cap)
        assert [not allowed(ledger, a_charge(of)) for of in (A, B, UNSAID)] == [of in refused for of in (A, B, UNSAID)]
    # A set that is said to be of two populations counts in both.
    both = ledger_of(A, B, a_set("b", set=A.set), full[1], a_cap(2.6, "b"))
    assert not allowed(both, a_charge(A))
    # A name that a merge made another one.
    assert not allowed(ledger_of(A, B, *full, a_cap(2.6, "z"), Merge(by="Ada", same={"z": "a"})), a_charge(A))


def test_a_cap_that_was_replaced_or_removed_holds_no_more_and_all_others_do() -> None:
    strict, loose = a_cap(1.1), a_cap(9.0)
    first = a_charge(A, 1.0)
    for facts, fits in (
        ((strict, loose), False),
        ((strict, replace(loose, replaces=(strict.id,))), True),
        ((loose, replace(strict, replaces=(loose.id,))), False),
        ((strict, a_cap(None, replaces=(strict.id,))), True),
        ((strict, a_cap(None)), False),
        ((strict, loose, a_cap(None, replaces=(loose.id,))), False),
    ):
        assert allowed(ledger_of(A, first, *facts), a_charge(A, 1.0)) == fits
    account = ledger_of(A, loose, strict, a_cap(0.1, "b"), a_cap(2.0, "a", delta=1e-9)).account("a")
    assert [cap.epsilon for cap in account.caps] == sorted((1.1, 2.0, 9.0), key=lambda e: e if e != 2.0 else 1.2)
    assert all((one.most or 0) <= (other.most or 0) for one, other in pairwise(account.caps))


def test_what_no_cap_can_be_kept_with_is_refused_under_one() -> None:
    record, person = a_cap(100.0), a_cap(100.0, unit="person")
    for cap, charge in (
        (record, a_charge(A, claim="research")),
        (record, a_charge(A, claim="non-private")),
        (record, a_charge(A, rate=0.1)),
        (person, a_charge(A)),
        (person, a_charge(A, adjacency="replace-one")),
    ):
        for more in ((), (a_charge(A),)):
            assert code_of(ledger_of(A, *more, cap), charge) == "over-cap"
        assert code_of(ledger_of(A, a_cap(1.0, "b")), charge) is None
    for claim, named in (("research", "seed"), ("non-private", "non_private")):
        with refuses("over-cap", parameter=named):
            caps.check(ledger_of(A, record), a_charge(A, claim=claim))
    # A ledger may have both after a merge.
    for before in (a_set("a", adopted=True), a_charge(A, claim="research"), a_charge(A, claim="non-private")):
        ledger = ledger_of(A, before, record)
        assert code_of(ledger, a_charge(A, unit="person")) == "over-cap"
        assert (caps.left(ledger.account("a"), DELTA) or (1,))[0] == 0
        assert ledger.account("a").passed == [record]


def test_earlier_charges_count_with_all_that_they_may_have_told() -> None:
    """Under a cap of 3, after 2.5, 1.4 fits and 1.5 does not."""
    for before in (
        *(a_charge(A, 2.5, times=3), a_charge(A, 2.5, rate=0.01), a_charge(A, 2.5, adjacency="replace-one")),
        *(a_charge(A, 2.5, method="evaluation"), a_charge(UNSAID, 2.5)),
        a_charge(A, 2.5, unit="person", adjacency="replace-one"),
    ):
        ledger = ledger_of(A, UNSAID, before, a_cap(3.0))
        assert allowed(ledger, a_charge(A, 1.4)), before
        assert not allowed(ledger, a_charge(A, 1.5)), before
    # Another split is another record, unless one is sampled.
    assert allowed(ledger_of(A, a_charge(A, 2.5, split="test"), a_cap(3.0)), a_charge(A, 3.0))
    assert not allowed(ledger_of(A, a_charge(A, 2.5, split="test", rate=0.1), a_cap(3.0)), a_charge(A, 1.5))
    # For a record, one that protects persons counts with twice its μ.
    of_persons = ledger_of(A, a_cap(1.0), a_cap(1.0, unit="person"))
    assert not allowed(of_persons, a_charge(A, 0.9, unit="person"))
    assert allowed(ledger_of(A, a_cap(1.0, unit="person")), a_charge(A, 1.0, unit="person"))


def test_the_distance_of_the_sampler_is_capped_too() -> None:
    assert RESERVE == ETA_PER_SAMPLE * 2**50
    whole = a_charge(A, 0.1, eta=RESERVE)
    assert allowed(ledger_of(A, a_cap(3.0)), whole)
    assert not allowed(ledger_of(A, a_cap(3.0), whole), a_charge(A, 0.1))
    assert not allowed(ledger_of(A, a_cap(3.0), replace(whole, split="test")), a_charge(A, 0.1))


# Setting one


def test_a_cap_is_set_replaced_and_removed_and_every_change_stays(tmp_path: Path) -> None:
    ward, other = (made_set(tmp_path / "features" / name, range(9), "ward7") for name in ("one", "two"))
    unsaid, grouped = (made_set(tmp_path / "features" / f"{p}", range(8), persons=p) for p in (False, True))
    path = tmp_path / "features" / "ledger.sqlite"

    def held() -> list[tuple[str | None, str, float | None]]:
        return [(cap.population, cap.unit, cap.epsilon) for cap in read(path).caps]

    account = dpfc_cli.set_cap(ward, 3.0, delta=1e-3, by="an officer", note="a plan")
    (cap,) = account.caps
    assert (cap.by, cap.note, cap.epsilon, cap.delta, cap.population) == ("an officer", "a plan", 3.0, 1e-3, "ward7")
    dpfc_cli.set_cap(other, 2.0)
    assert held() == [("ward7", "record", 2.0)]
    dpfc_cli.set_cap(unsaid, 5.0)
    dpfc_cli.set_cap(grouped, 7.0)
    assert held() == [("ward7", "record", 2.0), (None, "record", 5.0), (None, "person", 7.0)]
    # The same once more is no more.
    dpfc_cli.set_cap(unsaid, 5.0)
    before = kept(tmp_path)
    for wrong in (0.0, -1.0, 1e-5, 101.0, math.nan, math.inf, "3", True):
        with refuses("bad-value"):
            dpfc_cli.set_cap(ward, wrong)  # type: ignore[arg-type]
    for delta in (0.0, 1.0, 0.2, -1e-5, math.nan, 1e-40):
        with pytest.raises(UserError):
            dpfc_cli.set_cap(ward, 1.0, delta=delta)
    assert kept(tmp_path) == before
    # What was typed by mistake takes no cap away.
    for more in (None, 2.1):
        with refuses("conflict", parameter="note"):
            dpfc_cli.set_cap(ward, more)
    assert kept(tmp_path) == before
    for each in (ward, unsaid, grouped):
        dpfc_cli.set_cap(each, None, note="the end")
    assert held() == []
    with refuses("missing"):
        dpfc_cli.set_cap(ward, None, note="the end")
    assert len(read(path).all(Cap)) == 8
    # A set that was renamed has one of its earlier name alone.
    dpfc_cli.set_cap(ward, 2.0)
    dpfc_cli.set_population(ward, "renamed")
    assert dpfc_cli.set_cap(ward, None, note="the end").caps == ()
    # One person of four is half of the records of one of eight: δ may be as large.
    dpfc_cli.set_cap(grouped, 7.0, delta=0.25)


def test_a_cap_that_would_be_false_from_the_start_is_refused_and_the_least_true_one_is_said(tmp_path: Path) -> None:
    ward = made_set(tmp_path / "features" / "one", range(9), "ward7")
    grouped = made_set(tmp_path / "features" / "two", range(20, 30), "ward8", persons=True)
    unsaid = made_set(tmp_path / "features" / "three", range(40, 50))
    path = tmp_path / "features" / "ledger.sqlite"
    for epsilon in (1.0, 0.5):
        written(path, a_charge(ward.manifest.id, epsilon), a_charge(grouped.manifest.id, epsilon))
        before = kept(tmp_path)
        for of, less in product((unsaid, ward), (1e-4, 0.99 * epsilon)):
            with refuses("over-cap") as error:
                dpfc_cli.set_cap(of, less, delta=DELTA)
        least = error.value.fields["least"]
        assert isinstance(least, float)
        with pytest.raises(UserError):
            dpfc_cli.set_cap(ward, least * 0.9999, delta=DELTA)
        # No cap for persons covers a training for records.
        with refuses("over-cap", least=None):
            dpfc_cli.set_cap(grouped, 100.0, delta=DELTA)
        assert kept(tmp_path) == before
        digits = math.ceil(least * 10_000 * (1 + 1e-9)) / 10_000
        assert dpfc_cli.set_cap(ward, digits, delta=DELTA).passed == []
        assert not allowed(read(path), a_charge(ward.manifest.id, 0.2))
        dpfc_cli.set_cap(ward, None, note="the end")
    for never in (a_charge(grouped.manifest.id, claim="research"), a_set("ward7", adopted=True)):
        dpfc_cli.set_population(grouped, "ward7")
        written(path, never)
        with refuses("over-cap", least=None):
            dpfc_cli.set_cap(ward, 100.0, delta=DELTA)
