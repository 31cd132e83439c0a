"""Grey values of more than 8 bits as levels from 0 to 255."""

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.images.preparation import Window
from dpfc_cli.images.sets import Pixels

BLOCK = 1 << 20
"""Values that are converted at a time. They take 8 bytes each meanwhile."""
QUARTER = 4


def levels(values: NDArray[np.generic], window: Window, slope: float = 1.0, intercept: float = 0.0) -> Pixels:
    """Grey values as levels. The lower end of the window becomes 0, the upper end 255, everything beyond is cut off.

    Args:
        values: integers or floats of any shape.
        window: (low, high), low < high.
        slope: what a value is multiplied by first.
        intercept: what is added then.

    Raises:
        ValueError: a value is not finite.

    """
    low, high = window
    flat = np.ascontiguousarray(values).reshape(-1)
    found = np.empty(flat.shape, np.uint8)
    for at in range(0, len(flat), BLOCK):
        part = flat[at : at + BLOCK].astype(np.float64) * slope + intercept
        if not np.isfinite(part).all():
            raise ValueError("it has values that are no numbers")
        found[at : at + BLOCK] = np.rint((part.clip(low, high) - low) / (high - low) * 255)
    return found.reshape(values.shape)


def narrow(values: NDArray[np.integer], count: int) -> bool:
    """Whether values use less than a quarter of the `count` values that they could have."""
    return bool(values.size) and QUARTER * (int(values.max()) - int(values.min())) < count
