"""How a picture of any size becomes the square that a backbone looks at."""

from dataclasses import dataclass
from typing import Literal

Filter = Literal["bicubic", "bilinear"]


@dataclass(frozen=True)
class Geometry:
    """Resize, then crop the centre.

    resize: (height, width) to squash the picture to, or the length of its shorter side, its shape kept. crop: side of
    the central square that is kept. filter: of the resizing, always with antialiasing.
    """

    resize: int | tuple[int, int]
    crop: int
    filter: Filter = "bicubic"
