"""What was spent on a population: one sum over the facts, which no fact makes smaller."""

import math
import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfc_cli.ledger.facts import Fact, Merge, Outcome, Released, Set, new_id
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import epsilon_for
from tests.ledger.facts import (
    DELTA,
    DIGEST,
    POPULATIONS,
    a_cap,
    a_charge,
    a_set,
    by_hand,
    ledger_of,
    next_fact,
    some_facts,
    some_figures,
    spent_by,
)  # fmt: skip
from tests.support import replace

DRAWS = st.randoms(use_true_random=False)
NAMES = (None, *POPULATIONS)
UNITS = ("record", "person")
A, B, UNSAID = a_set("a"), a_set("b"), a_set()


def squares(ledger: Ledger, population: str | None, unit: str) -> float:
    return ledger.account(population).used(unit)  # type: ignore[arg-type]


def close(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=1e-9)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(DRAWS, st.integers(0, 14))
def test_a_total_is_that_of_the_splits_that_cost_most(draw: random.Random, count: int) -> None:
    """As another program composes it. Sampled releases count as full passes here."""
    facts = some_facts(draw, count)
    ledger = ledger_of(*facts)
    for population, unit in product(NAMES, UNITS):
        account = ledger.account(population)
        expected = by_hand(facts, population, unit)
        assert close(account.used(unit), expected)  # type: ignore[arg-type]
        if any(charge.sampled for charge in account.private):
            continue
        eta = math.fsum(charge.eta or 0.0 for charge in account.private)
        due = epsilon_for(math.sqrt(expected), DELTA, eta) if account.private else 0.0
        assert math.isclose(account.epsilon(DELTA, unit), due, rel_tol=1e-6)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(DRAWS, st.integers(0, 12))
def test_no_fact_makes_a_total_smaller_but_the_first_that_says_whose_a_set_is(draw: random.Random, count: int) -> None:
    facts = some_facts(draw, count, sampled=False)
    before = ledger_of(*facts)
    fact = next_fact(draw, facts, sampled=False)
    while isinstance(fact, Set) and fact.replaces and before.populations_of(fact.set) is None:
        fact = next_fact(draw, facts, sampled=False)
    if draw.random() < 0.2:
        pairs = {draw.choice(POPULATIONS): draw.choice(POPULATIONS)}
        ignored = tuple(each.id for each in facts if each.replaces and draw.random() < 0.5)
        fact = Merge(by="Ada", same=pairs, ignored=ignored)
    after = ledger_of(*facts, fact)
    for population, unit in product(NAMES, UNITS):
        was, now = before.account(population), after.account(after.named(population))
        assert now.used(unit) >= was.used(unit)  # type: ignore[arg-type]
        assert now.epsilon(DELTA, unit) >= was.epsilon(DELTA, unit)  # type: ignore[arg-type]
        assert (len(now.charges), now.unprotected, now.adopted) >= (len(was.charges), was.unprotected, was.adopted)
        assert was.unit == "person" or not was.private or now.unit == "record"
    for of in before.sets:
        assert after.account_of(of).epsilon(DELTA, "record") >= before.account_of(of).epsilon(DELTA, "record")


@settings(max_examples=100, deadline=None, derandomize=True)
@given(DRAWS, st.integers(1, 12))
def test_what_is_unsaid_counts_for_everybody(draw: random.Random, count: int) -> None:
    """To say nothing of a set costs each population at least as much as to say whose it is."""
    facts = some_facts(draw, count, sampled=False)
    population = draw.choice(POPULATIONS)
    said = ledger_of(*facts, a_cap(8.0, population))
    replaced = {one for each in facts for one in each.replaces}
    for each in [each for each in facts if isinstance(each, Set) and each.id not in replaced]:
        unsaid = [replace(one, population=None) if one is each else one for one in said.facts]
        for unit in UNITS:
            assert squares(ledger_of(*unsaid), population, unit) >= squares(said, population, unit) * (1 - 1e-12)
        for ledger in (said, ledger_of(*unsaid)):
            account = ledger.account_of(each.set)
            where = ledger.populations_of(each.set)
            assert where is None or account.population in where
            for name in ledger.populations if where is None else where:
                other = ledger.account(name)
                assert account.epsilon(DELTA, "record") >= other.epsilon(DELTA, "record") or account.adopted
                assert account.unit == "record" or not other.private or other.unit == "person"


