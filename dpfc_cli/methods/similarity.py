"""Classes that are alike: noisy class vectors are shrunk towards what is known of which classes are similar.

**The model.** Let the classes have public vectors, such as sentence embeddings of their names, or their groups in a
hierarchy. K is the Gram matrix of these, centred, with the trace m. A row of the head has a weight for each of m
classes. Before the training it is normal with the covariance τ²((1 − α)I + αK), and the training adds noise of the
known variance v. α = 0 says that the vectors tell nothing. τ² and α are integrated out over a grid, by their likelihood
in the head itself. So all of it is post-processing of a head that was released, and of public facts.

**The estimate.** In an eigenvector of K in which signal has the variance s, the posterior mean keeps s/(s + v) of a
coordinate. It has the least squared error, but it shrinks the differences between similar classes more than their true
size, and these differences tell such classes apart. So √(s/(s + v)) is kept, which leaves the coordinates with the
variance that the signal has (constrained Bayes estimates; Louis 1984, Ghosh 1992).
"""

from dataclasses import dataclass

import numpy as np

PARTS = (np.arange(20) + 0.5) / 20
"""Values of α that are compared, each as likely as another before."""
RATIOS = np.geomspace(1e-3, 1e3, 61)
"""Values of τ²/v that are compared."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Similarity:
    """Public vectors of the classes, m × e, in any space."""

    vectors: np.ndarray


def shrunk(theta: np.ndarray, vectors: np.ndarray | None, variance: float) -> tuple[np.ndarray, float]:
    """The head shrunk by the similarity of its classes, and the variance of the noise that is left in a coordinate.

    theta: … × m, with rows of the mean 0. vectors: m × e; None: nothing is known. variance: v, of the noise in a
    coordinate.
    """
    found = None if vectors is None or not variance > 0 else axes(vectors)
    if found is None:
        return theta, variance
    basis, sizes = found
    rows, m = theta.shape
    along = theta @ basis
    energies = np.square(along).sum(axis=0)
    # The axes of K are fewer than the classes. All others are alike, but for that of the mean.
    others = m - 1 - len(sizes)
    energies = np.append(energies, max(float(np.square(theta).sum() - energies.sum()), 0.0))
    sizes, counts = np.append(sizes, 0.0), np.append(np.ones(len(sizes)), others)
    signal = RATIOS[:, None, None] * (1 - PARTS[:, None] + PARTS[:, None] * sizes)
    likely = -((rows * counts * np.log1p(signal) + energies / (variance * (1 + signal))).sum(axis=2)) / 2
    weights = np.exp(likely - likely.max())
    kept = np.einsum("tp,tpk->k", weights / weights.sum(), np.sqrt(signal / (1 + signal)))
    left = variance * float((counts * np.square(kept)).sum() / (m - 1))
    return kept[-1] * theta + (along * (kept[:-1] - kept[-1])) @ basis.T, left


def axes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """The eigenvectors of K, m × r, and its eigenvalues; None if the vectors do not tell any two classes apart."""
    tiny = np.finfo(np.float32).tiny
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), tiny)
    basis, roots, _ = np.linalg.svd(units - units.mean(axis=0), full_matrices=False)
    there = roots > 1e-6 * max(float(roots.max()), 1.0)
    sizes = np.square(roots[there])
    return (basis[:, there], len(vectors) * sizes / sizes.sum()) if there.any() else None
