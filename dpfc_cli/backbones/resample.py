"""Resizing as matrices: along one axis, each output is a weighted sum of some inputs.

There are two kinds. Both have pixel centres at (i + ½)·scale.

- With antialiasing, as Pillow does: the filter is wider when a picture shrinks, and the cubic has a = -½. Pillow works
  in integers. `timm` resizes position embeddings by the same weights in floating point (torch's antialias=True).
- Without antialiasing, as torch does: four neighbours, a = -¾, and inputs beyond the border repeat the border.
"""

from functools import cache

import numpy as np

from dpfc_cli.backbones.geometry import Filter, Geometry

BITS = 22
"""Pillow's weights for bytes are multiples of 2^-22, and it rounds to bytes after each axis."""

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
    """Two integer matrices that resize and crop pictures of one size, in units of 2^-BITS.

    The crop keeps the same pixels as torchvision's: the margin is rounded.

    Returns:
        Weights for the vertical axis (crop, height) and for the horizontal axis (crop, width).

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
