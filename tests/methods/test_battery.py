"""Tests that every method must pass: it asks for what it planned, one record moves no sum too far for any records, and
it learns.
"""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy import accounting, sums
from dpfc_cli.privacy import curator as curator_module
from dpfc_cli.privacy.curator import Curator, Unprotected, draw_noise
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import lattice_for
from dpfc_cli.privacy.noise import Bits, SeededBits, bernoulli
from dpfc_cli.privacy.oracle import Mechanism
from dpfc_cli.privacy.parts import Sum
from dpfc_cli.privacy.queries import Query
from dpfc_cli.privacy.sums import Summed
from tests import instead
from tests import noise as noise_checks
from tests.leaks import FAULTS
from tests.noise import Drawn, drawn_from, failed
from tests.support import Watching, accuracy, blobs, curator, exact_sum, integers, stream_of

ALL = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
FEW = {"dp-whitened": 3, "dp-fc": 3, "dp-newton": 3, "dp-sgd": 30, "dp-momentum": 30, "dp-adam": 30}
GIVEN = {name: {"steps": FEW[name]} if name in FEW else {} for name in METHODS}
FIRST_ORDER = ("dp-sgd", "dp-momentum", "dp-adam")
SAMPLED = pytest.mark.parametrize("method", [METHODS[name] for name in FIRST_ORDER], ids=FIRST_ORDER)
RATE = 0.6
FORTY = Facts(n=40, m=3, d=4)
"""One set of facts for many tests: a function that is compiled for one of them serves all, whatever n is."""


def trained(
    method: Method, facts: Facts, mu: float, x: np.ndarray, y: np.ndarray, seed: int = 0, **given: object
) -> tuple[Solution, Watching]:
    options = method.defaults(facts, mu, GIVEN[method.name] | given)
    oracle = Watching(curator(facts, method.plan(facts, options), mu, x, y, seed))
    return method.solve(oracle, facts, options), oracle


