"""What is done with a picture before it is pixels of the backbone: public choices, the same for all pictures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dpfc_cli.backbones.geometry import Geometry

Window = tuple[float, float]
"""The grey values that become black and white. Those between them become the levels between."""
Notice = Callable[[str], None]
"""Told the name of a picture that uses less than a quarter of the values that its file can hold."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How pictures are prepared.

    Attributes:
        geometry: the size to bring them to; None: they keep their size.
        window: for grey values of more than 8 bits; None: all values that the file can hold are levels.
        exif: whether a picture is turned as its EXIF orientation says.
        notice: called while a picture is decoded, by several threads.

    """

    geometry: Geometry | None = None
    window: Window | None = None
    exif: bool = False
    notice: Notice | None = field(default=None, compare=False)

    def describe(self) -> dict[str, Any] | None:
        """The choices as JSON values, as manifests state them; None if nothing is done."""
        said: dict[str, Any] = {} if self.geometry is None else self.geometry.describe()
        if self.window is not None:
            said["window"] = [float(value) for value in self.window]
        if self.exif:
            said["exif"] = True
        return said or None
