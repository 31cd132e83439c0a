"""Preprocessing on the device: resize, crop, turn grey into colour, normalise, cut into patches.

**Resizing gives the same bytes as Pillow.** So a picture has the same features whether it is resized here (data sets
with one small size) or by the workers that decode pictures of many sizes. Pillow multiplies bytes by 22-bit integers,
adds up, and rounds to bytes, first horizontally and then vertically. Accelerators multiply floats, so each weight is
split into two 11-bit halves. The products of a half with bytes, and sums of up to 64 such products, stay below 2^24,
so they are exact in float32. (An output has more than 64 inputs if pictures shrink more than fifteenfold. Then a byte
can be off by one.)
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dpfc_cli.geometry import Filter, Geometry, Triple

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""The precisions of the arithmetic, by name."""
BITS = 22
"""Pillow's weights for bytes are multiples of 2^-22, and it rounds to bytes after each axis."""
_HALF = BITS // 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Preprocessing. name: what the manifest calls it. mean, std: of each colour, of pixels in [0, 1]."""

    name: str
    geometry: Geometry
    mean: Triple
    std: Triple

    def describe(self) -> dict[str, Any]:
        """The recipe as JSON values. The fingerprint of feature sets covers them: other words change it."""
        return {
            "recipe": self.name,
            **self.geometry.describe(),
            "filter": f"{self.geometry.filter}, antialiased, rounded to bytes, as Pillow's",
            "mean": list(self.mean),
            "std": list(self.std),
        }


def seen(pixels: jax.Array, recipe: Recipe, prepared: bool) -> jax.Array:
    """What a network sees of pictures: from uint8 (B, H, W, C) to float32 (B, 3, crop, crop). prepared: whether they
    were resized and cropped already.
    """
    planes = pixels.transpose(0, 3, 1, 2).astype(jnp.float32) if prepared else resized(pixels, recipe.geometry)
    return normalised(planes, np.array(recipe.mean), np.array(recipe.std))


def resized(pixels: jax.Array, geometry: Geometry) -> jax.Array:
    """Resize and crop: from uint8 (B, H, W, C) to float32 (B, C, crop, crop) with the values of bytes."""
    vertical, horizontal = passes(pixels.shape[1], pixels.shape[2], geometry)
    planes = pixels.transpose(0, 3, 1, 2).astype(jnp.float32)
    return _pass(vertical, _pass(horizontal, planes).swapaxes(2, 3)).swapaxes(2, 3)


def _pass(weights: np.ndarray, planes: jax.Array) -> jax.Array:
    """Apply weights (out, in) along the last axis of planes (B, C, other, in), and round to bytes."""
    high = (weights + (1 << (_HALF - 1))) >> _HALF
    halves = np.concatenate([high, weights - (high << _HALF)]).astype(np.float32)
    both = jnp.matmul(planes, halves.T, precision="highest").astype(jnp.int32)
    total = (both[..., : len(weights)] << _HALF) + both[..., len(weights) :]
    rounded: jax.Array = jnp.clip((total + (1 << (BITS - 1))) >> BITS, 0, 255).astype(jnp.float32)
    return rounded


def patches(planes: jax.Array, patch: int) -> jax.Array:
    """Cut squares into patches: from (B, C, S, S) to (B, (S//p)², p·p·C), ordered by row, column, colour.

    Pixels that no whole patch covers are dropped.
    """
    batch, colours, side = planes.shape[:3]
    grid = side // patch
    kept = planes[:, :, : grid * patch, : grid * patch].reshape(batch, colours, grid, patch, grid, patch)
    return kept.transpose(0, 2, 4, 3, 5, 1).reshape(batch, grid * grid, patch * patch * colours)


def normalised(planes: jax.Array, mean: np.ndarray, std: np.ndarray) -> jax.Array:
    """(x / 255 - mean) / std: from float32 (B, 1 or 3, S, S) with the values of bytes to (B, 3, S, S)."""
    scale, shift = (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)
    result: jax.Array = planes * scale[:, None, None] - shift[:, None, None]
    return result


# Resizing as matrices: along one axis, an output is a weighted sum of some inputs. Pixel centres are at (i + ½)·scale.
# With antialiasing, as in Pillow, the filter is wider when a picture shrinks, and the cubic has a = -½. Pillow works in
# integers. `timm` resizes position embeddings by the same weights in floating point (torch's antialias=True). Without
# antialiasing, as in torch, there are four neighbours, a = -¾, and inputs beyond the border repeat the border.
_SUPPORT: dict[Filter, float] = {"bicubic": 2.0, "bilinear": 1.0}


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel of Keys (1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def antialiased(size: int, target: int, kind: Filter = "bicubic") -> np.ndarray:
    """The matrix (target, size) of resizing with antialiasing, in float64. Its rows sum to 1."""
    scale = size / target
    stretch = max(scale, 1.0)
    support = _SUPPORT[kind] * stretch
    centre = (np.arange(target)[:, None] + 0.5) * scale
    inputs = np.arange(size)[None, :]
    low = np.maximum((centre - support + 0.5).astype(int), 0)
    high = np.minimum((centre + support + 0.5).astype(int), size)
    distance = (inputs - centre + 0.5) / stretch
    weights = _cubic(distance, -0.5) if kind == "bicubic" else np.maximum(1 - np.abs(distance), 0.0)
    weights = np.where((inputs >= low) & (inputs < high), weights, 0.0)
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


@cache
def passes(height: int, width: int, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Two integer matrices that resize and crop pictures of one size, in units of 2^-BITS: (crop, height) for the
    vertical axis and (crop, width) for the horizontal one. The crop keeps the pixels that torchvision's keeps.
    """
    rows, columns = geometry.resized(height, width)
    return tuple(  # type: ignore[return-value]
        _cut(_fixed(antialiased(size, target, geometry.filter)), geometry.crop)
        for size, target in ((height, rows), (width, columns))
    )


def _fixed(weights: np.ndarray) -> np.ndarray:
    """Round to multiples of 2^-BITS as Pillow does: halves away from zero."""
    fixed: np.ndarray = np.trunc(weights * (1 << BITS) + np.copysign(0.5, weights)).astype(np.int64)
    return fixed


def _cut(matrix: np.ndarray, crop: int) -> np.ndarray:
    margin = round((len(matrix) - crop) / 2)
    return matrix[margin : margin + crop]
