"""Noise as ε, and ε as noise, before there is a training: the same figures as those of a training."""

import math
from typing import Any

import pytest

from dpfc_cli.conversion import conversions, epsilon_of, noise_multiplier_of
from dpfc_cli.errors import UserError
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import LEAST_EPSILON, Privacy, zcdp_epsilon
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import calibrate

FACTS = Facts(n=1000, m=4, d=9)
DELTAS = (1e-5, 1e-7)


def converted(steps: int | None = None, **asked: float) -> list[dict[str, Any]]:
    both: dict[str, float | None] = {"noise_multiplier": None, "epsilon": None}
    return conversions(**{**both, **asked}, deltas=DELTAS, steps=steps)


@pytest.mark.parametrize("steps", [None, 3])
def test_a_noise_multiplier_is_worth_the_epsilon_that_a_training_with_it_claims(steps: int | None) -> None:
    rows = converted(steps, noise_multiplier=7.0)
    assert [(row["method"], row["delta"]) for row in rows] == [(name, delta) for name in METHODS for delta in DELTAS]
    for row in rows:
        method = METHODS[row["method"]]
        given = {"steps": steps} if steps and "steps" in method.declared else {}
        made = calibrate(method, FACTS, given, Privacy(noise_multiplier=7.0, delta=row["delta"]))
        assert made.guarantee is not None
        assert row["epsilon"] == pytest.approx(made.guarantee.epsilon, rel=1e-8)
        assert (row["sigma"], row["releases"]) == (7.0, made.plan.count)
        assert row["steps"] == (made.options.steps if "steps" in method.declared else None)


def test_an_epsilon_takes_the_noise_that_is_worth_it() -> None:
    for row in converted(epsilon=1.5):
        back = epsilon_of(noise_multiplier=row["sigma"], releases=row["releases"], delta=row["delta"])
        assert back == pytest.approx(1.5, rel=1e-6)
        assert row["epsilon"] == 1.5
        assert row["sigma"] == noise_multiplier_of(epsilon=1.5, releases=row["releases"], delta=row["delta"])


def test_the_conversion_of_zcdp_is_never_better_and_stated_no_lower_than_any_epsilon() -> None:
    for row in converted(noise_multiplier=7.0):
        assert row["zcdp"] == zcdp_epsilon(math.sqrt(row["releases"]) / 7.0, row["delta"]) > row["epsilon"]
    for row in converted(epsilon=1.5):
        assert zcdp_epsilon(math.sqrt(row["releases"]) / row["zcdp"], row["delta"]) == pytest.approx(1.5)
        assert row["zcdp"] > row["sigma"]
    assert {row["zcdp"] for row in converted(noise_multiplier=1e300)} == {LEAST_EPSILON}


def test_samples_cost_what_a_training_on_them_claims() -> None:
    given: dict[str, Any] = {"steps": 40, "sampling_rate": 0.1}
    both: list[dict[str, Any]] = [{"noise_multiplier": 1.5}, {"epsilon": 1.5}]
    for asked in both:
        rows = converted(**given, **asked)
        assert [row["method"] for row in rows[::2]] == ["dp-sgd", "dp-momentum", "dp-adam"]
        for row in rows[:2]:
            privacy = Privacy(**asked, delta=row["delta"])
            made = calibrate(METHODS["dp-sgd"], FACTS, given, privacy)
            assert made.guarantee is not None
            assert row["epsilon"] == pytest.approx(made.guarantee.epsilon, rel=1e-5)
            assert (row["sigma"], row["zcdp"]) == (pytest.approx(made.noise.sigmas[0], rel=1e-5), None)
    assert (
        converted(steps=40, noise_multiplier=1.5)[-1]["epsilon"]
        > 3 * converted(**given, noise_multiplier=1.5)[-1]["epsilon"]
    )
    assert epsilon_of(noise_multiplier=2, releases=3, delta=1e-5, sampling_rate=1) == epsilon_of(
        noise_multiplier=2, releases=3, delta=1e-5
    )


def test_what_is_no_noise_and_no_release_is_refused() -> None:
    for rate in (0.0, 1.1, math.nan):
        with pytest.raises(UserError, match="sampling rate"):
            epsilon_of(noise_multiplier=1.0, releases=1, delta=1e-5, sampling_rate=rate)
    for sigma in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match="noise multiplier"):
            epsilon_of(noise_multiplier=sigma, releases=1, delta=1e-5)
    with pytest.raises(UserError, match="release"):
        epsilon_of(noise_multiplier=1.0, releases=0, delta=1e-5)
    with pytest.raises(UserError, match="release"):
        noise_multiplier_of(epsilon=1.0, releases=0, delta=1e-5)
