"""Without privacy every method runs to its optimum: the closed form, or that of scikit-learn for the same loss."""

from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.optimum import RIDGE
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from tests.support import accuracy, blobs, stream_of

M, D = 4, 8


def test_the_least_squares_baseline_equals_the_closed_form() -> None:
    x, y = blobs(1500, D, M)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    facts, method = Facts(n=1500, m=M, d=D), METHODS["dp-ls"]
    options = replace(method.defaults(facts, None, {}), negative_weight=0.7, damping=1e-3)
    solution = method.solve(NonPrivate(facts, Unprotected(stream_of(x, y))), facts, options)
    for j in range(M):
        own = unit[y == j]
        exact = np.linalg.solve(own.T @ own + 0.7 * unit.T @ unit + 1.5 * np.eye(D), own.sum(axis=0))
        assert np.allclose(solution.weight[:, j], exact, rtol=1e-4, atol=1e-5)


LOGISTIC = ["dp-fc", "dp-newton", "dp-sgd"]
"""dp-momentum and dp-adam are dp-sgd but for their steps, of which there are none here."""


def one_versus_rest(unit: np.ndarray, y: np.ndarray, m: int, ridge: float = RIDGE) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression

    c = 1 / (len(unit) * ridge) if ridge else np.inf
    fits = [LogisticRegression(C=c, tol=1e-12, max_iter=10_000).fit(unit, y == j) for j in range(m)]
    return np.array([np.append(fit.coef_[0], fit.intercept_) for fit in fits])


@pytest.mark.parametrize("name", LOGISTIC)
def test_baselines_of_logistic_regression_reach_its_optimum(name: str) -> None:
    x, y = blobs(1500, D, M, apart=2.0)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    facts, method = Facts(n=1500, m=M, d=D), METHODS[name]
    solution = method.solve(NonPrivate(facts, Unprotected(stream_of(x, y))), facts, method.defaults(facts, None, {}))
    got = np.vstack([solution.weight, solution.bias]).T
    for mine, exact in zip(got, one_versus_rest(unit, y, M), strict=True):
        assert np.linalg.norm(mine - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize("name", [name for name in LOGISTIC if name != "dp-newton"])
def test_baselines_with_softmax_reach_its_optimum(name: str) -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = blobs(1500, D, M, apart=2.0)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    facts, method = Facts(n=1500, m=M, d=D), METHODS[name]
    options = method.defaults(facts, None, {"loss": "softmax"})
    solution = method.solve(NonPrivate(facts, Unprotected(stream_of(x, y))), facts, options)
    fit = LogisticRegression(C=1 / (1500 * RIDGE), tol=1e-12, max_iter=10_000).fit(unit, y)
    expected, got = (
        np.vstack([w - w.mean(axis=1, keepdims=True), b - b.mean()])
        for w, b in ((fit.coef_.T, fit.intercept_), (solution.weight, solution.bias))
    )
    assert np.linalg.norm(got - expected) < 1e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize(("name", "steps"), [("dp-newton", 20), ("dp-fc", 300)])
def test_second_order_steps_without_noise_lead_to_the_optimum_without_a_ridge(name: str, steps: int) -> None:
    x, y = blobs(1500, D, M, apart=2.0)
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    facts, method = Facts(n=1500, m=M, d=D), METHODS[name]
    options = method.defaults(facts, None, {"steps": steps})
    solution = method.solve(NonPrivate(facts, Unprotected(stream_of(x, y))), facts, options)
    got, exact = np.vstack([solution.weight, solution.bias]).T, one_versus_rest(unit, y, M, ridge=0)
    assert np.linalg.norm(got - exact) < 1e-4 * np.linalg.norm(exact)


@pytest.mark.parametrize("loss", ["sigmoid", "softmax"])
def test_classes_that_can_be_separated_have_an_optimum_too(loss: str) -> None:
    x, y = blobs(300, D, 2, apart=30.0)
    facts, method = Facts(n=300, m=2, d=D), METHODS["dp-fc"]
    options = method.defaults(facts, None, {"loss": loss})
    solution = method.solve(NonPrivate(facts, Unprotected(stream_of(x, y))), facts, options)
    assert solution.converged
    assert accuracy(solution, x, y) == 1
