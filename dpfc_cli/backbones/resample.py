"""Resizing as matrices: along one axis, each output is a weighted sum of some inputs.

Two families, both with pixel centres at (i + ½)·scale. Pillow's widens the filter when it shrinks (antialiasing), uses
the cubic with a = -½, and works in integers; `timm` resizes position embeddings by the same weights in floating point
(torch's antialias=True). Without antialiasing torch takes four neighbours and a = -¾, and clamps at the borders.
"""

from functools import cache

import numpy as np

from dpfc_cli.backbones.geometry import Filter, Geometry

BITS = 22
"""Pillow's weights for bytes are multiples of 2^-22, and each pass is rounded to bytes."""

_SUPPORT: dict[Filter, float] = {"bicubic": 2.0, "bilinear": 1.0}


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys's convolution kernel (1981)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def antialiased(size: int, target: int, kind: Filter = "bicubic") -> np.ndarray:
    """(target, size) float64, rows summing to 1."""
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
    """(target, size) float64: torch's bicubic without antialiasing, corners not aligned."""
    centre = (np.arange(target) + 0.5) * (size / target) - 0.5
    base = np.floor(centre).astype(int)
    matrix = np.zeros((target, size))
    for tap in range(-1, 3):
        index = np.clip(base + tap, 0, size - 1)
        np.add.at(matrix, (np.arange(target), index), _cubic(centre - base - tap, -0.75))
    return matrix


@cache
def passes(height: int, width: int, geometry: Geometry) -> tuple[np.ndarray, np.ndarray]:
    """Integer weights (crop, height), (crop, width) in units of 2^-BITS: resize and crop pictures of one size.

    Which pixels a crop keeps is torchvision's choice: the longer side is truncated, the margin rounded.
    """
    if isinstance(geometry.resize, int):
        short = min(height, width)
        rows, columns = (geometry.resize * side // short for side in (height, width))
    else:
        rows, columns = geometry.resize
    return tuple(  # type: ignore[return-value]
        _cut(_fixed(antialiased(size, target, geometry.filter)), geometry.crop)
        for size, target in ((height, rows), (width, columns))
    )


def _fixed(weights: np.ndarray) -> np.ndarray:
    """Rounded to multiples of 2^-BITS, halves away from zero, as Pillow does."""
    fixed: np.ndarray = np.trunc(weights * (1 << BITS) + np.copysign(0.5, weights)).astype(np.int64)
    return fixed


def _cut(matrix: np.ndarray, crop: int) -> np.ndarray:
    margin = round((len(matrix) - crop) / 2)
    return matrix[margin : margin + crop]
