"""Preprocessing: each step does what it says to each record by itself, and nothing but known steps is run."""

import math
from typing import Any

import numpy as np
import pytest

from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.chain import Centre, Chain, Clip, Linear, into_ball, norms, run
from dpfc_cli.privacy.lattice import LONGEST

TWO = np.array([[3.0, 4.0], [0.3, 0.4]], np.float32)
MATRIX = np.array([[1.0, 2.0], [3.0, 5.0]])
CHAIN: Chain = (Clip(0.5), Centre(np.array([0.1, -0.2])), Linear(MATRIX))


def test_a_step_maps_each_record_by_itself() -> None:
    assert np.allclose(run((Clip(2.0),), TWO, np), np.array([[0.6, 0.8], [0.15, 0.2]]), atol=1e-6)
    assert np.allclose(run((Centre(np.array([1.0, -1.0])),), TWO, np), np.array([[2, 5], [-0.7, 1.4]]), atol=1e-6)
    assert np.allclose(run((Linear(MATRIX),), TWO, np), np.array([[15, 26], [1.5, 2.6]]), atol=1e-6)
    assert np.allclose(run(CHAIN, TWO, np), np.array([[0.5, 1.0], [0.5, 1.0]]) @ MATRIX, atol=1e-5)
    assert run((), TWO, np).dtype == run(CHAIN, TWO, np).dtype == np.float64


def test_a_matrix_is_applied_in_single_precision() -> None:
    """So that training and prediction give the same features."""
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    assert np.array_equal(run((Linear(MATRIX),), x, np), (x @ MATRIX.astype(np.float32)).astype(np.float64))


def test_rows_in_the_ball_stay_as_they_are_and_longer_ones_get_norm_1() -> None:
    v = np.array([[0.6, 0.8], [0.1, 0.2], [30.0, 40.0], [0.0, 0.0]])
    found = into_ball(v, np)
    assert np.array_equal(found[[1, 3]], v[[1, 3]])
    assert np.allclose(found, np.array([[0.6, 0.8], [0.1, 0.2], [0.6, 0.8], [0, 0]]), atol=1e-5)


def test_a_norm_is_that_of_its_row_alone() -> None:
    v = np.array([[3.0, 4.0], [-5e300, 12e300], [0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0], [1e-310, 0.0]])
    with np.errstate(all="ignore"):
        together = norms(v, np)
        alone = [norms(row[None], np)[0] for row in v]
    assert np.array_equal(together, alone, equal_nan=True)
    assert together[:3, 0] == pytest.approx([5.0, 13e300, 0.0], rel=1e-5)
    # The squares of the longest row sum exactly, so in any order.
    assert LONGEST * 4**chains.NORM_BITS <= 2**53


@pytest.mark.parametrize(
    ("row", "norm"), [([-3e-9, -4e-9], 5e-9), ([1e-300, 1.0], 1.0), ([-1.0, 1e-300], 1.0), ([0.0, -2e300], 2e300)]
)
def test_a_norm_is_measured_against_the_largest_size_of_a_coordinate(row: list[float], norm: float) -> None:
    with np.errstate(all="ignore"):
        assert norms(np.array([row]), np)[0, 0] == pytest.approx(norm, rel=1e-5)


class Subclass(Clip):
    """It could bring code of its own."""


NO_NORMS: list[Any] = [0, 0.0, -1.0, math.inf, math.nan, True, np.float32(1), "1", None]
NO_MEANS: list[Any] = [np.zeros(3), np.zeros((1, 2)), np.zeros(2, np.float32), [0.0, 0.0], None]


@pytest.mark.parametrize(
    "step",
    [
        *(Clip(norm) for norm in NO_NORMS),
        *(Centre(mean) for mean in NO_MEANS),
        *(Centre(np.array([0.0, bad])) for bad in (math.nan, math.inf)),
        *(Linear(matrix) for matrix in (np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(2), np.zeros((2, 2), np.int64))),
        Linear(np.full((2, 2), -math.inf)),
        Subclass(1.0),
        max,
        None,
    ],
    ids=repr,
)
def test_a_step_that_is_not_of_the_core_is_refused(step: Any) -> None:
    chains.check(CHAIN, 2)
    with pytest.raises(ValueError):  # noqa: PT011
        chains.check((Clip(1.0), step), 2)


@pytest.mark.parametrize("norm", [1, 0.5, np.float64(3.0)])
def test_numbers_of_python_and_numpy_are_norms(norm: Any) -> None:
    chains.check((Clip(norm),), 2)


def test_values_can_be_taken_out_and_put_back() -> None:
    values = chains.values(CHAIN)
    assert values[0] == 0.5
    assert values[2] is MATRIX
    opened = chains.with_values(CHAIN, ["a", "b", "c"])
    assert opened == (Clip("a"), Centre("b"), Linear("c"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="zip"):
        chains.with_values(CHAIN, ["a"])


def test_a_card_and_its_arrays_give_the_chain_again() -> None:
    said = chains.to_json(CHAIN)
    assert said == [{"step": "clip", "norm": 0.5}, {"step": "centre"}, {"step": "linear"}]
    held = chains.arrays(CHAIN)
    assert [array.shape for array in held] == [(2,), (2, 2)]
    again = chains.from_json(said, held, 2)
    assert np.array_equal(run(again, TWO, np), run(CHAIN, TWO, np))
    for wrong in (held[:1], [*held, held[0]], []):
        with pytest.raises(ValueError, match="arrays of its preprocessing are missing"):
            chains.from_json(said, wrong, 2)
    with pytest.raises(ValueError, match="not a step of the core over 3 dimensions"):
        chains.from_json(said, held, 3)
    with pytest.raises(ValueError, match="unknown preprocessing step"):
        chains.from_json([*said, {"step": "square"}], held, 2)


def test_a_head_has_steps_with_names_and_norms_that_can_be_used() -> None:
    for norm in (1e-200, 1.0, 1e200):
        assert chains.from_json([{"step": "clip", "norm": norm}], [], 2) == (Clip(norm),)
    for wrong in (0.999e-200, 1.001e200, 0.0, -1.0, 1, True, "1", None, math.nan, math.inf):
        with pytest.raises(ValueError, match="norm must be positive"):
            chains.from_json([{"step": "clip", "norm": wrong}], [], 2)
    with pytest.raises(ValueError, match="norm must be positive"):
        chains.from_json([{"step": "clip"}], [], 2)
    for steps in ("clip", {"step": "clip"}, [["clip"]], [{"step": "clip", "norm": 1.0}, "centre"], None):
        with pytest.raises(ValueError, match="no list of steps"):
            chains.from_json(steps, [], 2)
    for step in ({}, {"step": None}, {"step": ["clip"]}, {"step": "Clip"}):
        with pytest.raises(ValueError, match="unknown preprocessing step"):
            chains.from_json([step], [], 2)
