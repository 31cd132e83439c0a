"""Preprocessing on the device: resize, crop, turn grey into colour, normalise, cut into patches.

**Resizing gives the same bytes as Pillow.** So a picture has the same features whether it is resized here (data sets
with one small size) or by the workers that decode pictures of many sizes. Pillow multiplies bytes by 22-bit integers,
adds up, and rounds to bytes, first horizontally and then vertically. Accelerators multiply floats, so each weight is
split into two 11-bit halves. The products of a half with bytes, and sums of up to 64 such products, stay below 2^24,
so they are exact in float32. (An output has more than 64 inputs if pictures shrink more than fifteenfold. Then a byte
can be off by one.)
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dpfc_cli.backbones.geometry import Geometry, Triple
from dpfc_cli.backbones.resample import BITS, passes

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""The precisions of the arithmetic, by name."""
_HALF = BITS // 2


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Preprocessing.

    Attributes:
        name: what the manifest calls it.
        geometry: how pictures are resized and cropped.
        mean: per colour, of pixels in [0, 1].
        std: per colour, of pixels in [0, 1].

    """

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
    """What a network sees of pictures: from uint8 (B, H, W, C) to float32 (B, 3, crop, crop).

    Args:
        pixels: the pictures.
        recipe: the preprocessing.
        prepared: whether they were resized and cropped already.

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
