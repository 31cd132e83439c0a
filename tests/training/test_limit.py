"""What fits under a cap, and which caps hold."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from dpfc_cli.training.cap import set_cap
from dpfc_cli.training.ledger import Entry, ledger_path
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfc_cli.errors import UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.privacy.accounting import delta_of, epsilon_for, mu_for
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from dpfc_cli.training import ledger, limit
from tests.support import blobs
from tests.training.caps import allowed, cap_of, row

EPSILONS, DELTAS = st.floats(1e-4, 100), st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])


# The figures


@settings(max_examples=50, deadline=None, derandomize=True)
@given(EPSILONS, DELTAS)
def test_a_cap_stands_for_no_more_than_its_epsilon(epsilon: float, delta: float) -> None:
    mu = limit.mu_of_cap(epsilon, delta)
    assert delta_of(epsilon, mu * math.sqrt(1 + limit.ROUNDING)) + (1 + math.exp(epsilon)) * limit.RESERVE <= delta
    assert delta_of(epsilon, mu * (1 + 1e-8)) + (1 + math.exp(epsilon)) * limit.RESERVE > delta


@settings(max_examples=50, deadline=None, derandomize=True)
@given(EPSILONS, DELTAS, st.integers(1, 40), st.integers(1, 5))
def test_parts_of_a_cap_fill_it_and_one_more_does_not_fit(epsilon: float, delta: float, n: int, releases: int) -> None:
    mu = limit.mu_of_cap(epsilon, delta) / math.sqrt(n)
    sigma = math.sqrt(releases) / mu
    release = {"kind": "gradient", "shape": [3, 2], "share": 1 / releases, "sigma": sigma, "rate": 1, "times": releases}
    part = replace(row(1.0), epsilon=1.0, mu=mu, eta=0.0, releases=json.dumps([release]))
    cap = cap_of(epsilon, delta)
    assert allowed(cap, [part] * (n - 1), part)
    assert not allowed(cap, [part] * n, part)
    assert limit.room(cap, [part] * n) < mu**2 * 1e-6


def test_a_training_of_the_caps_own_epsilon_and_delta_fits() -> None:
    for epsilon in (1e-4, 0.3, 1.0, 3.0, 8.0, 50.0):
        for delta in (1e-9, 1e-5):
            assert allowed(cap_of(epsilon, delta), [], row(epsilon, delta))
            assert not allowed(cap_of(epsilon, delta), [row(epsilon, delta)], row(1e-4, delta))
            assert limit.fitting(limit.room(cap_of(epsilon, delta), []), delta) == epsilon


@settings(max_examples=50, deadline=None, derandomize=True)
@example(10.0, 1e-4, 1e-9, 1e-9)
@example(3.0, 1e-4, 1e-9, 1e-9)
@given(EPSILONS, EPSILONS, DELTAS, DELTAS)
def test_the_epsilon_that_is_said_to_fit_does_and_none_that_is_larger_by_a_digit(
    epsilon: float, used: float, of_cap: float, delta: float
) -> None:
    cap, before = cap_of(epsilon, of_cap), row(used, delta)
    if not allowed(cap, [], before):
        return
    left = limit.room(cap, [before])
    fits = limit.fitting(left, delta) if left > 0 else None
    if fits is None:
        assert not allowed(cap, [before], row(1e-4, delta))
        return
    assert float(f"{fits:.4g}") == fits
    assert allowed(cap, [before], row(fits, delta))
    digit = 10.0 ** (math.floor(math.log10(fits)) - 3)
    assert fits + 1.001 * digit > 100 or not allowed(cap, [before], row(fits + 1.001 * digit, delta))


@pytest.mark.parametrize(("too_much", "fits"), [(1.001, 1.0), (1.0, 0.9999), (0.1001, 0.1), (0.1, 0.09999)])
def test_the_epsilon_below_one_that_hardly_does_not_fit_is_the_next_one_of_four_digits(
    too_much: float, fits: float
) -> None:
    left = mu_for(too_much * (1 - 5e-9), 1e-5) ** 2
    assert mu_for(too_much, 1e-5) ** 2 > left
    assert limit.fitting(left, 1e-5) == fits


@pytest.mark.parametrize("epsilon", [1e-4, 0.5, 1.0, 3.0])
def test_the_least_cap_for_one_training_is_its_own_epsilon(epsilon: float) -> None:
    assert limit.least([row(epsilon)], 1e-5) == epsilon


def test_the_least_cap_may_be_the_largest_one() -> None:
    assert limit.least([row(99.995)], 1e-5) == 100.0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(EPSILONS, min_size=1, max_size=4), DELTAS, DELTAS)
def test_the_least_cap_that_is_true_holds_and_none_that_is_smaller_by_a_digit(
    epsilons: list[float], delta: float, of_cap: float
) -> None:
    entries = [row(epsilon, delta) for epsilon in epsilons]
    least = limit.least(entries, of_cap)
    if least is None:
        assert limit.room(cap_of(100.0, of_cap), entries) < 0
        return
    assert float(f"{least:.4g}") == least
    assert limit.room(cap_of(least, of_cap), entries) >= 0
    digit = 10.0 ** (math.floor(math.log10(least)) - 3)
    if least - 1.001 * digit >= 1e-4:
        assert limit.room(cap_of(least - 1.001 * digit, of_cap), entries) < 0


def test_the_distance_of_the_sampler_is_capped_too() -> None:
    assert limit.RESERVE == ETA_PER_SAMPLE * 2**50
    cap = cap_of(3.0)
    whole = replace(row(0.1), eta=limit.RESERVE)
    assert allowed(cap, [], whole)
    assert not allowed(cap, [whole], row(0.1))
    with pytest.raises(ValueError, match="uses up delta"):
        limit.mu_of_cap(100.0, 1e-20)


def filled(seed: int, rule: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """The logarithm of the likelihood ratio of 100,000 runs of adaptive releases under a cap of M = 1, which the last
    release fills. rule: what a run has spent, and how loud it is asked to be → how loud the next release is.
    """
    rng = np.random.default_rng(seed)
    spent, ratio = np.zeros(100_000), np.zeros(100_000)
    for step in range(12):
        # Whoever looks lucky goes on louder, and the last one takes what is left.
        wish = np.where(ratio > 0.2, 0.6, 0.15) if step < 11 else np.full(len(spent), 9.0)
        a = rule(spent, wish)
        ratio += a * rng.normal(size=len(a)) - a**2 / 2
        spent += a**2
    return ratio


def test_adaptive_releases_under_a_cap_are_one_gaussian_mechanism_and_without_one_they_are_not() -> None:
    """By the theorem of `limit` the logarithm is N(−M/2, M). Kolmogorov's distance exceeds 0.0073 by chance with
    probability 5e-5.
    """

    def distance(found: np.ndarray) -> float:
        normal, n = NormalDist(-0.5, 1.0), len(found)
        true = np.array([normal.cdf(value) for value in np.sort(found)])
        return float(max((np.arange(1, n + 1) / n - true).max(), (true - np.arange(n) / n).max()))

    assert distance(filled(1, lambda spent, wish: np.minimum(wish, np.sqrt(np.maximum(1 - spent, 0))))) < 0.0073
    # A training that may pass the cap once, as where the check looks at what was spent before it alone.
    assert distance(filled(1, lambda spent, wish: np.where(spent < 1, np.minimum(wish, 0.6), 0))) > 0.02


# Which cap holds, and for whom


def test_the_newest_cap_of_each_ledger_holds_and_the_strictest_one_comes_first() -> None:
    found = limit.in_force(
        [("a", cap_of(1.0)), ("a", cap_of(3.0)), ("b", cap_of(2.0)), ("c", cap_of(0.5)), ("c", cap_of(None))]
    )
    assert [(name, cap.epsilon) for name, cap in found] == [("b", 2.0), ("a", 3.0)]
    # ε = 2 at δ = 1e-9 is less than at 1e-5.
    found = limit.in_force([("a", cap_of(2.0, 1e-5)), ("b", cap_of(2.0, 1e-9))])
    assert [cap.delta for _, cap in found] == [1e-9, 1e-5]


@pytest.mark.parametrize("state", ["charged", "written", "stopped", "unknown"])
def test_every_row_counts_whatever_became_of_it(state: Any) -> None:
    before = replace(row(2.5), state=state)
    assert allowed(cap_of(3.0), [before], row(1.4))
    assert not allowed(cap_of(3.0), [before], row(1.5))


def test_rows_under_replace_one_count_with_their_whole_mu() -> None:
    for adjacency in ("zero-out", "replace-one"):
        changed: dict[str, Any] = {"adjacency": adjacency}
        assert allowed(cap_of(3.0), [row(2.5, **changed)], row(1.4, **changed))
        assert not allowed(cap_of(3.0), [row(2.5, **changed)], row(1.5, **changed))


def test_earlier_sampled_releases_count_as_full_passes() -> None:
    sampled = row(2.5, rate=0.01)
    assert limit.spent([sampled]) == pytest.approx(limit.spent([row(2.5)]), rel=1e-12)
    assert not allowed(cap_of(3.0), [sampled], row(1.5))


(_SAMPLED,) = row(1.0, rate=0.1).plan
PARTLY_SAMPLED = replace(row(1.0), releases=json.dumps([{**_SAMPLED, "rate": 1.0}, _SAMPLED]))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (row(1.0, rate=0.1), "for sampled ones there is no proof"),
        (PARTLY_SAMPLED, "for sampled ones there is no proof"),
        (replace(row(1.0), claim="research", epsilon=None, delta=None, mu=None, eta=None), "no cap is kept with it"),
    ],
)
def test_a_training_that_no_cap_can_be_kept_with_is_refused_under_one(entry: Entry, says: str) -> None:
    with pytest.raises(UserError, match=says) as refused:
        limit.check([("set", cap_of(100.0))], [], entry)
    assert (refused.value.code, refused.value.fields["cap"]) == ("conflict", 100.0)
    limit.check([("set", cap_of(100.0)), ("set", cap_of(None))], [], entry)


def test_a_refusal_says_which_cap_and_what_still_fits() -> None:
    with pytest.raises(UserError) as refused:
        limit.check([("digits", cap_of(3.0))], [row(2.5)], row(2.0, 1e-6))
    said, fields = refused.value, refused.value.fields
    assert said.what == (
        "This training does not fit under the cap of these records: epsilon = 3 at delta = 1e-05 for digits. At "
        f"delta = 1e-06 epsilon = {fields['left']:.4g} still fits."
    )
    assert fields["left"] == pytest.approx(
        epsilon_for(math.sqrt(mu_for(3.0, 1e-5) ** 2 - mu_for(2.5, 1e-5) ** 2), 1e-6), rel=1e-3
    )
    assert {name: fields[name] for name in ("feature_set", "cap", "cap_delta", "asked", "delta")} == {
        **{"feature_set": "digits", "cap": 3.0, "cap_delta": 1e-5, "asked": 2.0, "delta": 1e-6}
    }
    with pytest.raises(UserError, match=r"Nothing more fits\."):
        limit.check([("digits", cap_of(3.0))], [row(3.0)], row(1e-4))


# Units


def of_persons(entry: Entry, which: str = "a") -> Entry:
    return replace(entry, unit="person", persons=which * 64)


def test_for_a_record_a_training_that_protects_persons_counts_with_twice_its_mu() -> None:
    one, other = row(0.5), of_persons(row(0.5))
    assert limit.spent([other]) == pytest.approx(4 * limit.spent([one]))
    assert ledger.together([one, other], 1e-5) == pytest.approx(epsilon_for(math.sqrt(5) * mu_for(0.5, 1e-5), 1e-5))
    assert ledger.unit_of([one, other]) == ledger.RECORD
    assert not ledger.composes_exactly([one, other])
    cap = cap_of(1.0)
    for n in range(4):
        fits = limit.fitting(limit.room(cap, [one] * n, other.protects), 1e-5)
        assert fits is not None
        assert allowed(cap, [one] * n, of_persons(row(fits)))
        assert not allowed(cap, [one] * n, of_persons(row(fits * 1.01)))


def test_a_sampled_training_for_persons_counts_for_a_record_as_full_passes() -> None:
    """The bound of a sample is for a unit that takes part or does not. One record of a person is none."""
    sampled = replace(row(0.5, releases=3, rate=0.1, mu=0.9), unit="person", persons="a" * 64)
    sigma = sampled.plan[0]["sigma"]
    found = ledger.together([row(0.5), sampled], 1e-5)
    mu = math.sqrt(mu_for(0.5, 1e-5) ** 2 + 3 * 4 / sigma**2)
    assert found == pytest.approx(epsilon_for(mu, 1e-5))
    # By itself it is for persons, and the sample counts.
    assert ledger.together([sampled], 1e-5) < epsilon_for(0.9, 1e-5)


def test_a_cap_for_persons_after_a_training_for_records_says_why_there_is_none(tmp_path: Path) -> None:
    x, y = blobs(60, 2, 2)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, train_groups=np.arange(60) // 3)
    features = import_features(tmp_path / "a.npz", tmp_path / "features" / "a", classes=("a", "b")).features
    ledger.charge(ledger_path(features.folder), row(1.0, records=ledger.records_of(features.manifest)))
    with pytest.raises(UserError, match="do not protect the persons of a"):
        set_cap(features, 50.0, delta=1e-5)


def test_trainings_for_the_same_persons_are_summed_for_these_persons() -> None:
    rows = [of_persons(row(0.5)), of_persons(row(1.0))]
    assert ledger.unit_of(rows) == ("person", "a" * 64)
    assert ledger.composes_exactly(rows)
    plain = [replace(each, unit="record", persons=None) for each in rows]
    assert ledger.together(rows, 1e-5) == ledger.together(plain, 1e-5)
    assert ledger.unit_of([*rows, of_persons(row(1.0), "b")]) == ledger.RECORD


@pytest.mark.parametrize("other", [row(0.1), of_persons(row(0.1), "b")], ids=["a record", "other persons"])
def test_under_a_cap_for_persons_only_trainings_that_protect_them_are_made(other: Entry) -> None:
    cap = cap_of(3.0, unit="person", persons="a" * 64)
    assert allowed(cap, [], of_persons(row(1.0)))
    with pytest.raises(UserError, match=r"for each person for set\. This training would not protect these persons"):
        limit.check([("set", cap)], [], other)
    assert limit.room(cap, [other]) == -math.inf
    assert limit.least([other], 1e-5, cap.protects) is None


@pytest.mark.parametrize("changed", [{"unit": "person"}, {"persons": "a" * 64}, {"unit": "family"}])
def test_rows_and_caps_that_contradict_themselves_about_persons_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"contradict|'unit'"):
        ledger.check(replace(row(1.0), **changed))
    with pytest.raises(ValueError, match=r"contradict|'unit'"):
        ledger.check_cap(cap_of(1.0, **changed))
