"""A fast simulation of dp-whitened: the method's own code, float32 sums, and normal noise that claims nothing.

It answers the queries that `dp-whitened` asks. What it leaves out is the lattice, whose rounding is far below the
noise. So its accuracies are those of the product within the noise, several times faster.
"""

import numpy as np

from bench.sets import Data
from dpfc_cli.privacy.chain import Centre, Clip, Linear
from dpfc_cli.privacy.oracle import Oracle, Plan
from dpfc_cli.privacy.queries import Gradient, Gram, Mean, Query

BLOCK = 4096


class Simulated(Oracle):
    """Answers the queries of dp-whitened on records, or on persons with equally many records each."""

    def __init__(self, data: Data, plan: Plan, mu: float, seed: int) -> None:
        self._x, self._y = unit(data.x.astype(np.float32)), data.y
        self._k = 1 if data.persons is None else len(data.x) // data.facts.n
        self._sigmas, self._rng = list(plan.sigmas(mu)), np.random.default_rng(seed)
        self._z, self._centred = self._x, self._x

    def release(self, query: Query) -> np.ndarray:
        sigma = self._sigmas.pop(0)
        if isinstance(query, Mean):
            total = self._x.sum(axis=0, dtype=np.float64)[None] / self._k
            return np.asarray(total + sigma * self._rng.normal(size=total.shape))
        if isinstance(query, Gram):
            _, centre, clip = query.chain
            assert isinstance(centre, Centre)
            assert isinstance(clip, Clip)
            z = (self._x - centre.mean.astype(np.float32)) / np.float32(clip.norm)
            self._centred = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1)
            gram = (self._bounded(self._centred, self._centred).T @ self._centred).astype(np.float64)
            noise = self._rng.normal(size=gram.shape)
            return np.asarray(gram + sigma * (noise + noise.T) / 2)
        assert isinstance(query, Gradient)
        assert query.radius is not None
        if self._z is self._x:
            linear = query.chain[-1]
            assert isinstance(linear, Linear)
            white = self._centred @ linear.matrix.astype(np.float32)
            self._z = unit(np.hstack([white, np.full((len(white), 1), query.constant, np.float32)]))
        sums = np.zeros(query.theta.shape)
        for start in range(0, len(self._z), BLOCK - BLOCK % self._k):
            part = slice(start, start + BLOCK - BLOCK % self._k)
            sums += self._gradient(query, query.radius, self._z[part], self._y[part])
        return np.asarray((sums + sigma * self._rng.normal(size=sums.shape)) * query.clip)

    def _gradient(self, query: Gradient, radius: float, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The sum of the clipped gradients of a block, in units of the clipping norm."""
        scores = z @ (radius * query.theta).astype(np.float32)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        p *= np.float32(radius / query.clip)
        p /= np.maximum(np.linalg.norm(p, axis=1, keepdims=True), 1)
        return np.asarray(self._bounded(z, p).T @ p)

    def _bounded(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """left, with the records of each person made shorter together, so that the sum of left ⊗ right is at most 1."""
        if self._k == 1:
            return left
        a, b = (side.reshape(-1, self._k, side.shape[1]) for side in (left, right))
        squares = ((a @ a.swapaxes(1, 2)) * (b @ b.swapaxes(1, 2))).sum(axis=(1, 2))
        return np.asarray((a / np.sqrt(np.maximum(squares, 1))[:, None, None]).reshape(left.shape))


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30))
