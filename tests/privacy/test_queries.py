"""One record changes a sum by at most the declared sensitivity, in integers of the lattice. The kernels sum exactly
what `contribution` defines.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import Lattice, Reals
from dpfc_cli.privacy.queries import (
    ClassGrams,
    ClassSums,
    Gradient,
    Gram,
    Hessians,
    Mean,
    Query,
    contribution,
    sensitivity,
)
from tests import instead
from tests.support import CHAIN, every_query, exact_sum, integers, stream_of

FACTS = Facts(n=4, m=3, d=4, k=2)
LATTICE = Lattice(18)
QUERIES = every_query(FACTS)
NAMES = [f"{q.kind}-{i}" for i, q in enumerate(QUERIES)]

FEATURE = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, -1.0, 1e-45, 1e-38, 3e38, 0.5, 1e20]),
)
RECORDS = arrays(np.float32, (4, 4), elements=FEATURE)
LABELS = arrays(np.int32, (4, 2), elements=st.integers(-2, 4))


def norm_of_difference(a: np.ndarray, b: np.ndarray) -> int:
    """‖a − b‖², exact."""
    return sum((x - y) ** 2 for x, y in zip(integers(a), integers(b), strict=True))


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@given(x=RECORDS, labels=LABELS, other=RECORDS, other_labels=LABELS)
@settings(max_examples=10, deadline=None)
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(
    query: Query, x: np.ndarray, labels: np.ndarray, other: np.ndarray, other_labels: np.ndarray
) -> None:
    """Zeroed out by one unit, replaced by the declared factor."""
    before = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    nulled = np.where(np.arange(4)[:, None] == 1, np.int32(-1), labels)
    without = exact_sum(query, stream_of(x, nulled), FACTS, LATTICE)
    assert norm_of_difference(before, without) <= LATTICE.unit**2
    x[1], labels[1] = other[1], other_labels[1]
    after = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    assert norm_of_difference(before, after) <= round(query.replace_one**2) * LATTICE.unit**2


EXTREME = [
    np.array(x, np.float32)
    for x in ([1e4, 0, 0, 0], [3e38] * 4, [-3e38, 3e38, 0, 0], [1e-45] * 4, [0] * 4, [0.5] * 4, [1, -2, 3, -4])
]
SETS = [np.array(labels, np.int32) for labels in ([0, -1], [1, 2], [2, 2], [-1, 0])]


def test_no_extreme_record_is_worth_more_than_the_sensitivity() -> None:
    for query in QUERIES:
        with np.errstate(all="ignore"):
            added = [contribution(query, x, labels, FACTS, LATTICE) for x in EXTREME for labels in SETS]
        assert sensitivity(query, FACTS) == 1.0
        assert sensitivity(query, replace(FACTS, adjacency="replace-one")) == query.replace_one
        for a in added:
            assert norm_of_difference(a, np.zeros_like(a)) <= LATTICE.unit**2
            for b in added:
                assert norm_of_difference(a, b) <= round(query.replace_one**2) * LATTICE.unit**2


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_the_bound_is_nearly_reached_so_the_noise_is_not_wasted(query: Query) -> None:
    x = np.zeros((4, 4), np.float32)
    x[1] = [1e4, 0, 0, 0]
    labels = np.full((4, 2), -1, np.int32)
    labels[1] = [0, 2]
    if isinstance(query, Gradient | Hessians):
        # At θ = 0 every class has the largest possible curvature, ¼, and no record is fitted.
        query = replace(query, theta=0 * query.theta)
    if isinstance(query, Gradient):
        query = replace(query, clip=1e-3)
    reached = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    # Hessians split the bits of the lattice between three factors, so their radii are a little smaller.
    enough = 0.99 if isinstance(query, Hessians) else 0.999
    assert norm_of_difference(reached, np.zeros_like(reached)) > enough * LATTICE.unit**2


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_kernels_sum_what_contribution_says(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several blocks, of a size that is compiled already.
    instead.block_rows(monkeypatch, 2)
    facts = Facts(n=41, m=3, d=4, k=2)
    rng = np.random.default_rng(5)
    x = (3 * rng.normal(size=(41, 4))).astype(np.float32)
    x[7, 1], x[8, 2] = np.nan, np.inf
    labels = rng.integers(-1, 4, size=(41, 2)).astype(np.int32)
    # With powers of ten in θ, the float32 logits of NumPy and XLA differ by rounding alone.
    expected = sum(contribution(query, x[i], labels[i], facts, LATTICE) for i in range(41))
    got = exact_sum(query, stream_of(x, labels), facts, LATTICE)
    if query.arrays:
        # Logits are float32, so a residual may be rounded to the next lattice point.
        assert np.max(np.abs(got - expected)) / LATTICE.unit < 41 * (1e-4 if isinstance(query, Hessians) else 4e-6)
    else:
        assert np.array_equal(got, expected)


WIDE = Facts(n=1, m=3, d=400, k=2)


@pytest.mark.parametrize("query", every_query(WIDE, scale=0.1), ids=NAMES)
def test_a_scale_is_right_to_more_digits_than_rounding_leaves(query: Query) -> None:
    """At 400 dimensions the room that a radius leaves for rounding is far larger than what rounding does to a norm."""
    x = np.random.default_rng(7).normal(size=400).astype(np.float32)
    x *= np.float32(0.95) / np.linalg.norm(x)
    labels = np.array([0, 2], np.int32)

    def norm(query: Query, grid: Lattice | Reals) -> float:
        return float(np.linalg.norm(contribution(query, x, labels, WIDE, grid) * query.scale(WIDE, grid)))

    if isinstance(query, Gradient):
        # The logits are those of the rounded vector. At θ = 0 they are the same for both. Almost clipped, so that the
        # lattice is used up.
        query = replace(query, theta=np.zeros_like(query.theta))
        query = replace(query, clip=1.1 * norm(query, Reals()))
    # Hessians divide the bits of the lattice between three factors.
    rounding = 1e-3 if isinstance(query, Hessians) else 5e-6
    assert norm(query, LATTICE) == pytest.approx(norm(query, Reals()), rel=rounding)


def test_a_label_named_twice_counts_once() -> None:
    x = np.ones(4, np.float32)
    for query in QUERIES:
        twice = contribution(query, x, np.array([1, 1], np.int32), FACTS, LATTICE)
        once = contribution(query, x, np.array([1, -1], np.int32), FACTS, LATTICE)
        assert np.array_equal(twice, once)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_null_record_adds_zero_and_a_record_of_zeros_is_an_ordinary_one(bad: float) -> None:
    nulls = [
        (np.array([bad, 0, 0, 0], np.float32), np.array([0, -1], np.int32)),
        (np.ones(4, np.float32), np.array([-1, -1], np.int32)),
        (np.ones(4, np.float32), np.array([0, 3], np.int32)),
        (np.ones(4, np.float32), np.array([0, -2], np.int32)),
    ]
    for query in QUERIES:
        for x, labels in nulls:
            assert not contribution(query, x, labels, FACTS, LATTICE).any()
    zeros = contribution(QUERIES[1], np.zeros(4, np.float32), np.array([0, -1], np.int32), FACTS, LATTICE)
    assert zeros[-1, -1] > 0
    assert math.isclose(zeros.sum(), zeros[-1, -1])


@pytest.mark.parametrize("constant", [0.0, 0.2, 1.0, 3.0])
def test_the_longest_record_is_not_shortened_by_its_constant_feature(constant: float) -> None:
    """The factor of a record and its constant has the bound √(1 + constant²), and the longest record reaches it."""
    x, labels = np.array([0, 30, 0, 40], np.float32), np.array([1, -1], np.int32)
    gram = Gram(CHAIN, constant=constant)
    for part in (0.5, 50):
        z = np.array([0, 0.6 * min(part, 1), 0, 0.8 * min(part, 1), *[constant][: constant > 0]])
        added = contribution(gram, x / 50 * part, labels, FACTS, LATTICE) * gram.scale(FACTS, LATTICE)
        assert np.allclose(added, np.outer(z, z), rtol=0, atol=1e-5 * (1 + constant**2))
    hessians = Hessians(CHAIN, np.zeros((len(z), 3)), 0, 3, constant=constant)
    added = contribution(hessians, x, labels, FACTS, LATTICE) * hessians.scale(FACTS, LATTICE)
    assert np.allclose(added, 0.25 * np.outer(z, z), rtol=0, atol=1e-3 * (1 + constant**2))


@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("length", [0.0, 0.3, 1.0])
def test_a_gradient_is_that_of_the_loss_and_is_shortened_to_the_clipping_norm(length: float, constant: float) -> None:
    x = np.array([0, 0.6, 0, 0.8], np.float32) * np.float32(length)
    z = np.append(x, constant)[: 5 if constant else 4]
    theta = np.random.default_rng(0).normal(size=(len(z), 3))
    odds = np.exp(z @ theta)
    for loss, p, labels, target in (
        ("sigmoid", odds / (1 + odds), [1, 2], [0, 1, 1]),
        ("softmax", odds / odds.sum(), [1, 2], [0, 0.5, 0.5]),
        ("softmax", odds / odds.sum(), [1, -1], [0, 1, 0]),
    ):
        whole = np.outer(z, p - np.array(target))
        for clip in (0.05, 5.0):
            query = Gradient(CHAIN, theta, clip=clip, constant=constant, loss=loss)  # type: ignore[arg-type]
            expected = whole * min(1, clip / max(float(np.linalg.norm(whole)), 1e-9))
            added = contribution(query, x, np.array(labels, np.int32), FACTS, LATTICE) * query.scale(FACTS, LATTICE)
            assert np.allclose(added, expected, rtol=0, atol=1e-5 * clip)


def test_a_block_of_hessians_is_in_natural_units_wherever_it_begins() -> None:
    facts, x = Facts(n=4, m=2_000, d=4), np.array([0, 0, 1, 0], np.float32)
    for start, stop in ((0, 1), (1_999, 2_000), (1_996, 2_000)):
        query = Hessians(CHAIN, np.zeros((4, 2_000)), start, stop)
        added = contribution(query, x, np.array([7], np.int32), facts, LATTICE) * query.scale(facts, LATTICE)
        assert added.shape == (stop - start, 4, 4)
        assert np.allclose(added[:, 2, 2], 0.25, rtol=1e-3)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_sums_of_several_labels_are_in_natural_units(k: int) -> None:
    facts, x = replace(FACTS, k=k), np.array([0, 0.3, 0, 0.4], np.float32)
    labels = np.arange(k, dtype=np.int32)
    for query, expected in (
        (Mean(CHAIN), x[None]),
        (ClassSums(CHAIN), np.outer(np.arange(3) < k, x)),
        (ClassGrams(CHAIN), np.multiply.outer(np.arange(3) < k, np.outer(x, x))),
    ):
        added = contribution(query, x, labels, facts, LATTICE) * query.scale(facts, LATTICE)
        assert np.allclose(added, expected, rtol=0, atol=1e-5)