def sets_of(y: np.ndarray, m: int) -> np.ndarray:
    """Label sets, n × 3: one, two or three classes. In some of them a class occurs twice."""
    more = np.where(np.arange(len(y)) % 2, (y + 1) % m, y), np.where(np.arange(len(y)) % 3, (y + 2) % m, -1)
    return np.stack([y, *more], axis=1).astype(np.int32)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The samples that curators draw, as masks over the records."""
    drawn: list[np.ndarray] = []

    def spy(rate: float, count: int, bits: Bits) -> np.ndarray:
        assert rate == RATE
        drawn.append(bernoulli(rate, count, bits))
        return drawn[-1]

    monkeypatch.setattr(curator_module, "bernoulli", spy)
    return drawn


def samples_of(masks: list[np.ndarray], n: int) -> np.ndarray:
    """The samples, one row for each release."""
    return np.concatenate(masks).reshape(-1, n)


# 1. Plan


@ALL
def test_a_run_asks_for_exactly_the_plans_releases(method: Method) -> None:
    facts = FORTY
    _, oracle = trained(method, facts, 1.0, *blobs(40, 4, 3))
    plan = method.plan(facts, method.defaults(facts, 1.0, GIVEN[method.name]))
    assert [(q.kind, q.shape(facts)) for q in oracle.queries] == [(r.kind, r.shape) for r in plan.releases]


def test_plan_and_defaults_are_functions_of_public_facts() -> None:
    facts = Facts(n=1000, m=3, d=5)
    for method in METHODS.values():
        options = method.defaults(facts, 0.3, {})
        assert options == method.defaults(facts, 0.3, {})
        assert method.plan(facts, options) == method.plan(facts, options)
        hash(options)


def other_than(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(v / 3 for v in value)
    if value is None:
        return ()
    if isinstance(value, bool | str):
        return "softmax" if isinstance(value, str) else not value
    return 2 * value + 1 if isinstance(value, int) else value / 2  # type: ignore[operator]


def test_given_options_override_defaults_one_by_one() -> None:
    facts = Facts(n=1000, m=3, d=5)
    for method in METHODS.values():
        for name, value in method.defaults(facts, 0.3, {}).__dict__.items():
            other = other_than(value)
            assert getattr(method.defaults(facts, 0.3, {name: other}), name) == other


def test_the_budget_is_split_as_given() -> None:
    facts = Facts(n=1000, m=3, d=5)
    for name, split in (
        ("dp-whitened", (0.1, 0.3, 0.6)),
        ("dp-ls", (0.5, 0.3, 0.2)),
        ("dp-fc", (0.15, 0.85)),
        ("dp-newton", (0.3, 0.7)),
    ):
        method = METHODS[name]
        plan = method.plan(facts, method.defaults(facts, 0.3, {"budget_split": split}))
        kinds = list(dict.fromkeys(r.kind for r in plan.releases))
        shares = [sum(w for r, w in zip(plan.releases, plan.shares, strict=True) if r.kind == kind) for kind in kinds]
        assert shares == pytest.approx(split)


@SAMPLED
def test_a_run_on_samples_draws_each_of_them_at_the_given_rate(method: Method, masks: list[np.ndarray]) -> None:
    facts = FORTY
    _, oracle = trained(method, facts, 1.0, *blobs(40, 4, 3), steps=4, sampling_rate=RATE)
    plan = method.plan(facts, method.defaults(facts, 1.0, {"steps": 4, "sampling_rate": RATE}))
    assert [(q.kind, q.shape(facts)) for q in oracle.queries] == [(r.kind, r.shape) for r in plan.releases]
    assert len({sample.tobytes() for sample in samples_of(masks, 40)}) == len(plan.releases) == 4
    assert not np.array_equal(masks[0], masks[1])


# 2. Sensitivity replay

FEATURE = st.one_of(st.floats(width=32, allow_nan=True), st.sampled_from([0.0, 1.0, 1e-45, 3e38, -1.0]))


LONG = np.array([[2e4, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 5, 0], [-1, 0, 2, 0]], np.float32)
ALL_CLASSES = np.array([0, 1, 2], np.int32)


@ALL
@pytest.mark.parametrize("k", [1, 3])
@example(x=LONG, y=np.tile(ALL_CLASSES, (5, 1)), other=-LONG[0], labels=ALL_CLASSES, index=0)
@given(
    x=arrays(np.float32, (5, 4), elements=FEATURE),
    y=arrays(np.int32, (5, 3), elements=st.integers(-1, 3)),
    other=arrays(np.float32, (4,), elements=FEATURE),
    labels=arrays(np.int32, (3,), elements=st.integers(-1, 3)),
    index=st.integers(0, 4),
)
@settings(max_examples=3, deadline=None)
def test_with_the_same_answers_one_record_moves_no_sum_beyond_its_sensitivity(
    method: Method, k: int, x: np.ndarray, y: np.ndarray, other: np.ndarray, labels: np.ndarray, index: int
) -> None:
    # Ordinary records come first: so the five lie in two blocks.
    ordinary, classes = blobs(13, 4, 3)
    x, y = np.concatenate([ordinary, x]), np.concatenate([sets_of(classes, 3), y])
    index += len(ordinary)
    facts = Facts(n=len(x), m=3, d=4, k=k, adjacency="zero-out" if k == 1 else "replace-one")
    steps = {"steps": 6} if method.name in FIRST_ORDER else {}
    _, oracle = trained(method, facts, 1.0, x, y[:, :k], **steps)
    lattice = lattice_for(facts.n, 10.0, 5)
    nulled, replaced_x, replaced_y = y.copy(), x.copy(), y.copy()
    nulled[index] = -1
    replaced_x[index], replaced_y[index] = other, labels
    for query in oracle.queries:
        base = exact_sum(query, stream_of(x, y[:, :k]), facts, lattice)
        for neighbour, factor in (
            (stream_of(x, nulled[:, :k]), 1.0),
            (stream_of(replaced_x, replaced_y[:, :k]), query.replace_one),
        ):
            moved = exact_sum(query, neighbour, facts, lattice)
            squared = sum((a - b) ** 2 for a, b in zip(integers(base), integers(moved), strict=True))
            assert squared <= round(factor**2) * lattice.unit**2


# 3. Noise


def noise_of_runs(method: Method, summed: Sum = sums.exact_sum) -> Drawn:
    """The noise of whole trainings: what their answers have beside their sums. summed: makes these."""
    facts, mu, runs, (x, y) = FORTY, 0.9, 40, blobs(40, 4, 3)
    options = method.defaults(facts, mu, {"steps": 2} if method.name in FEW else {})
    plan = method.plan(facts, options)
    lattice = lattice_for(facts.n, max(plan.sigmas(mu)), 5)
    noise: list[list[np.ndarray]] = [[] for _ in plan.releases]
    for seed in range(runs):
        exact: list[np.ndarray] = []

        def kept(*given: Any, exact: list[np.ndarray] = exact) -> np.ndarray:
            exact.append(summed(*given).copy())
            return exact[-1].copy()

        mechanism = Mechanism(facts=facts, plan=plan, mu=mu)
        oracle = Watching(Curator(mechanism, Unprotected(stream_of(x, y)), SeededBits(seed), together=kept))
        method.solve(oracle, facts, options)
        for query, answer, total, found in zip(oracle.queries, oracle.answers, exact, noise, strict=True):
            found.append(answer / query.scale(facts, lattice) - total)
    return drawn_from(oracle.queries, [np.array(each) for each in noise], facts, plan.sigmas(mu), lattice)


@ALL
def test_every_release_has_its_own_noise_of_the_planned_size(method: Method) -> None:
    assert failed(noise_of_runs(method)) == []


def test_planted_faults_of_the_noise_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(query: Query, over: Summed, sample: np.ndarray | None) -> np.ndarray:
        return np.zeros(query.shape(over.facts))

    for name, (fault, check) in FAULTS.items():
        with monkeypatch.context() as patch:
            instead.draw_noise(patch, fault(draw_noise))
            assert check in failed(noise_of_runs(METHODS["dp-fc"], nothing)), name


def test_honest_noise_fails_a_check_as_rarely_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a level where it can be counted. Normal numbers of NumPy stand for the noise."""
    monkeypatch.setattr(noise_checks, "FALSE_ALARM", 0.05)
    rng, trials = np.random.default_rng(0), 150
    sigma, parts = np.full(30, 2.0**38), (slice(0, 10), slice(10, 30))
    times = Counter(
        name
        for _ in range(trials)
        for name in failed(Drawn(np.rint(sigma * rng.normal(size=(100, 30))), sigma, parts, symmetric=True))
    )
    assert max(times.values()) <= stats.binom.isf(1e-6, trials, 0.05)