def test_charges_are_in_the_order_of_their_times_whatever_a_merge_made_of_the_rows() -> None:
    of = a_set("a")
    charges = [a_charge(of, at=f"2026-01-0{day}T00:00:00+00:00") for day in (1, 3, 2, 4)]
    assert [each.at[9] for each in ledger_of(of, *charges).account("a").charges] == ["1", "2", "3", "4"]


def test_a_set_of_which_nothing_is_said_has_the_largest_of_all_totals() -> None:
    facts: list[Fact] = [A, B, UNSAID, a_charge(A, 1.0), a_charge(B, 2.5), a_charge(UNSAID, 0.5)]
    ledger = ledger_of(*facts)
    for of, epsilons, names in ((A, (1.0, 0.5), "a"), (B, (2.5, 0.5), "b"), (UNSAID, (2.5, 0.5), ("a", "b", None))):
        account = ledger.account_of(of.set)
        assert account.epsilon(DELTA) == pytest.approx(spent_by(*epsilons), rel=1e-6)
        assert {each.population for each in account.meant} == {*names}
    # Where nobody is named, all sets are of one population. A population that only has a cap is one, too.
    alone = ledger_of(UNSAID, a_charge(UNSAID), other := a_set(), a_charge(other))
    assert alone.account_of(other.set).epsilon(DELTA) == pytest.approx(spent_by(1.0, 1.0), rel=1e-6)
    assert ledger_of(*alone.facts, a_cap(9.0, "c")).account_of(other.set).population == "c"
    # Who was named stays named, whatever a later fact replaces.
    assert ledger_of(A, replace(A, id=new_id(), population="b", replaces=(A.id,))).populations == ("a", "b")
    # A sample may cost less than full passes with more noise.
    sampled = ledger_of(*facts[:3], a_charge(A, 2.5, rate=0.1), a_charge(B, 1.0))
    assert sampled.account_of(UNSAID.set).population == "b"
    # What is not known is more than any number.
    adopted = ledger_of(*facts, a_set("a", adopted=True))
    assert adopted.account_of(UNSAID.set).at_least
    assert not adopted.account_of(B.set).at_least


def test_a_total_is_for_persons_only_where_all_charges_with_a_guarantee_protect_them() -> None:
    persons = [a_charge(A, 1.0, unit="person"), a_charge(A, 0.5, unit="person")]
    account = ledger_of(A, *persons, a_charge(A, claim="research")).account("a")
    assert (account.unit, account.unprotected) == ("person", 1)
    assert account.epsilon(DELTA) == pytest.approx(spent_by(1.0, 0.5), rel=1e-6)
    assert account.epsilon(DELTA, "record") == pytest.approx(spent_by(*[1.0, 0.5] * 4), rel=1e-6)
    mixed = ledger_of(A, *persons, a_charge(A, 0.5)).account("a")
    assert mixed.unit == "record"
    assert mixed.epsilon(DELTA) == pytest.approx(spent_by(*[1.0, 0.5] * 4, 0.5), rel=1e-6)
    assert mixed.epsilon(DELTA, "person") == math.inf
    # A sample is one of persons: for a record it is no help.
    sampled = ledger_of(A, a_charge(A, 0.5, unit="person", rate=0.1)).account("a")
    assert sampled.epsilon(DELTA, "record") == pytest.approx(spent_by(*[0.5] * 4), rel=1e-6)
    assert sampled.epsilon(DELTA) < spent_by(0.5)
    # A set of which nothing is said may hold those of either population.
    either = ledger_of(A, B, UNSAID, a_charge(A, 2.5, unit="person"), a_charge(B, 2.6), a_charge(UNSAID, unit="person"))
    assert either.account("a").unit == "person"
    of_both = either.account_of(UNSAID.set)
    assert (of_both.unit, {each.population for each in of_both.meant}) == ("record", {"a", "b", None})
    assert of_both.epsilon(DELTA) >= max(either.account(name).epsilon(DELTA, "record") for name in "ab")


