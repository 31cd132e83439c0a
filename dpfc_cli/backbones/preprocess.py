"""What a network does first with pictures that were resized and cropped when they were decoded: it normalises them, and
cuts them into patches.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dpfc_cli.geometry import Geometry, Triple

DTYPES: dict[str, np.dtype[np.generic]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""The precisions of the arithmetic, by name."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Preprocessing. name: what the manifest calls it. mean, std: of each colour, of pixels in [0, 1]."""

    name: str
    geometry: Geometry
    mean: Triple
    std: Triple

    def describe(self) -> dict[str, object]:
        """The recipe as JSON values. The fingerprint of feature sets covers them: other words change it."""
        return {
            "recipe": self.name,
            **self.geometry.describe(),
            "filter": f"{self.geometry.filter}, antialiased, rounded to bytes, as Pillow's",
            "mean": list(self.mean),
            "std": list(self.std),
        }


def seen(pixels: jax.Array, mean: Triple, std: Triple) -> jax.Array:
    """What a network sees of pictures, (x / 255 - mean) / std: from uint8 (B, S, S, 3) to float32 (B, 3, S, S)."""
    planes = pixels.transpose(0, 3, 1, 2).astype(jnp.float32)
    scale, shift = (
        each.astype(np.float32)[:, None, None] for each in (1 / (255 * np.array(std)), np.array(mean) / std)
    )
    return planes * scale - shift


def patches(planes: jax.Array, patch: int) -> jax.Array:
    """Cut squares into patches: from (B, C, S, S) to (B, (S//p)², p·p·C), ordered by row, column, colour.

    Pixels that no whole patch covers are dropped.
    """
    batch, colours, side = planes.shape[:3]
    grid = side // patch
    kept = planes[:, :, : grid * patch, : grid * patch].reshape(batch, colours, grid, patch, grid, patch)
    return kept.transpose(0, 2, 4, 3, 5, 1).reshape(batch, grid * grid, patch * patch * colours)


# Resizing position embeddings as matrices: along one axis, an output is a weighted sum of some inputs. Pixel centres
# lie at (i + ½)·scale. With antialiasing, as timm does it (torch's antialias=True, and Pillow), the filter is wider
# when a grid shrinks, and a = -½. Without it, as in torch, there are four neighbours, a = -¾, and inputs beyond the
# border repeat the border.


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel of Keys (1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def antialiased(size: int, target: int) -> np.ndarray:
    """The matrix (target, size) of bicubic resizing with antialiasing, in float64. Its rows sum to 1."""
    scale = size / target
    stretch = max(scale, 1.0)
    support = 2.0 * stretch
    centre = (np.arange(target)[:, None] + 0.5) * scale
    inputs = np.arange(size)[None, :]
    low = np.maximum((centre - support + 0.5).astype(int), 0)
    high = np.minimum((centre + support + 0.5).astype(int), size)
    distance = (inputs - centre + 0.5) / stretch
    weights = np.where((inputs >= low) & (inputs < high), _cubic(distance, -0.5), 0.0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def interpolated(size: int, target: int) -> np.ndarray:
    """The matrix (target, size) of torch's bicubic resizing without antialiasing and aligned corners, in float64."""
    centre = (np.arange(target) + 0.5) * (size / target) - 0.5
    base = np.floor(centre).astype(int)
    matrix = np.zeros((target, size))
    for tap in range(-1, 3):
        index = np.clip(base + tap, 0, size - 1)
        np.add.at(matrix, (np.arange(target), index), _cubic(centre - base - tap, -0.75))
    return matrix
