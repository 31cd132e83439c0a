"""Preprocessing on the device: resize, crop, turn grey into colour, normalise, cut into patches.

**Resizing gives the same bytes as Pillow.** So a picture has the same features whether it is resized here (data sets
with one small size) or by the workers that decode pictures of many sizes. Pillow multiplies bytes by 22-bit integers,
adds up, and rounds to bytes, first horizontally and then vertically. Accelerators multiply floats, so each weight is
split into two 11-bit halves. The products of a half with bytes, and sums of up to 64 such products, stay below 2^24,
so they are exact in float32. (An output has more than 64 inputs if pictures shrink more than fifteenfold. Then a byte
can be off by one.)
"""

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.backbones.resample import BITS, passes

_HALF = BITS // 2


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
