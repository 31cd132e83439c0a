"""Post-processing of released matrices that several methods use."""

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.queries import Gram, sensitivity

Given = TypeVar("Given")
Made = TypeVar("Made")
START_BIAS = -10.0
THREADS = 8
"""The most threads that decompose matrices."""
SQUARES = 6
"""Square matrices that one decomposition holds: its copies and the workspace of LAPACK."""
BLOCK_BYTES = 192 * 2**20
"""The most bytes for the Hessians of one block. It depends on public facts alone, because it shapes plans."""


def in_threads(solve: Callable[[Given], Made], items: Iterable[Given], side: int) -> Iterator[Made]:
    """`solve` of each item, in order.

    Matrices of some hundred rows are decomposed by several threads, each with one thread of BLAS: the threads of one
    decomposition would wait for one another most of the time, and its last bits would depend on how many there are.

    Args:
        solve: decomposes a matrix.
        items: what it is called with. They are asked for in this thread, two for each thread at most.
        side: the side of the matrix.

    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, waiting = min(cores, threads_for(side)), deque[Future[Made]]()
    with _blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(solve, item))
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def threads_for(side: int) -> int:
    """How many threads decompose matrices of that side at most. What they hold fits into `BLOCK_BYTES`, if more than
    one does.
    """
    return max(1, min(THREADS, BLOCK_BYTES // (8 * SQUARES * side**2)))


def symmetric_psd(matrix: np.ndarray) -> np.ndarray:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues become zero.

    Noise makes the smallest eigenvalues of a released Gram matrix negative. The true eigenvalues are not negative.

    Args:
        matrix: d × d, or a stack of such matrices.

    """
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2))


def damped_inverse(matrix: np.ndarray, damping: float) -> np.ndarray:
    """(M⁺ + damping·I)⁻¹, from one decomposition. M⁺ is the nearest positive semi-definite matrix.

    Args:
        matrix: M, d × d.
        damping: a positive number.

    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors / (np.maximum(values, 0.0) + damping)) @ vectors.T)


def noise_edge(facts: Facts, side: int, sigma: float) -> float:
    """The edge: the largest eigenvalue, per record, of the noise in a released Gram matrix.

    The noise has the variance σ²/2 off the diagonal. So its spectrum is a semicircle of radius √(2·side)·σ (Wigner).
    The edge is known from public facts. Eigenvalues below it are mostly noise, so it is the natural scale of a ridge or
    a damping.

    Args:
        facts: the public facts.
        side: the side of the matrix.
        sigma: the noise multiplier of its release.

    """
    return math.sqrt(2 * side) * sigma * sensitivity(Gram, facts) / facts.n


def blocks(facts: Facts) -> list[tuple[int, int]]:
    """The classes, cut into blocks. The Hessians of a block fit into `BLOCK_BYTES`."""
    size = max(1, min(facts.m, BLOCK_BYTES // (8 * (facts.d + 1) ** 2)))
    return [(start, min(start + size, facts.m)) for start in range(0, facts.m, size)]


def start(facts: Facts, loss: Loss, constant: float) -> np.ndarray:
    """The first θ: zero, but with a bias of −10 for the sigmoid loss, as in the paper. Then every class is improbable
    at first.
    """
    theta = np.zeros((facts.d + 1, facts.m))
    if loss == "sigmoid":
        theta[-1] = START_BIAS / constant
    return theta
