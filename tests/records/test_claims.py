"""Figures that contradict one another are refused, also where they do by little more than trainings are inexact."""

import math

import numpy as np
import pytest

from dpfc_cli.privacy.accounting import LEAST_EPSILON, delta_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Plan, planned
from dpfc_cli.privacy.queries import Gradient, Mean
from dpfc_cli.records.claims import Claimed, Release, described, figures_fault, same_epsilon
from tests.support import CHAIN


def claim(epsilon: float = 1.0, /, **factors: float) -> Claimed:
    """A claim of one release whose figures agree, but for factors of some of them. η makes a good part of δ."""
    mu, eta = 0.3, 1e-4
    delta = delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta
    said = {"epsilon": epsilon, "delta": delta, "mu": mu, "eta": eta, "share": 1.0, "sigma": 1 / mu}
    said |= {name: said[name] * factor for name, factor in factors.items()}
    release = Release(kind="gram", shape=(3, 3), share=said.pop("share"), sigma=said.pop("sigma"), rate=1.0, times=1)
    return Claimed(claim="private", adjacency="zero-out", unit="record", plan=(release,), **said)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [("delta", 8e-7, 2e-6), ("eta", 1e-6, 1e-5), ("mu", 4e-10, 2e-9), ("sigma", 4e-10, 2e-9), ("share", 8e-10, 2e-9)],
)
def test_a_figure_is_taken_as_far_as_trainings_are_inexact_and_no_further(
    name: str, right: float, wrong: float
) -> None:
    for sign in (1, -1):
        assert figures_fault(claim(**{name: 1 + sign * right})) is None
        assert figures_fault(claim(**{name: 1 + sign * wrong})) is not None
    assert figures_fault(claim(**{name: 0.5})) is not None


def test_the_least_epsilon_may_stand_for_less_but_not_for_more() -> None:
    assert figures_fault(claim(LEAST_EPSILON, delta=1.01)) is None
    assert figures_fault(claim(LEAST_EPSILON, delta=1 - 8e-7)) is None
    assert figures_fault(claim(LEAST_EPSILON, delta=1 - 2e-6)) is not None
    assert figures_fault(claim(LEAST_EPSILON * (1 + 2e-6), delta=1.01)) is not None


def test_the_epsilon_of_samples_is_that_which_is_computed_again_within_the_search() -> None:
    for sign in (1, -1):
        assert same_epsilon(1.0, 1 + sign * 0.9e-5)
        assert not same_epsilon(1.0, 1 + sign * 1.1e-5)
    assert same_epsilon(None, None)
    assert not same_epsilon(None, 1.0)


def test_equal_releases_that_follow_one_another_are_one_row() -> None:
    facts = Facts(n=100, m=2, d=2)
    mean, gradient = (
        planned(Mean(CHAIN), facts, 1.0),
        planned(Gradient(CHAIN, np.zeros((3, 2)), clip=1.0), facts, 2.0, 0.5),
    )
    plan = Plan((mean, gradient, gradient, gradient, mean))
    sigmas = plan.sigmas(1.0)
    made = described(plan, sigmas)
    assert [(row.kind, row.shape, row.share, row.sigma, row.rate, row.times) for row in made] == [
        ("mean", (1, 2), 1 / 8, sigmas[0], 1.0, 1),
        ("gradient", (3, 2), 2 / 8, sigmas[1], 0.5, 3),
        ("mean", (1, 2), 1 / 8, sigmas[4], 1.0, 1),
    ]
    assert [row.sigma for row in described(plan, None)] == [0.0] * 3
    with pytest.raises(ValueError, match="zip"):
        described(plan, sigmas[:-1])
