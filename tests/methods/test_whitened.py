"""Tests of DP-Whitened alone: its spectrum, its steps, its optimum, and features of many kinds."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpfc_cli.methods import METHODS, method_named, whitened
from dpfc_cli.methods.linear import levelled
from dpfc_cli.methods.whitened import FLOOR, LONGEST, STABLE, schedule, total_step, whitening, within_classes
from dpfc_cli.privacy.accounting import mu_for
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import inputs
from dpfc_cli.privacy.queries import Gradient, Gram, Mean
from tests.support import Watching, accuracy, blobs, curator, stream_of

METHOD = METHODS["dp-whitened"]
FACTS = Facts(n=4000, m=4, d=8)


def test_whitened_records_have_unit_variance_where_the_covariance_is_known() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3000, 8)) * np.arange(1, 9)
    covariance = x.T @ x / len(x)
    matrix, variances = whitening(covariance, FACTS, METHOD.defaults(FACTS, None, {}))
    assert np.allclose(matrix.T @ covariance @ matrix, np.eye(8), atol=1e-4)
    assert variances == pytest.approx(np.ones(8), rel=1e-4)


def damping_at(mu: float) -> float:
    """λ with noise of that μ: of a released matrix of zeros nothing but λ is left."""
    matrix, _ = whitening(np.zeros((8, 8)), FACTS, METHOD.defaults(FACTS, mu, {}))
    return float(1 / np.square(matrix).sum(axis=0).max()) - FLOOR


def test_the_damping_grows_with_the_noise_and_more_slowly_where_the_noise_hides_the_spectrum() -> None:
    drowned = 0.04  # The edge at which the rule changes.
    at_the_border = 4 * damping_at(1.0) / drowned
    assert damping_at(4 * at_the_border) == pytest.approx(0.25 * drowned / 4)
    assert damping_at(at_the_border) == pytest.approx(0.25 * drowned)
    assert damping_at(at_the_border / 4) == pytest.approx(0.25 * drowned * 2)


def test_the_total_step_is_longer_where_many_classes_share_few_directions() -> None:
    options = METHOD.defaults(FACTS, 0.01, {})
    rho = FACTS.n * 0.01 / 4
    assert total_step(4.0, FACTS, options) == pytest.approx(1.5 * rho**0.85)
    assert total_step(4.0, replace(FACTS, m=32), options) == pytest.approx(2 * total_step(4.0, FACTS, options))
    # With n·μ/d_eff unchanged: eight times the directions, half the total step.
    assert total_step(32.0, replace(FACTS, n=8 * FACTS.n), options) == pytest.approx(1.5 * rho**0.85 / 2)


@pytest.mark.parametrize("mu", [1e-4, 0.01, 1.0, 30.0])
def test_step_and_momentum_make_the_total_step_and_stay_stable(mu: float) -> None:
    options = METHOD.defaults(FACTS, mu, {})
    rate, momentum = schedule(5.0, FACTS, options)
    assert rate <= STABLE * FACTS.m
    assert 0 <= momentum < 1
    total = total_step(5.0, FACTS, options)
    assert rate / (1 - momentum) * options.steps * options.gradient_clip == pytest.approx(total)
    assert total <= LONGEST


def steps_in_directions(shares: np.ndarray, mu: float | None, deviation: float = 0.0) -> np.ndarray:
    """The factors of the steps for classes of these sizes, of which the means differ in the first half of 40 white
    directions and make 0.8 of the variance there.
    """
    rng, m = np.random.default_rng(0), len(shares)
    facts = Facts(n=20_000, m=m, d=40)
    options = METHOD.defaults(facts, mu, {})
    means = rng.normal(size=(40, m)) * np.where(np.arange(40) < 20, math.sqrt(0.8), 0)[:, None]
    gradient = np.zeros((41, m))
    gradient[:-1] = -(means - means @ shares[:, None]) * shares
    gradient[-1] = -options.bias_feature * (shares - 1 / m)
    gradient *= min(options.gradient_clip / math.sqrt(1 - 1 / m), 1.0)
    gradient += deviation * rng.normal(size=gradient.shape)
    return within_classes(gradient - gradient.mean(axis=1, keepdims=True), np.ones(40), 6.0, facts, options)


@pytest.mark.parametrize("zipf", [0.0, 1.0])
def test_steps_are_longer_where_classes_differ_whatever_their_sizes(zipf: float) -> None:
    shares = np.arange(1, 201) ** -zipf
    factors = steps_in_directions(shares / shares.sum(), None)
    assert np.square(factors[:-1]).mean() == pytest.approx(1)
    assert factors[:15].mean() / factors[25:40].mean() == pytest.approx(1 / (1 - 0.8), rel=0.5 if zipf else 0.2)
    assert factors[-1] == 1


def test_where_noise_hides_the_classes_all_steps_are_equal() -> None:
    factors = steps_in_directions(np.full(200, 1 / 200), 0.01, deviation=0.05)
    assert factors == pytest.approx(np.ones(41), abs=0.05)


def test_the_shares_follow_the_sizes_of_the_answers() -> None:
    for d, m in ((16, 2), (192, 100), (768, 10)):
        mean, gram, gradients = METHOD.defaults(Facts(n=1000, m=m, d=d), 1.0, {}).budget_split
        assert mean + gram + gradients == pytest.approx(1)
        assert [mean / gradients, gram / gradients] == pytest.approx([0.3 / math.sqrt(m), 0.03 * math.sqrt(d / m)])


def test_lengths_become_more_alike_the_more_so_the_nearer_the_noise_is_to_half_of_them() -> None:
    theta = np.random.default_rng(0).normal(size=(8, 5)) * (1, 1, 2, 3, 9)
    lengths = np.linalg.norm(theta, axis=0)
    for part, power in ((0.0, 0.0), (0.25, 0.375), (0.5, 0.5), (0.75, 0.375), (1.0, 0.0), (3.0, 0.0)):
        made = levelled(theta, part * np.square(lengths).mean())
        found = np.linalg.norm(made, axis=0)
        assert found / found[0] == pytest.approx((lengths / lengths[0]) ** (1 - power))
        assert made / found == pytest.approx(theta / lengths)
    # A class of which nothing is known beside classes of which much is.
    theta[:, 0] = 0
    made = levelled(1e9 * theta, 0.5e18 * np.square(theta).sum(axis=0).mean())
    assert np.isfinite(made).all()
    assert not made[:, 0].any()


def test_half_the_mu_and_replacement_shorten_the_descent_equally() -> None:
    halved = total_step(5.0, FACTS, METHOD.defaults(FACTS, 0.01, {}))
    replaced = total_step(5.0, replace(FACTS, adjacency="replace-one"), METHOD.defaults(FACTS, 0.02, {}))
    assert halved == pytest.approx(replaced)


def test_every_record_has_the_same_length_in_the_white_space_and_the_head_needs_no_whitening() -> None:
    x, y = blobs(FACTS.n, FACTS.d, FACTS.m)
    options = METHOD.defaults(FACTS, 1.0, {})
    oracle = Watching(curator(FACTS, METHOD.plan(FACTS, options), 1.0, x, y))
    solution = METHOD.solve(oracle, FACTS, options)
    assert [type(step) for step in solution.chain] == [Clip, Centre, Clip]
    assert [type(q) for q in oracle.queries] == [Mean, Gram, *[Gradient] * options.steps]
    query = oracle.queries[-1]
    assert isinstance(query, Gradient)
    assert query.radius is not None
    z = inputs(query.chain, query.constant, x, np, query.radius)
    assert np.allclose(np.linalg.norm(z, axis=1), query.radius, rtol=1e-4)
    assert query.clip == pytest.approx(0.5 * query.radius)


def test_the_non_private_baseline_goes_to_the_optimum_of_softmax_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    x, y = blobs(1000, 8, 4, apart=2.0)
    facts = Facts(n=1000, m=4, d=8)
    watched: list[Gradient] = []

    class Oracle(NonPrivate):
        def release(self, query: object) -> np.ndarray:
            if isinstance(query, Gradient):
                watched.append(query)
            return super().release(query)  # type: ignore[arg-type]

    options = METHOD.defaults(facts, None, {"steps": 400, "learning_rate": 100.0})
    METHOD.solve(Oracle(facts, Unprotected(stream_of(x, y))), facts, options)
    query = watched[-1]
    z = inputs(query.chain, query.constant, x, np, query.radius)
    fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000, fit_intercept=False).fit(z, y)
    expected = fit.coef_.T - fit.coef_.T.mean(axis=1, keepdims=True)
    assert np.linalg.norm(query.theta - expected) < 1e-4 * np.linalg.norm(expected)


def learned(x: np.ndarray, y: np.ndarray, m: int, epsilon: float) -> float:
    facts = Facts(n=len(x), m=m, d=x.shape[1])
    mu = mu_for(epsilon, 1e-5)
    options = METHOD.defaults(facts, mu, {})
    return accuracy(METHOD.solve(curator(facts, METHOD.plan(facts, options), mu, x, y), facts, options), x, y)


def shifted(x: np.ndarray) -> np.ndarray:
    return x + 20.0


def of_two_scales(x: np.ndarray) -> np.ndarray:
    return x * np.where(np.arange(len(x)) % 3, 1e10, 1e-20).astype(np.float32)[:, None]


def deficient(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, x[:, :4], np.zeros_like(x)], axis=1)


def half_precision(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16)


@pytest.mark.parametrize("brought", [shifted, of_two_scales, deficient, half_precision])
def test_features_of_many_scales_and_types_are_learned(brought: object) -> None:
    x, y = blobs(2000, 8, 4, apart=6.0)
    assert learned(brought(x), y, 4, 1.0) > 0.95  # type: ignore[operator]


TEST = 2000
MARGIN = 0.02
"""Of accuracy. About the smallest difference that three seeds can show in the noisiest of the cases below."""


@dataclass(frozen=True)
class Brought:
    """A kind of feature set: n records of 16 dimensions, around means of norm 3.

    shares: the fractions of the classes. tails: degrees of freedom of
    Student's t distribution; 0 for normal.
    """

    n: int = 2000
    shares: tuple[float, ...] = (0.2, 0.2, 0.2, 0.2, 0.2)
    tails: float = 0

    def draw(self, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        means = np.random.default_rng(1).normal(size=(len(self.shares), 16))
        means *= 3 / np.linalg.norm(means, axis=1, keepdims=True)
        y = np.searchsorted(np.cumsum(self.shares)[:-1], np.arange(count) / count, side="right")
        around = rng.standard_t(self.tails, (count, 16)) if self.tails else rng.normal(size=(count, 16))
        return (means[y] + around).astype(np.float32), y.astype(np.int32)


BROUGHT = {
    "tails too heavy for a variance": Brought(tails=1.5),
    "200 records": Brought(n=200),
    "most in one class": Brought(shares=(0.85, 0.07, 0.04, 0.025, 0.015)),
}


def mean_accuracy(name: str, brought: Brought, epsilon: float, tested: Brought | None = None) -> float:
    """On records that were not trained on; the mean of three seeds of the noise. tested: their kind, if it differs."""
    method, facts, mu = METHODS[name], Facts(n=brought.n, m=len(brought.shares), d=16), mu_for(epsilon, 1e-5)
    (x, y), (unseen, labels) = brought.draw(brought.n, 0), (tested or brought).draw(TEST, 1)
    options, right = method.defaults(facts, mu, {}), []
    for seed in range(3):
        solution = method.solve(curator(facts, method.plan(facts, options), mu, x, y, seed), facts, options)
        right.append(accuracy(solution, unseen, labels))
    return float(np.mean(right))


@pytest.mark.parametrize("brought", BROUGHT.values(), ids=list(BROUGHT))
def test_no_other_method_learns_these_features_better_with_its_defaults(brought: Brought) -> None:
    best = max(mean_accuracy(name, brought, 1.0) for name in ("dp-fc", "dp-ls"))
    assert best > 0.5
    assert mean_accuracy("dp-whitened", brought, 1.0) > best - MARGIN


def test_rare_classes_are_named_rightly_more_often_because_lengths_become_more_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = 1 / np.arange(1, 21)
    unequal, equal = (Brought(n=2000, shares=tuple(each / each.sum())) for each in (shares, np.ones(20)))
    after = mean_accuracy("dp-whitened", unequal, 1.0, tested=equal)
    monkeypatch.setattr(whitened, "levelled", lambda theta, _: theta)
    assert after > mean_accuracy("dp-whitened", unequal, 1.0, tested=equal) + 0.02


def test_a_rare_class_is_learned_beside_common_ones() -> None:
    x, y = blobs(8000, 8, 4, apart=6.0)
    kept = (y != 3) | (np.arange(8000) % 10 == 3)
    x, y = x[kept], y[kept]
    facts = Facts(n=len(x), m=4, d=8)
    options = METHOD.defaults(facts, mu_for(4.0, 1e-5), {})
    solution = METHOD.solve(curator(facts, METHOD.plan(facts, options), mu_for(4.0, 1e-5), x, y), facts, options)
    assert accuracy(solution, x[y == 3], y[y == 3]) > 0.9


def test_auto_is_the_whitened_method_where_classes_compete() -> None:
    assert method_named("auto", Facts(n=9, m=2, d=3)).name == "dp-whitened"
    assert method_named("auto", Facts(n=9, m=2, d=3, k=2)).name == "dp-fc"


def test_all_steps_share_one_compiled_function_whatever_the_released_arrays() -> None:
    from dpfc_cli.kernels import rows

    x, y = blobs(300, 8, 4)
    facts = Facts(n=300, m=4, d=8)
    options = METHOD.defaults(facts, 1.0, {})
    misses = [rows.compiled.cache_info().misses]
    for seed in (1, 2):
        METHOD.solve(curator(facts, METHOD.plan(facts, options), 1.0, x, y, seed), facts, options)
        misses.append(rows.compiled.cache_info().misses)
    # One for the mean, one for the Gram matrix and one for all gradients. The second training needs no new one.
    assert misses[1] - misses[0] <= 3
    assert misses[2] == misses[1]
