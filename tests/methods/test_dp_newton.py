"""Tests of DP-Newton alone: releasing Hessians in blocks of classes gives the same as a single release."""

import math

import numpy as np
import pytest

from dpfc_cli.methods import METHODS, linear
from dpfc_cli.methods.method import state_bytes
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import MOST_BITS, lattice_for
from dpfc_cli.privacy.queries import Query
from dpfc_cli.training.machine import WORKING_BYTES
from tests import instead
from tests.support import Watching, blobs, curator, drawn_sigmas, stream_of

METHOD = METHODS["dp-newton"]
FACTS = Facts(n=150, m=5, d=4)
X, Y = blobs(FACTS.n, FACTS.d, FACTS.m, apart=2.0)
MU = 0.8
HESSIAN_BYTES = 8 * (FACTS.d + 1) ** 2
STEPS = 3


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two, two and one of the five classes."""
    instead.block_bytes(monkeypatch, 3 * HESSIAN_BYTES - 1)
    assert linear.blocks(FACTS) == [(0, 2), (2, 4), (4, 5)]


def head_without_noise(steps: int | None) -> np.ndarray:
    """Weights and biases without noise."""
    options = METHOD.defaults(FACTS, None, {} if steps is None else {"steps": steps})
    solution = METHOD.solve(NonPrivate(FACTS, Unprotected(stream_of(X, Y))), FACTS, options)
    return np.vstack([solution.weight, solution.bias])


@pytest.fixture(scope="module", params=[STEPS, None], ids=["after three steps", "at the optimum"])
def whole(request: pytest.FixtureRequest) -> tuple[int | None, np.ndarray]:
    """The number of steps, and the head that they give with a single block."""
    return request.param, head_without_noise(request.param)


def test_the_head_without_noise_does_not_depend_on_the_blocks(
    whole: tuple[int | None, np.ndarray], in_blocks: None
) -> None:
    steps, expected = whole
    # Logits are float32 and may round differently in products with another number of columns.
    assert np.linalg.norm(head_without_noise(steps) - expected) < 1e-4 * np.linalg.norm(expected)


def sigmas(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Query, float]]:
    """The queries of one training, each with the noise multiplier of its noise."""
    drawn = drawn_sigmas(monkeypatch)
    options = METHOD.defaults(FACTS, MU, {"steps": STEPS})
    oracle = Watching(curator(FACTS, METHOD.plan(FACTS, options), MU, X, Y))
    METHOD.solve(oracle, FACTS, options)
    return list(zip(oracle.queries, [sigma / 4**MOST_BITS for sigma in drawn], strict=True))


def on_hessians(asked: list[tuple[Query, float]]) -> list[float]:
    """For each block the standard deviation of the noise on the diagonal of a Hessian, in natural units."""
    lattice = lattice_for(FACTS.n, max(sigma for _, sigma in asked), FACTS.m)
    return [s * lattice.unit * q.scale(FACTS, lattice) for q, s in asked if q.kind == "hessians"]


def test_what_the_blocks_spend_and_the_noise_on_each_hessian_are_those_of_a_single_release(
    monkeypatch: pytest.MonkeyPatch, in_blocks: None
) -> None:
    blocked = sigmas(monkeypatch)
    monkeypatch.undo()
    single = sigmas(monkeypatch)
    assert [len(asked) for asked in (blocked, single)] == [4 * STEPS, 2 * STEPS]
    for asked in (blocked, single):
        assert math.fsum(1 / sigma**2 for _, sigma in asked) == pytest.approx(MU**2, rel=1e-9)
        of_gradients = [sigma for query, sigma in asked if query.kind == "gradient"]
        assert of_gradients == pytest.approx([math.sqrt(2 * STEPS) / MU] * STEPS, rel=1e-9)
        # The sensitivity of a release of c of the m classes is √(c/m) times that of all classes.
        parts = [sigma * math.sqrt(q.shape(FACTS)[0] / FACTS.m) for q, sigma in asked if q.kind == "hessians"]
        assert parts == pytest.approx([math.sqrt(2 * STEPS) / MU] * len(parts), rel=1e-9)
    # The difference is the room that the lattice leaves for rounding.
    assert on_hessians(blocked) == pytest.approx([on_hessians(single)[0]] * 3 * STEPS, rel=1e-3)


def test_a_noise_multiplier_means_the_same_in_blocks(in_blocks: None) -> None:
    plan = METHOD.plan(FACTS, METHOD.defaults(FACTS, MU, {"steps": STEPS}))
    assert len(plan.releases) == 4 * STEPS
    assert plan.count == 2 * STEPS


def test_blocks_keep_a_thousand_classes_of_768_dimensions_below_two_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts(n=1_000_000, m=1000, d=768)

    def needed() -> int:
        return state_bytes(METHOD, METHOD.plan(facts, METHOD.defaults(facts, 1.0, {"steps": 1}))) + WORKING_BYTES

    assert needed() < 2e9
    instead.block_bytes(monkeypatch, 2**40)
    assert needed() > 14e9
