"""One record changes a sum by at most the declared sensitivity, in integers of the lattice. The kernels sum exactly
what `contribution` defines.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfc_cli.privacy import lattice as lattice_module
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.forms import check
from dpfc_cli.privacy.inputs import inputs, prepare, probabilities
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


def check_zero_out(query: Query, x: np.ndarray, labels: np.ndarray, lattice: Lattice = LATTICE) -> None:
    whole = exact_sum(query, stream_of(x, labels), FACTS, lattice)
    nulled = labels.copy()
    nulled[1] = -1
    without = exact_sum(query, stream_of(x, nulled), FACTS, lattice)
    assert norm_of_difference(whole, without) <= lattice.unit**2


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@given(x=RECORDS, labels=LABELS)
@settings(max_examples=60, deadline=None)
def test_zeroing_one_record_out_moves_the_sum_by_at_most_one_unit(
    query: Query, x: np.ndarray, labels: np.ndarray
) -> None:
    check_zero_out(query, x, labels)


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
@given(x=RECORDS, labels=LABELS, other=RECORDS, other_labels=LABELS)
@settings(max_examples=60, deadline=None)
def test_replacing_one_record_moves_the_sum_by_at_most_the_declared_factor(
    query: Query, x: np.ndarray, labels: np.ndarray, other: np.ndarray, other_labels: np.ndarray
) -> None:
    before = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    x[2], labels[2] = other[2], other_labels[2]
    after = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    assert norm_of_difference(before, after) <= round(query.replace_one**2) * LATTICE.unit**2


EXTREME = [
    np.array(x, np.float32)
    for x in ([1e4, 0, 0, 0], [3e38] * 4, [-3e38, 3e38, 0, 0], [1e-45] * 4, [0] * 4, [0.5] * 4, [1, -2, 3, -4])
]
SETS = [np.array(labels, np.int32) for labels in ([0, -1], [1, 2], [2, 2], [-1, 0])]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_no_extreme_record_is_worth_more_than_the_sensitivity(query: Query, adjacency: Adjacency) -> None:
    facts = replace(FACTS, adjacency=adjacency)
    with np.errstate(all="ignore"):
        added = [contribution(query, x, labels, facts, LATTICE) for x in EXTREME for labels in SETS]
    others = added if adjacency == "replace-one" else [np.zeros_like(added[0])]
    most = sensitivity(query, facts)
    assert most == {"zero-out": 1.0, "replace-one": query.replace_one}[adjacency]
    for a, b in itertools.product(added, others):
        assert norm_of_difference(a, b) <= round(most**2) * LATTICE.unit**2


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_the_bound_is_nearly_reached_so_the_noise_is_not_wasted(query: Query) -> None:
    x = np.zeros((4, 4), np.float32)
    x[1] = [1e4, 0, 0, 0]
    labels = np.full((4, 2), -1, np.int32)
    labels[1] = [0, 2]
    if isinstance(query, Gradient):
        query = replace(query, clip=1e-3)
    if isinstance(query, Hessians):
        # At θ = 0 every class has the largest possible curvature, ¼.
        query = replace(query, theta=0 * query.theta)
    reached = exact_sum(query, stream_of(x, labels), FACTS, LATTICE)
    # Hessians split the bits of the lattice between three factors, so their radii are a little smaller.
    enough = 0.99 if isinstance(query, Hessians) else 0.999
    assert norm_of_difference(reached, np.zeros_like(reached)) > enough * LATTICE.unit**2


def test_without_the_clip_the_sensitivity_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(self: Lattice, v: Any, squared: int, xp: Any) -> Any:
        return xp.rint(v * self.radius(squared, v.shape[-1]))

    monkeypatch.setattr(lattice_module.Lattice, "vector", unclipped)
    x = np.full((4, 4), 1.0, np.float32)
    labels = np.zeros((4, 2), np.int32)
    # Another lattice, so that no function is used that was compiled with the clip.
    small = replace(QUERIES[4], clip=1e-4)  # type: ignore[type-var]
    with pytest.raises(AssertionError):
        check_zero_out(small, x, labels, Lattice(17))


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_kernels_sum_what_contribution_says(query: Query) -> None:
    facts = Facts(n=150, m=3, d=4, k=2)
    rng = np.random.default_rng(5)
    x = (3 * rng.normal(size=(150, 4))).astype(np.float32)
    x[7, 1], x[8, 2] = np.nan, np.inf
    labels = rng.integers(-1, 4, size=(150, 2)).astype(np.int32)
    # With powers of ten in θ, the float32 logits of NumPy and XLA differ by rounding alone.
    expected = sum(contribution(query, x[i], labels[i], facts, LATTICE) for i in range(150))
    got = exact_sum(query, stream_of(x, labels), facts, LATTICE)
    if query.arrays:
        # Logits are float32, so a residual may be rounded to the next lattice point.
        assert np.max(np.abs(got - expected)) / LATTICE.unit < 150 * (1e-4 if isinstance(query, Hessians) else 4e-6)
    else:
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("query", QUERIES, ids=NAMES)
def test_the_lattice_gives_the_answers_of_real_arithmetic(query: Query) -> None:
    facts = Facts(n=60, m=3, d=4, k=2)
    rng = np.random.default_rng(6)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    x /= 1.1 * np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.stack([rng.integers(0, 3, 60), np.full(60, -1)], axis=1).astype(np.int32)
    query = replace(query, clip=50.0) if isinstance(query, Gradient) else query
    on_lattice = exact_sum(query, stream_of(x, labels), facts, LATTICE) * query.scale(facts, LATTICE)
    real = exact_sum(query, stream_of(x, labels), facts, Reals()) * query.scale(facts, Reals())
    assert np.allclose(on_lattice, real, atol=60 * 50 * 2**-17)


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


def test_a_record_is_prepared_without_looking_at_the_others() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    x[3, 1], x[5, 0], x[7, 3] = np.nan, np.inf, -np.inf
    labels = rng.integers(-2, 4, size=(40, 2)).astype(np.int32)
    together = prepare(x, labels, 3, np)
    for i in range(40):
        for whole, alone in zip(together, prepare(x[i : i + 1], labels[i : i + 1], 3, np), strict=True):
            assert np.array_equal(whole[i : i + 1], alone)
        null = not np.isfinite(x[i]).all() or not ((labels[i] >= -1) & (labels[i] <= 2)).all() or (labels[i] < 0).all()
        assert together[2][i] == (not null)
        assert set(np.flatnonzero(together[1][i])) == (set() if null else set(labels[i]) - {-1})
        assert np.array_equal(together[0][i], 0 * together[0][i] if null else x[i])
    assert [part.dtype for part in together] == [np.float32, np.float64, bool]


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
def test_inputs_have_a_constant_feature_and_the_length_that_was_asked_for(radius: float) -> None:
    x = np.array([[3, 4, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]], np.float32)
    plain = inputs((Clip(1.0),), 0, x, np)
    assert np.allclose(plain, np.array([[0.6, 0.8, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0]]), atol=1e-5)
    biased = inputs((Clip(1.0),), 0.25, x, np)
    assert np.array_equal(biased, np.concatenate([plain, np.full((3, 1), 0.25)], axis=1))
    scaled = inputs((Clip(1.0),), 0, x, np, radius)
    assert np.allclose(scaled, radius * np.array([[0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]), atol=1e-5)


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


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 2), (1, 1), (2, 1), (0, 4), (0.0, 3), (0, 3.0), (False, 3), (np.int64(0), np.int64(3))]
)
def test_a_block_of_hessians_is_of_classes_that_there_are(start: Any, stop: Any) -> None:
    check(Hessians(CHAIN, np.zeros((4, 3)), 0, 3), FACTS)
    with pytest.raises(ValueError, match="there are no classes"):
        check(Hessians(CHAIN, np.zeros((4, 3)), start, stop), FACTS)


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


def test_probabilities_are_those_of_the_loss() -> None:
    logits = np.array([[0.0, 2.0, -1.0]], np.float32)
    assert np.allclose(probabilities(logits, "sigmoid", np), 1 / (1 + np.exp(-logits)), rtol=1e-6)
    assert np.allclose(probabilities(logits, "softmax", np), np.exp(logits) / np.exp(logits).sum(), rtol=1e-6)
    both = np.concatenate([logits, 3 * logits])
    assert np.array_equal(probabilities(both, "softmax", np)[:1], probabilities(logits, "softmax", np))


def test_probabilities_are_finite_whatever_the_logits() -> None:
    logits = np.array([[np.nan, np.inf, -np.inf], [1e30, -1e30, 0], [0, 0, 0]], np.float32)
    for loss in ("sigmoid", "softmax"):
        p = probabilities(logits, loss, np)
        assert ((p >= 0) & (p <= 1)).all()
    assert np.allclose(probabilities(logits[2:], "softmax", np), 1 / 3)


class Zero:
    """It claims to equal 0."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


