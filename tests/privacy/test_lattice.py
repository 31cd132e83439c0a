"""Integer vectors never exceed their norm, for any input. NumPy and XLA give the same vectors."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpfc_cli.privacy import lattice as lattice_module
from dpfc_cli.privacy.chain import NORM_BITS, norms
from dpfc_cli.privacy.lattice import Lattice, lattice_for

ANY_FLOAT = st.floats(width=64, allow_nan=True, allow_infinity=True)


def worst_cases(d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = [
        np.zeros(d), np.ones(d), np.eye(d)[0], np.full(d, 1e300), np.full(d, 5e-324), np.full(d, np.nan),
        np.full(d, np.inf), np.full(d, 1 / np.sqrt(d)), np.eye(d)[0] * 3e38, np.linspace(-1, 1, d),
    ]  # fmt: skip
    unit = rng.normal(size=(500, d))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return np.concatenate([rows, unit, unit * 1.0000001, rng.standard_cauchy((500, d))])


def within(q: np.ndarray, lattice: Lattice, squared: int) -> bool:
    """Whether all rows are integers whose squares add up to that much at most. Exact."""
    if not (np.abs(q) <= lattice.one).all() or (q != np.rint(q)).any():
        return False
    return bool(((q.astype(np.int64) ** 2).sum(axis=1) <= squared).all())


@pytest.mark.parametrize("bits", [10, 14, 18])
@pytest.mark.parametrize("d", [1, 7, 192, 1024])
def test_no_vector_is_longer_than_the_lattice_allows(bits: int, d: int) -> None:
    lattice = Lattice(bits)
    for squared in (lattice.unit, lattice.unit // 3):
        with np.errstate(all="ignore"):
            q = lattice.vector(worst_cases(d), squared, np)
        assert within(q, lattice, squared)


@given(arrays(np.float64, (3, 4), elements=ANY_FLOAT))
@settings(max_examples=100, deadline=None)
def test_no_vector_that_hypothesis_finds_is_longer(v: np.ndarray) -> None:
    lattice = Lattice(18)
    with np.errstate(all="ignore"):
        q = lattice.vector(v, lattice.unit, np)
    assert within(q, lattice, lattice.unit)


def test_a_record_is_rounded_without_looking_at_the_others() -> None:
    """Not even at one that is not finite, or that is too long. Otherwise it would change what they add."""
    lattice, v = Lattice(18), worst_cases(7)[:60]
    with np.errstate(all="ignore"):
        together = lattice.vector(v, lattice.unit, np)
        alone = np.concatenate([lattice.vector(row[None], lattice.unit, np) for row in v])
    assert np.array_equal(together, alone)
    assert not together[[0, 4, 5, 6]].any()
    assert together[[1, 2, 3, 7, 8, 9]].any(axis=1).all()


def test_the_check_alone_keeps_the_bound_if_nothing_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice_module, "into_ball", lambda v, xp: v)
    lattice = Lattice(18)
    longer = np.array([[1.001, 0], [-1.001, 0], [0.8, 0.8], [1e300, 0], [-1e300, 1], [np.inf, 0], [np.nan, 0.1]])
    with np.errstate(all="ignore"):
        assert not lattice.vector(longer, lattice.unit, np).any()
        kept = lattice.vector(np.array([[0.999, 0.0], [-0.999, 0.0]]), lattice.unit, np)
    assert kept.any(axis=1).all()


def test_finite_vectors_keep_their_direction_and_are_never_dropped() -> None:
    lattice, rng = Lattice(18), np.random.default_rng(1)
    v = rng.normal(size=(2000, 64))
    q = lattice.vector(v, lattice.unit, np)
    radius = lattice.radius(lattice.unit, 64)
    assert np.allclose(q / radius, v / np.linalg.norm(v, axis=1, keepdims=True), atol=1e-4)
    assert radius > 0.999 * 2**18


def test_numpy_and_xla_make_the_same_integers() -> None:
    import jax.numpy as jnp

    import dpfc_cli.kernels  # noqa: F401  (switches JAX to 64 bits)

    v = worst_cases(192)
    v = v[np.isfinite(v).all(axis=1)]
    lattice = Lattice(18)
    with np.errstate(all="ignore"):
        host = lattice.vector(v, lattice.unit, np)
    assert np.array_equal(host, np.asarray(lattice.vector(jnp.asarray(v), lattice.unit, jnp)))


def test_norms_are_good_to_the_stated_error() -> None:
    v = worst_cases(192)[10:]
    v = v[np.isfinite(v).all(axis=1)]
    exact = np.linalg.norm(v, axis=1, keepdims=True)
    assert np.max(np.abs(norms(v, np) / exact - 1)) < np.sqrt(192) / 2**19
    assert norms(np.zeros((1, 3)), np) == 0


def test_norms_do_not_depend_on_the_order_of_the_coordinates() -> None:
    """At the largest d the squares sum to at most 2⁵³. One bit more would not be exact."""
    assert 2**17 * 4**NORM_BITS <= 2**53
    rng = np.random.default_rng(0)
    v = rng.uniform(0.9, 1.0, size=(1, 2**17))
    found = {float(norms(v[:, rng.permutation(2**17)], np)[0, 0]) for _ in range(20)}
    assert len(found) == 1


def test_a_row_of_denormal_numbers_counts_as_zero() -> None:
    with np.errstate(all="ignore"):
        assert norms(np.full((1, 3), 5e-324), np) == 0


@pytest.mark.parametrize(
    ("n", "sigma", "d", "bits"),
    [
        pytest.param(2**32, 1.0, 10, 10, id="the most records"),
        pytest.param(2**32 + 1, 1.0, 10, None, id="one record more"),
        pytest.param(1000, 2**41 / 40, 10, 10, id="the most noise"),
        pytest.param(1000, 2**41 / 39.9, 10, None, id="a little more noise"),
        pytest.param(1000, 1.0, 2**17, 18, id="the longest factor"),
        pytest.param(1000, 1.0, 2**17 + 1, None, id="a longer one"),
        pytest.param(2**16, 1.0, 10, 18, id="the most records at full resolution"),
        pytest.param(2**16 + 1, 1.0, 10, 17, id="one more"),
    ],
)
def test_a_lattice_has_10_to_18_bits_or_is_refused(n: int, sigma: float, d: int, bits: int | None) -> None:
    if bits is None:
        with pytest.raises(ValueError, match="no exact lattice"):
            lattice_for(n, sigma, d)
    else:
        assert lattice_for(n, sigma, d).bits == bits


@pytest.mark.parametrize("bits", [10, 14, 18])
@pytest.mark.parametrize("d", [1, 7, 192, 1024, 2**17])
def test_the_radius_leaves_room_for_rounding_and_wastes_little(bits: int, d: int) -> None:
    """A vector of norm 1, measured with the error of `norms` and rounded, stays within the bound."""
    lattice = Lattice(bits)
    for squared in (lattice.unit, lattice.unit // 3):
        longest, error = math.sqrt(squared), math.sqrt(d) / 2**19
        radius = lattice.radius(squared, d)
        assert radius * (1 + error) + math.sqrt(d) / 2 <= longest
        assert radius >= longest * (1 - 4 * error) - 2 * math.sqrt(d)
