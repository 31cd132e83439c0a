"""Matrices are decomposed by several threads, and no head depends on how many. Their eigenvalues lose their noise."""

import math
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dpfc_cli.methods import METHODS, linear
from dpfc_cli.methods.linear import damped_inverse, shrink, symmetric_psd, threads_for
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.queries import ClassGrams, Query
from dpfc_cli.threads import MOST, in_threads
from tests import instead
from tests.support import LOST

FACTS = Facts(n=1000, m=3, d=256)


class Drawn(Oracle):
    """Answers with noise alone, class Grams in pieces of one class."""

    def release(self, query: Query) -> np.ndarray:
        answer = np.random.default_rng(0).normal(size=query.shape(FACTS))
        return (answer + answer.swapaxes(-1, -2)) / 2 if query.symmetric else answer

    def pieces(self, query: Query) -> Iterator[np.ndarray]:
        assert isinstance(query, ClassGrams)
        return (piece[None] for piece in self.release(query))


def test_a_head_is_the_same_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS gives other last bits with two threads than with one, where matrices are as large as these."""
    method, weights = METHODS["dp-ls"], []
    for cores, blas in ((1, 1), (1, 2), (3, 2)):
        instead.cores(monkeypatch, cores)
        with threadpool_limits(blas, user_api="blas"):
            weights.append(method.solve(Drawn(), FACTS, method.defaults(FACTS, 1.0, {})).weight)
    assert np.array_equal(weights[0], weights[1])
    assert np.array_equal(weights[0], weights[2])


def test_items_come_in_order_and_few_are_asked_for_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.cores(monkeypatch, 3)
    asked, names = [], set()

    def items() -> Iterator[int]:
        for number in range(20):
            asked.append(number)
            yield number

    def solve(number: int) -> int:
        names.add(threading.current_thread().name)
        return number**2

    for number, made in enumerate(in_threads(solve, items(), 4)):
        assert made == number**2
        assert len(asked) <= number + 6
    assert len(asked) == 20
    assert threading.current_thread().name not in names


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_does_not_wait_for_a_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.cores(monkeypatch, 2)
    for name in ("dp-whitened", "dp-ls"):
        method, end, ended = METHODS[name], threading.Event(), threading.Event()

        def decompose(matrix: np.ndarray, end: threading.Event = end, ended: threading.Event = ended) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            end.wait(LOST)
            ended.set()

        monkeypatch.setattr(np.linalg, "eigh", decompose)
        with pytest.raises(KeyboardInterrupt):
            method.solve(Drawn(), FACTS, method.defaults(FACTS, 1.0, {}))
        assert not ended.is_set()
        end.set()


def test_what_threads_hold_fits_into_a_block() -> None:
    assert threads_for(64) == MOST
    for side in (512, 768, 1024):
        assert 1 <= threads_for(side) * 8 * linear.SQUARES * side**2 <= linear.BLOCK_BYTES
    assert threads_for(4096) == 1


def test_a_stack_is_projected_as_its_matrices_are() -> None:
    stack = np.random.default_rng(0).normal(size=(3, 5, 5))
    assert np.array_equal(symmetric_psd(stack), [symmetric_psd(matrix) for matrix in stack])


def noisy(values: np.ndarray, spread: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of diag(values) plus symmetric noise with a semicircle of radius 2·spread as its
    spectrum.
    """
    d, rng = len(values), np.random.default_rng(seed)
    noise = rng.normal(size=(d, d)) * spread * math.sqrt(2 / d)
    return np.linalg.eigh(np.diag(values) + (noise + noise.T) / 2)


def test_shrunken_eigenvalues_are_what_the_eigenvectors_explain() -> None:
    truth = np.arange(1, 301) ** -1.0
    for spread in (0.01, 0.1):
        values, vectors = noisy(truth, spread, 3)
        explained = (vectors**2 * truth[:, None]).sum(axis=0)
        error = np.linalg.norm(shrink(values, spread) - explained)
        assert error < 0.35 * np.linalg.norm(np.maximum(values, 0) - explained)


def test_a_spectrum_of_noise_alone_shrinks_to_nothing_and_one_without_noise_stays() -> None:
    values, _ = noisy(np.zeros(300), 1.0, 4)
    assert np.abs(shrink(values, 1.0)).max() < 0.3 * values.max()
    assert np.allclose(shrink(values, 0.0), values)


def test_variance_that_is_noise_alone_does_not_precondition() -> None:
    """Directions that noise fills are preconditioned alike, as if nothing had been released."""
    values, vectors = noisy(np.zeros(300), 1.0, 4)
    found = damped_inverse(vectors * values @ vectors.T, 2.0, edge=2.0)
    assert np.linalg.norm(found - np.eye(300) / 2) < 0.3 * np.linalg.norm(
        damped_inverse(vectors * values @ vectors.T, 2.0) - np.eye(300) / 2
    )