ONE_BAD = np.zeros((5, 3))
ONE_BAD[4, 1] = np.inf


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("clip", value) for value in (0.0, -1.0, np.inf, np.nan)),
        *(("radius", value) for value in (0.0, -1.0, np.inf, np.nan, "1")),
        *(("constant", value) for value in (-1.0, np.inf, np.nan, Zero())),
        *(("loss", value) for value in ("other", None)),
        *(("theta", value) for value in (ONE_BAD, np.zeros((4, 3)), np.zeros((5, 3), np.float32))),
    ],
)
def test_a_gradient_with_a_value_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    sound = Gradient(CHAIN, np.zeros((5, 3)), clip=1.0, constant=1.0, radius=1.0)
    check(sound, FACTS)
    check(replace(sound, radius=None), FACTS)
    with pytest.raises(ValueError):  # noqa: PT011
        check(replace(sound, **{field: value}), FACTS)


class Smuggler(np.ndarray):
    """It looks like an array, but it has code of its own."""


@pytest.mark.parametrize("field", ["theta", "clip", "constant", "loss", "norm", "chain"])
def test_nothing_but_plain_arrays_and_numbers_enters_the_map_over_records(field: str) -> None:
    facts = Facts(n=10, m=3, d=2)
    sound = Gradient(CHAIN, np.zeros((3, 3)), clip=1.0)
    check(sound, facts)
    smuggled = {
        "theta": np.zeros((3, 3)).view(Smuggler),
        "clip": type("Number", (float,), {})(1.0),
        "constant": type("Number", (float,), {})(1.0),
        "loss": type("Text", (str,), {})("sigmoid"),
        "norm": (Clip(type("Number", (float,), {})(1.0)),),
        "chain": type("Steps", (tuple,), {})(CHAIN),
    }
    with pytest.raises(ValueError):  # noqa: PT011
        check(replace(sound, **{"chain" if field == "norm" else field: smuggled[field]}), facts)


@pytest.mark.parametrize("name", ["replace_one", "symmetric", "kind", "scale", "shape", "factors", "numbers"])
def test_attributes_of_an_instance_cannot_hide_what_its_class_proves(name: str) -> None:
    facts, query = Facts(n=10, m=3, d=2), Gradient(CHAIN, np.zeros((3, 3)), clip=1.0)
    check(query, facts)
    object.__setattr__(query, name, getattr(query, name))
    with pytest.raises(ValueError, match="not a query of the core"):
        check(query, facts)


def test_with_the_softmax_a_record_of_several_labels_pulls_towards_each_equally_and_no_further() -> None:
    facts, x = Facts(n=4, m=3, d=2, k=2), np.ones(2, np.float32)
    theta = np.zeros((3, 3))
    theta[:, 2] = -1e3
    query = Gradient((Clip(1.0),), theta, clip=1e3, loss="softmax")
    added = contribution(query, x, np.array([0, 1], np.int32), facts, Lattice(26))
    # The target is one half for each of both classes, and the prediction is already that.
    assert np.abs(added).max() < 1e-6 * 4.0**26
