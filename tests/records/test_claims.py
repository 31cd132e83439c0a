"""Figures that contradict one another are refused, also where they do by little more than trainings are inexact."""

import math
from typing import Any

import pytest

from dpfc_cli.privacy.accounting import LEAST_EPSILON, delta_of
from dpfc_cli.records.claims import figures_fault, same_epsilon


def claim(epsilon: float = 1.0, /, **factors: float) -> dict[str, Any]:
    """A claim of one release whose figures agree, but for factors of some of them. η makes a good part of δ."""
    mu, eta = 0.3, 1e-4
    release: dict[str, Any] = {"kind": "gram", "shape": [3, 3], "share": 1.0, "sigma": 1 / mu, "rate": 1.0, "times": 1}
    delta = delta_of(epsilon, mu) + (1 + math.exp(epsilon)) * eta
    figures = {"epsilon": epsilon, "delta": delta, "mu": mu, "eta": eta}
    said: dict[str, Any] = {**figures, **release}
    moved = {name: said[name] * factor for name, factor in factors.items()}
    figures |= {name: value for name, value in moved.items() if name in figures}
    release |= {name: value for name, value in moved.items() if name in release}
    return {"claim": "private", "adjacency": "zero-out", **figures, "plan": [release]}


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