# 4. Order


@ALL
def test_the_same_noise_gives_the_same_head_and_other_noise_another(method: Method) -> None:
    x, y = blobs(40, 4, 3)
    weights = [trained(method, FORTY, 1.0, x, y, seed)[0].weight for seed in (4, 4, 5)]
    assert np.array_equal(weights[0], weights[1])
    assert not np.isclose(weights[0], weights[2]).any()


# 5. Hostile records

HOSTILE = {
    "not finite": (np.full((18, 4), np.nan, np.float32), np.zeros(18, np.int32)),
    "infinite": (np.full((18, 4), np.inf, np.float32), np.zeros(18, np.int32)),
    "huge": (np.full((18, 4), 3e38, np.float32), np.arange(18, dtype=np.int32) % 2),
    "denormal": (np.full((18, 4), 1e-45, np.float32), np.arange(18, dtype=np.int32) % 2),
    "labels out of range": (
        np.ones((18, 4), np.float32),
        np.tile(np.array([-5, 9, 3, 2**31 - 1, -(2**31), 7], np.int32), 3),
    ),
    "zeros": (np.zeros((18, 4), np.float32), np.arange(18, dtype=np.int32) % 2),
    "duplicates": (np.ones((18, 4), np.float32), np.zeros(18, np.int32)),
    "one record": (np.ones((1, 4), np.float32), np.zeros(1, np.int32)),
}


@ALL
def test_a_finite_head_comes_out_whatever_the_records_are(method: Method) -> None:
    """Also where a class has none, and as published."""
    for options in ({}, method.published or {}):
        for (case, (x, y)), mu in zip(HOSTILE.items(), itertools.cycle((1e-3, 3.0)), strict=False):
            solution, _ = trained(method, Facts(n=len(x), m=3, d=4), mu, x, y, **options)
            assert np.isfinite(solution.weight).all(), case
            assert np.isfinite(solution.bias).all(), case


# 6. Utility


@ALL
def test_separable_classes_are_learned(method: Method) -> None:
    """With the noise of ε = 8 for four times as many records."""
    x, y = blobs(199, 4, 3, apart=8.0)
    solution, _ = trained(method, Facts(n=199, m=3, d=4), 4 * accounting.mu_for(8.0, 1e-5), x, y)
    assert accuracy(solution, x, y) > 0.98
