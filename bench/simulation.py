"""A fast simulation of all methods but dp-newton: their own code, float32 sums, noise that claims nothing.

It answers the queries that these methods ask. What it leaves out is the lattice, whose rounding is far below the
noise. So its accuracies are those of the product within the noise, several times faster.
"""

import numpy as np

from bench.sets import Data
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.privacy.oracle import Oracle, Plan
from dpfc_cli.privacy.queries import ClassGrams, ClassSums, Gradient, Gram, Mean, Query

BLOCK = 1024


class Simulated(Oracle):
    """Answers the queries of a training on records, or on persons with equally many records each."""

    def __init__(self, data: Data, plan: Plan, mu: float, seed: int) -> None:
        self._x, self._y, self._m = data.x.astype(np.float32), data.y, data.m
        self._k = 1 if data.persons is None else len(data.x) // data.facts.n
        self._sigmas, self._rng = list(plan.sigmas(mu)), np.random.default_rng(seed)
        self._kept: dict[type[Query], np.ndarray] = {}

    def release(self, query: Query) -> np.ndarray:
        sigma = self._sigmas.pop(0)
        assert isinstance(query, Mean | Gram | Gradient | ClassGrams | ClassSums)
        # All queries of one kind have the same chain in a training.
        if type(query) not in self._kept:
            self._kept[type(query)] = self._rows(query)
            self._lengths = np.linalg.norm(self._kept[type(query)], axis=1, keepdims=True)
        z = self._kept[type(query)]
        if isinstance(query, Mean):
            total = z.sum(axis=0, dtype=np.float64)[None] / self._k
            return np.asarray(total + sigma * self._rng.normal(size=total.shape))
        if isinstance(query, Gram):
            longest = 1 + query.constant**2
            z = z / np.float32(np.sqrt(longest))
            noise = self._rng.normal(size=(z.shape[1], z.shape[1]))
            gram = (self._bounded(z, z).T @ z).astype(np.float64)
            return np.asarray(longest * (gram + sigma * (noise + noise.T) / 2))
        if isinstance(query, ClassGrams | ClassSums):
            return self._classes(query, z, sigma)
        sums = np.zeros(query.theta.shape)
        for start in range(0, len(z), BLOCK - BLOCK % self._k):
            part = slice(start, start + BLOCK - BLOCK % self._k)
            sums += self._gradient(query, z[part], self._y[part], self._lengths[part])
        return np.asarray((sums + sigma * self._rng.normal(size=sums.shape)) * query.clip)

    def _classes(self, query: ClassGrams | ClassSums, z: np.ndarray, sigma: float) -> np.ndarray:
        """Sums over the records of each class. Records are the units."""
        parts = [z[self._y == j] for j in range(self._m)]
        if isinstance(query, ClassSums):
            total = np.stack([part.sum(axis=0, dtype=np.float64) for part in parts])
            return np.asarray(total + sigma * self._rng.normal(size=total.shape))
        total = np.stack([part.T @ part for part in parts]).astype(np.float64)
        noise = self._rng.normal(size=total.shape)
        return np.asarray(total + sigma * (noise + noise.swapaxes(1, 2)) / 2)

    def _rows(self, query: Mean | Gram | Gradient | ClassGrams | ClassSums) -> np.ndarray:
        """The records as a query sees them."""
        z = self._x
        for step in query.chain:
            if isinstance(step, Clip):
                z = clipped(z, step.norm)
            elif isinstance(step, Centre):
                z = z - step.mean.astype(np.float32)
            else:
                z = z @ step.matrix.astype(np.float32)
        if isinstance(query, Gram | Gradient) and query.constant:
            z = np.hstack([z, np.full((len(z), 1), query.constant, np.float32)])
        return clipped(z, 1e-30) if isinstance(query, Gradient) and query.radius is not None else z

    def _gradient(self, query: Gradient, z: np.ndarray, y: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The sum of the clipped gradients of a block, in units of the clipping norm. lengths: of the rows of z."""
        radius = query.radius or 1.0
        p = z @ (radius * query.theta).astype(np.float32) + np.float32(query.offset)
        if query.loss == "softmax":
            p -= p.max(axis=1, keepdims=True)
            np.exp(p, out=p)
            p /= p.sum(axis=1, keepdims=True)
        else:
            np.exp(np.negative(np.clip(p, -80, 80, out=p), out=p), out=p)
            np.reciprocal(np.add(p, 1, out=p), out=p)
        p[np.arange(len(y)), y] -= 1
        scale = np.float32(radius / query.clip)
        p *= scale / np.maximum(scale * np.sqrt(np.einsum("ij,ij->i", p, p))[:, None] * lengths, 1)
        return np.asarray(self._bounded(z, p).T @ p)

    def _bounded(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """left, with the records of each person made shorter together, so that the sum of left ⊗ right is at most 1."""
        if self._k == 1:
            return left
        a, b = (side.reshape(-1, self._k, side.shape[1]) for side in (left, right))
        squares = ((a @ a.swapaxes(1, 2)) * (b @ b.swapaxes(1, 2))).sum(axis=(1, 2))
        return np.asarray((a / np.sqrt(np.maximum(squares, 1))[:, None, None]).reshape(left.shape))


def clipped(x: np.ndarray, norm: float) -> np.ndarray:
    """Rows of length 1, or shorter ones if they are shorter than norm, in units of norm."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), norm))
