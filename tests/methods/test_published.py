"""As published: the methods are the paper's algorithms, with its sums, its noise and its updates."""

from typing import Any

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Reals, lattice_for
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import Query, contribution
from dpfc_cli.training.calibrate import Calibrated, calibrate
from tests.methods import published
from tests.methods.published import Optimiser
from tests.support import refuses

N, M, D, K, SIGMA, CLIP = 60, 3, 5, 2, 7.0, 0.005
FACTS = Facts(n=N, m=M, d=D, k=K)
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 2, size=(N, M)) * (np.arange(M) != np.arange(N)[:, None] % M)
Y[np.arange(N), (np.arange(N) + 1) % M] = 1
# Whole numbers with 16 as the largest of each record: their norms are measured without rounding.
X = RNG.integers(-9, 10, size=(N, D)) + 3 * (Y @ RNG.integers(-2, 3, size=(M, D)))
X[np.arange(N), RNG.integers(0, D, size=N)] = 16
LABELS = np.array([[*np.flatnonzero(row), -1][:K] for row in Y], np.int32)


class Ball(Reals):
    """Contributions are clipped to the unit ball. They are not rounded."""

    def vector(self, v: Any, squared: int, xp: Any) -> Any:
        return v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1)


class Noiseless(Oracle):
    """The sums as they are defined: with clipping, without noise."""

    def release(self, query: Query) -> np.ndarray:
        parts = (contribution(query, x, labels, FACTS, Ball()) for x, labels in zip(X, LABELS, strict=True))
        return np.asarray(sum(parts) * query.scale(FACTS, Ball()))


def adam(eta: float, decay: float) -> Optimiser:
    """Adam with decoupled weight decay: Loshchilov and Hutter 2019, Algorithm 2, without a schedule."""
    t, first, second = 0, np.zeros((M, D)), np.zeros((M, D))

    def step(theta: np.ndarray, g: np.ndarray) -> np.ndarray:
        nonlocal t, first, second
        t, first, second = t + 1, 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        update = (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        return np.asarray(theta - eta * (update + decay * theta))

    return step


def sgd(eta: float, decay: float) -> Optimiser:
    return lambda theta, g: theta - eta * (g + decay * theta)


class Lines(dict[str, float]):
    """The standard deviation that each line of an algorithm asks for. No noise is added."""

    def __call__(self, line: str, deviation: float, shape: tuple[int, ...]) -> np.ndarray:
        assert self.setdefault(line, deviation) == deviation
        return np.zeros(shape)


def as_published(name: str, **given: object) -> Calibrated:
    privacy = Privacy(noise_multiplier=SIGMA, delta=1e-5)
    return calibrate(METHODS[name], FACTS, {"as_published": True, **given}, privacy)


def deviations(made: Calibrated) -> dict[str, float]:
    """Of the noise on the diagonal of each kind of release, in the units of its query."""
    lattice, found = lattice_for(N, max(made.noise.sigmas), D), dict[str, float]()
    for release, sigma in zip(made.plan.releases, made.noise.sigmas, strict=True):
        # The clip of a gradient is its sensitivity. That of DP-Newton's is the length that it cannot exceed.
        clip: Any = vars(made.options).get("gradient_clip", np.sqrt(M))
        scale = release.form.scale(FACTS, lattice) * lattice.unit if release.kind != "gradient" else clip
        assert found.setdefault(release.kind, sigma * scale) == sigma * scale
    return found


def check(made: Calibrated, theta: np.ndarray, lines: Lines, units: dict[str, float], scale: float = 1.0) -> None:
    """units: what turns those of dpfc's sums into the paper's. scale: the same of θ."""
    solution = made.method.solve(Noiseless(), FACTS, made.options)
    assert np.abs(solution.weight.T * scale - theta).max() < 1e-6 * np.abs(theta).max()
    assert deviations(made) == pytest.approx({line: lines[line] / unit for line, unit in units.items()}, rel=3e-3)


@pytest.mark.parametrize(("name", "optimiser"), [("dp-sgd", sgd), ("dp-adam", adam)])
def test_first_order_methods_are_algorithm_1(name: str, optimiser: Any) -> None:
    made, lines, eta, decay = as_published(name, steps=10, learning_rate=0.05, weight_decay=0.3), Lines(), 0.05, 0.3
    theta = published.first_order(X, Y, opt=optimiser(eta, decay), clip=CLIP, steps=10, sigma=SIGMA, noise=lines)
    check(made, theta, lines, {"gradient": 1})


def test_dp_newton_is_algorithm_2() -> None:
    made, lines = as_published("dp-newton", learning_rate=0.7, damping=0.02), Lines()
    lam = 0.02 * N * CLIP**2
    theta = published.newton(X, Y, lam=lam, eta=0.7, clip=CLIP, steps=10, sigma=SIGMA, noise=lines)
    check(made, theta, lines, {"gradient": CLIP / N, "hessians": CLIP**2 / N}, 1 / CLIP)


def test_dp_ls_is_algorithm_3() -> None:
    made, lines = as_published("dp-ls", negative_weight=0.4, damping=0.02), Lines()
    lam = 0.02 * N * CLIP**2
    theta = published.least_squares(X, Y, alpha=0.4, lam=lam, k=K, clip=CLIP, sigma=SIGMA, noise=lines)
    check(made, theta, lines, {"gram": CLIP**2, "class_grams": CLIP**2, "class_sums": CLIP}, 1 / CLIP)


def test_dp_fc_is_algorithm_4() -> None:
    made, lines = as_published("dp-fc", learning_rate=30.0, damping=0.02), Lines()
    theta = published.feature_covariance(
        *(X, Y), eta=30 * CLIP**2, lam=0.02 * CLIP**2, clip=CLIP, gradient_clip=CLIP, steps=10, sigma=SIGMA, noise=lines
    )
    check(made, theta, lines, {"gram": CLIP**2 / N, "gradient": 1 / N})


def test_what_is_set_is_as_it_is_set_and_a_method_of_no_paper_has_no_such_form() -> None:
    assert as_published("dp-fc").options.steps == 10
    assert as_published("dp-fc", steps=1, raw_matrices=False).options.steps == 1
    assert as_published("dp-fc", raw_matrices=False).options.edge > 0
    assert as_published("dp-fc", steps=1).plan.shares == (0.5, 0.5)
    with refuses("conflict"):
        as_published("dp-whitened")
    with refuses("conflict", parameter="feature_clip"):
        as_published("dp-adam", feature_clip=1.0)
