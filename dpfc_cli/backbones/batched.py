"""What every backbone does around its compiled program: checks, padding to the one shape, and calls of any length."""

import jax
import numpy as np


class Batched:
    """A backbone of one compiled batch shape. Subclasses set the attributes and define `_compute`."""

    batch: int
    dim: int
    _shape: tuple[int, ...]

    def _compute(self, whole: np.ndarray) -> jax.Array:
        """uint8 (batch, *shape) to float32 (batch, dim) on the device."""
        raise NotImplementedError

    def submit(self, pixels: np.ndarray) -> jax.Array:
        """uint8 (B, H, W, C), B at most `batch`, to float32 (B, dim) that the device may still be computing."""
        if pixels.dtype != np.uint8 or pixels.shape[1:] != self._shape:
            raise ValueError(f"expected uint8 pixels (B, {self._shape}), got {pixels.dtype} {pixels.shape}")
        if len(pixels) > self.batch:
            raise ValueError(f"expected at most {self.batch} rows, got {len(pixels)}")
        # A copy in any case: the caller may change its array while the device still reads.
        whole = np.zeros((self.batch, *self._shape), np.uint8)
        whole[: len(pixels)] = pixels
        out = self._compute(whole)
        return out if len(pixels) == self.batch else out[: len(pixels)]

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """uint8 (B, H, W, C) to float32 (B, dim)."""
        out = np.empty((len(pixels), self.dim), np.float32)
        for start in range(0, max(len(pixels), 1), self.batch):
            part = self.submit(pixels[start : start + self.batch])
            out[start : start + len(part)] = np.asarray(part)
        return out
