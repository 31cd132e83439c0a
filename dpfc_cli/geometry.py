"""The geometry of preprocessing: how a picture of any size becomes the square that a backbone takes."""

from dataclasses import dataclass
from typing import Literal

Filter = Literal["bicubic", "bilinear"]
Triple = tuple[float, float, float]
"""A number for each colour."""


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Resize a picture, then crop its centre.

    Attributes:
        resize: (height, width) in pixels, which may change the aspect ratio; or the length of the shorter side, which
            keeps it.
        crop: side of the central square, in pixels.
        filter: how to resize. Resizing always uses antialiasing.

    """

    resize: int | tuple[int, int]
    crop: int
    filter: Filter = "bicubic"

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of a picture after resizing and before the crop. The longer side is rounded down."""
        if not isinstance(self.resize, int):
            return self.resize
        shorter = min(height, width)
        return self.resize * height // shorter, self.resize * width // shorter

    def describe(self) -> dict[str, object]:
        """The geometry as JSON values, as manifests state it."""
        resize = self.resize if isinstance(self.resize, int) else list(self.resize)
        return {"resize": resize, "crop": self.crop, "filter": self.filter}


PAPER = Geometry(resize=(384, 384), crop=256)
"""Mehta et al. 2022, section "Training details": the central 256 × 256 pixels of 384 × 384."""
IMAGENET: tuple[Triple, Triple] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation of the colours of ImageNet, of pixels in [0, 1]."""
