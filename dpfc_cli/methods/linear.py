"""Post-processing of released matrices that several methods use."""

import math

import numpy as np

from dpfc_cli import threads
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.inputs import Loss
from dpfc_cli.privacy.queries import Gram, sensitivity

START_BIAS = -10.0
SQUARES = 6
"""Square matrices that one decomposition holds: its copies and the workspace of LAPACK."""
BLOCK_BYTES = 192 * 2**20
"""The most bytes for the Hessians of one block. It depends on public facts alone, because it shapes plans."""
SMALL = 48
"""The side of matrices that are decomposed in less time than it takes to start threads for them."""


def threads_for(side: int) -> int:
    """How many threads decompose matrices of that side at most. What they hold fits into `BLOCK_BYTES`, if more than
    one does. 0: no thread of its own.
    """
    if side <= SMALL:
        return 0
    return max(1, min(threads.MOST, BLOCK_BYTES // (8 * SQUARES * side**2)))


def symmetric_psd(matrix: np.ndarray) -> np.ndarray:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues become zero. matrix: d × d, or
    a stack of such matrices.

    Noise makes the smallest eigenvalues of a released Gram matrix negative. The true eigenvalues are not negative.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.swapaxes(-1, -2)) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2))


def shrink(values: np.ndarray, spread: float) -> np.ndarray:
    """E[vᵀCv] for each eigenvector v of C + noise with these eigenvalues, in the limit of many dimensions.

    The noise is a symmetric Gaussian matrix with a semicircle of radius 2·spread as its spectrum. Among the estimators
    that keep the eigenvectors, the optimal one is λ − 2·spread²·h(λ). h is the Hilbert transform of the spectral
    density (Bun, Allez, Bouchaud and Potters 2016, "Rotational invariant estimator for general noisy matrices"). Here h
    is regularised at the width spread/√d.
    """
    width = spread / math.sqrt(len(values)) + np.finfo(float).tiny ** 0.25
    apart = values[:, None] - values
    return np.asarray(values - 2 * spread**2 * (apart / (apart**2 + width**2)).mean(axis=1))


def damped_inverse(matrix: np.ndarray, damping: float, edge: float = 0.0, raw: bool = False) -> np.ndarray:
    """(M⁺ + damping·I)⁻¹, from one decomposition of M, d × d. M⁺ is M with shrunken eigenvalues, and none below zero.
    damping: above 0. edge: of the noise in M (`noise_edge`). 0: the eigenvalues are not shrunk. raw: M⁺ is M.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    values = shrink(values, edge / 2) if edge else values
    return np.asarray((vectors / ((values if raw else np.maximum(values, 0.0)) + damping)) @ vectors.T)


def noise_edge(facts: Facts, side: int, sigma: float) -> float:
    """The edge: the largest eigenvalue, per record, of the noise in a released Gram matrix of that side. sigma: the
    noise multiplier of its release.

    The noise has the variance σ²/2 off the diagonal. So its spectrum is a semicircle of radius √(2·side)·σ (Wigner).
    The edge is known from public facts. Eigenvalues below it are mostly noise, so it is the natural scale of a ridge or
    a damping.
    """
    return math.sqrt(2 * side) * sigma * sensitivity(Gram, facts) / facts.n


def blocks(facts: Facts) -> list[tuple[int, int]]:
    """The classes, cut into blocks. The Hessians of a block fit into `BLOCK_BYTES`."""
    size = max(1, min(facts.m, BLOCK_BYTES // (8 * (facts.d + 1) ** 2)))
    return [(start, min(start + size, facts.m)) for start in range(0, facts.m, size)]


def bias_feature(facts: Facts) -> float:
    """The default value of the bias's constant feature, for records of length 1: 1/√d, the root mean square of a
    coordinate.

    Clipping bounds the length of a record with its constant, and noise grows with that bound. So the bias costs what
    any other weight costs. With a constant of 1, a plain bias, it costs half of the squared length. Noise alone hardly
    tells small constants apart, but with a tiny one the descent ends before the bias is learned (docs/accuracy.md).
    """
    return 1 / math.sqrt(facts.d)


def start(facts: Facts, loss: Loss, constant: float) -> np.ndarray:
    """The first θ: zero, but with a bias of −10 for the sigmoid loss, as in the paper. Then every class is improbable
    at first. constant: of the bias; 0: θ has none.
    """
    theta = np.zeros((facts.d + bool(constant), facts.m))
    if loss == "sigmoid" and constant:
        theta[-1] = START_BIAS / constant
    return theta


def held_bias(loss: Loss, constant: float) -> float:
    """The bias of every class that is not learned, because the constant feature is 0: it stays where others begin."""
    return START_BIAS if loss == "sigmoid" and not constant else 0.0


def affine(theta: np.ndarray, constant: float, held: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """θ as weight, d × m, and bias, m. held: the bias, if the constant feature is 0."""
    return (theta[:-1], constant * theta[-1]) if constant else (theta, np.full(theta.shape[1], held))


def levelled(theta: np.ndarray, noise: float) -> np.ndarray:
    """The class vectors, d × m, with lengths that are more alike: each is divided by a power of its length.

    The vectors of rare classes are too short, because noise ends the descent before they are learned. The power is
    2a(1 − a), if a part a of the mean squared length is noise. With little noise the descent is long, and the lengths
    are what the loss wants. Where all is noise, nothing is known of a rare class, and it should be named rarely.

    noise: the expected squared length of the noise in a vector.
    """
    squares = np.square(theta).sum(axis=0)
    typical = float(squares.mean())
    part = min(noise / typical, 1.0) if typical > 0 else 0.0
    least = max(np.finfo(float).eps * typical, np.finfo(float).tiny)
    return np.asarray(theta * (typical / np.maximum(squares, least)) ** (part * (1 - part)))