def test_only_full_passes_of_one_split_under_zero_out_compose_exactly() -> None:
    first = a_charge(A)
    for more, exact in (
        ((), True),
        ((a_charge(A, 0.5, times=3), a_charge(A, method="evaluation")), True),
        ((a_charge(A, 0.5, split="test"),), True),
        ((a_charge(A, claim="research"),), True),
        ((a_charge(UNSAID),), False),
        ((a_charge(A, adjacency="replace-one"),), False),
        ((a_charge(A, unit="person"),), False),
        ((a_charge(A, rate=0.1),), False),
    ):
        assert ledger_of(A, UNSAID, first, *more).account("a").exact == exact


def test_a_total_in_words_says_where_it_is_a_bound_or_less_than_all() -> None:
    sets, one, other = [A, UNSAID], a_charge(A), a_charge(UNSAID)
    words = ("epsilon", "upper bound", "at least", "without a guarantee")
    for facts, said in (
        ([*sets], set[str]()),
        ([*sets, one], {"epsilon"}),
        ([*sets, one, other], {"epsilon", "upper bound"}),
        ([*sets, a_set("a", adopted=True)], {"at least"}),
        ([*sets, one, a_charge(A, claim="research")], {"epsilon", "without a guarantee"}),
    ):
        account = ledger_of(*facts).account("a")
        assert {each for each in words if each in account.summed(DELTA)} == said
        assert account.summed(1e-5) in repr(account)


def test_names_that_merges_made_one_lead_to_one_whatever_their_order() -> None:
    """Also in a circle, and where a ledger says two things of one name. Nothing is then in fewer populations."""

    def merge(**same: str) -> Merge:
        return Merge(by="Ada", same=same)

    sets = [a_set(name) for name in "abcd"]
    charges = [a_charge(each, 0.5) for each in sets]
    for merges in (
        (merge(b="a"), merge(c="b"), merge(d="c")),
        (merge(a="b"), merge(b="c"), merge(c="b"), merge(d="a")),
        (merge(d="a"), merge(d="b"), merge(d="c")),
        (merge(a="b", b="a", c="d", d="c"), merge(a="c")),
    ):
        for order in (merges, merges[::-1]):
            ledger = ledger_of(*sets, *charges, *order)
            (name,) = {ledger.named(each) for each in "abcd"}
            assert ledger.populations == (name,)
            assert len(ledger.account(name).charges) == 4
            assert ledger.named("e") == "e"
            assert ledger.named(None) is None
    assert ledger_of(*sets, merge(b="a"), merge(c="b")).named("c") == "a"


def test_a_ledger_knows_what_it_said_before() -> None:
    """A head says what was spent when it was charged."""
    charges = [a_charge(A, 1.0), a_charge(A, 0.5)]
    ledger = ledger_of(A, *charges, a_charge(A, 2.5))
    then = ledger.until(charges[1].id)
    assert then.facts == (A, *charges)
    assert then.account_of(A.set).epsilon(DELTA) == pytest.approx(spent_by(1.0, 0.5), rel=1e-6)


def test_the_charge_of_a_file_is_found_by_its_digest() -> None:
    charges = [a_charge(A), a_charge(A)]
    ended = Outcome(by="Ada", charge=charges[1].id, state="written", sha256=DIGEST)
    ledger = ledger_of(A, *charges, Outcome(by="Ada", charge=charges[1].id, state="resumed"), ended)
    assert ledger.written(DIGEST) == [charges[1]]
    assert ledger.written(DIGEST[::-1]) == []
    assert (ledger.outcome(charges[0].id), ledger.outcome(charges[1].id)) == (None, ended)
    assert charges[0].id in ledger.known
    assert new_id() not in ledger.known


def test_released_figures_are_those_that_the_outcome_of_their_charge_names() -> None:
    charges = [a_charge(A, method="evaluation") for _ in range(3)]
    first, second, third = (some_figures(each.id, top1=0.125 * i) for i, each in enumerate(charges))
    ends = [
        Outcome(by="Ada", charge=each.id, state="written", sha256=made.sha256)
        for each, made in zip(charges[:2], (first, second), strict=True)
    ]
    told = [Released(by="Ada", figures=each) for each in (first, second, third, some_figures(charges[0].id, n=1))]
    ledger = ledger_of(A, *charges, *ends, *told)
    assert ledger.released == {charges[0].id: first, charges[1].id: second}
    assert (ledger.released_of(DIGEST), ledger.released_of("f" * 64)) == ([first, second], [])
