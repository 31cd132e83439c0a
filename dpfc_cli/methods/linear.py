"""What methods compute from released matrices: post-processing, shared by them."""

import math

import numpy as np

from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gram, Loss, sensitivity

START_BIAS = -10.0
BLOCK_BYTES = 192 * 2**20
"""Of one block's Hessians. It depends on nothing but public facts, since it shapes plans."""


def symmetric_psd(matrix: np.ndarray) -> np.ndarray:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues to zero.

    Noise makes the smallest eigenvalues of a released Gram matrix negative; what they estimate is not. matrix: … × d ×
    d.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2))


def damped_inverse(matrix: np.ndarray, damping: float) -> np.ndarray:
    """(M⁺ + damping·I)⁻¹ with M⁺ the nearest positive semi-definite matrix, from one decomposition. matrix: d × d."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return np.asarray((vectors / (np.maximum(values, 0.0) + damping)) @ vectors.T)


def noise_edge(facts: Facts, side: int, sigma: float) -> float:
    """The largest eigenvalue, per record, of the noise in a released Gram matrix of that side and noise multiplier.

    The noise has off-diagonal variance σ²/2, so its spectrum is a semicircle of radius √(2·side)·σ (Wigner). It is
    known from public facts, and eigenvalues below it are mostly noise: the natural scale of a ridge or damping.
    """
    return math.sqrt(2 * side) * sigma * sensitivity(Gram, facts) / facts.n


def blocks(facts: Facts) -> list[tuple[int, int]]:
    """The classes, cut into blocks whose Hessians fit into `BLOCK_BYTES`."""
    size = max(1, min(facts.m, BLOCK_BYTES // (8 * (facts.d + 1) ** 2)))
    return [(start, min(start + size, facts.m)) for start in range(0, facts.m, size)]


def start(facts: Facts, loss: Loss, constant: float) -> np.ndarray:
    """θ = 0, with a bias of −10 for the sigmoid loss as in the paper: every class starts out improbable."""
    theta = np.zeros((facts.d + 1, facts.m))
    if loss == "sigmoid":
        theta[-1] = START_BIAS / constant
    return theta
