"""The update rules of the first-order methods agree with their definitions, for given gradients."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

# This switches JAX to 64 bits, as every curator does.
import dpfc_cli.kernels  # noqa: F401
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Gradient, Query

FACTS = Facts(n=200, m=3, d=4)
ETA, CONSTANT = 0.3, 0.5
TOLD = (
    np.random.default_rng(0).normal(size=(7, FACTS.d + 1, FACTS.m)) * FACTS.n * np.geomspace(3, 0.01, 7)[:, None, None]
)
"""Seven gradients, summed over the records, with very different lengths."""


class Telling(Oracle):
    """An oracle that answers with given gradients for every θ, and remembers the θ of each query."""

    def __init__(self, answers: np.ndarray) -> None:
        self._answers = iter(answers)
        self.thetas: list[np.ndarray] = []

    def release(self, query: Query) -> np.ndarray:
        assert isinstance(query, Gradient)
        self.thetas.append(query.theta)
        return next(self._answers)


def iterates(name: str, steps: int, **given: object) -> tuple[list[np.ndarray], np.ndarray]:
    """θ before each step, and the θ of the head."""
    method, oracle = METHODS[name], Telling(TOLD)
    options = method.defaults(FACTS, 1.0, {"steps": steps, "learning_rate": ETA, "bias_feature": CONSTANT, **given})
    solution = method.solve(oracle, FACTS, options)
    return oracle.thetas, np.vstack([solution.weight, solution.bias / CONSTANT])


def sgd(gradients: np.ndarray) -> Iterator[np.ndarray]:
    """θ ← θ − η·g."""
    for g in gradients:
        yield -ETA * g


def heavy_ball(gradients: np.ndarray) -> Iterator[np.ndarray]:
    """v ← 0.9·v + g, θ ← θ − η·v (Polyak 1964). The factor of the gradient is 1, not 1 − 0.9."""
    v = np.zeros_like(gradients[0])
    for g in gradients:
        v = 0.9 * v + g
        yield -ETA * v


def adam(gradients: np.ndarray) -> Iterator[np.ndarray]:
    """Kingma and Ba 2015, Algorithm 1, with the paper's β₁ = 0.9, β₂ = 0.999 and ε = 1e-8."""
    first = second = np.zeros_like(gradients[0])
    for t, g in enumerate(gradients, 1):
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g**2
        yield -ETA * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)


RULES: dict[str, Callable[[np.ndarray], Iterator[np.ndarray]]] = {
    "dp-sgd": sgd,
    "dp-momentum": heavy_ball,
    "dp-adam": adam,
}
RULE = pytest.mark.parametrize("name", RULES)


def expected(name: str, gradients: np.ndarray, bias: float = -10.0) -> list[np.ndarray]:
    """θ before the first step and after each step. The first weight of the bias feature gives the given bias."""
    theta = np.zeros((FACTS.d + 1, FACTS.m))
    theta[-1] = bias / CONSTANT
    thetas = [theta]
    for step in RULES[name](gradients):
        thetas.append(thetas[-1] + step)
    return thetas


@RULE
def test_each_step_follows_the_rule(name: str) -> None:
    """With the softmax all weights start at zero. Sums over a sample are divided by its expected size."""
    for given, gradients, bias in (
        ({}, TOLD / FACTS.n, -10.0),
        ({"loss": "softmax"}, TOLD / FACTS.n, 0.0),
        ({"sampling_rate": 0.05}, TOLD / (0.05 * FACTS.n), -10.0),
    ):
        thetas, last = iterates(name, 7, **given)
        assert len(thetas) == 7
        for got, theta in zip([*thetas, last], expected(name, gradients, bias), strict=True):
            assert np.allclose(got, theta, rtol=1e-12, atol=1e-12)


@RULE
@pytest.mark.parametrize(("steps", "second_half"), [(1, 1), (6, 3), (7, 4)])
def test_the_average_is_the_mean_of_the_second_half_of_the_iterates(name: str, steps: int, second_half: int) -> None:
    thetas, averaged = iterates(name, steps, average=True)
    after = expected(name, TOLD[:steps] / FACTS.n)[1:]
    assert np.allclose(averaged, np.mean(after[-second_half:], axis=0), rtol=1e-12, atol=1e-12)
    for got, theta in zip(thetas[1:], after[:-1], strict=True):
        assert np.allclose(got, theta, rtol=1e-12, atol=1e-12), "the average is no part of the descent"


@pytest.mark.parametrize(("name", "factor"), [("dp-sgd", 10), ("dp-momentum", 10), ("dp-adam", 2)])
def test_by_default_ten_times_as_many_steps_are_shorter_by_a_fixed_factor(name: str, factor: float) -> None:
    rates = [METHODS[name].defaults(FACTS, 1.0, {"steps": steps}).learning_rate for steps in (1, 10, 100, 10_000)]
    assert rates == pytest.approx([rates[0] / factor**i for i in (0, 1, 2, 4)])
