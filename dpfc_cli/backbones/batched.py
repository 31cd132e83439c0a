"""What all backbones do around their compiled program: checks, padding to one shape, and calls of any length."""

from abc import ABC, abstractmethod

import jax
import numpy as np


class Batched(ABC):
    """The part of a `Backbone` that is the same for all. Subclasses set the attributes and define `_compute`."""

    batch: int
    dim: int
    _shape: tuple[int, ...]

    @abstractmethod
    def _compute(self, whole: np.ndarray) -> jax.Array:
        """Compute the features on the device: from uint8 (batch, H, W, C) to float32 (batch, dim)."""

    def submit(self, pixels: np.ndarray) -> jax.Array:
        """As `Backbone.submit`. Raises ValueError for pixels of another type or shape, or for too many."""
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self._shape:
            raise ValueError(f"expected uint8 pixels (B, {self._shape}), got {pixels.dtype} {pixels.shape}")
        if len(pixels) > self.batch:
            raise ValueError(f"expected at most {self.batch} rows, got {len(pixels)}")
        # This is always a copy, because the caller may change its array while the device still reads.
        whole = np.zeros((self.batch, *self._shape), np.uint8)
        whole[: len(pixels)] = pixels
        out = self._compute(whole)
        return out if len(pixels) == self.batch else out[: len(pixels)]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """As `Backbone.__call__`."""
        out = np.empty((len(pixels), self.dim), np.float32)
        for start in range(0, max(len(pixels), 1), self.batch):
            part = self.submit(pixels[start : start + self.batch])
            out[start : start + len(part)] = np.asarray(part)
        return out
