"""Pixel batches in, feature batches out.

A backbone is frozen: it was fixed before anyone saw the private pictures, and a record's features are a function of its
own pixels alone. That is what lets everything after it count privacy per record: a backbone that normalised by batch
statistics, say, would let one picture move all the others' features, and no clipping in the core could undo that.

Names are needed by `--help`, so this module imports no JAX; the module that computes does, on `load`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from dpfc_cli.errors import unknown

if TYPE_CHECKING:
    import numpy as np

# Name to the module that computes it. Each has `load(name, image_shape, pool) -> Backbone`.
_MODULES = {"scattering": "dpfc_cli.backbones.scattering"}

BACKBONES: tuple[str, ...] = tuple(_MODULES)
POOLINGS: tuple[str, ...] = ("none", "mean")


class Backbone(Protocol):
    """uint8 pixels (B, H, W, C) to float32 features (B, dim), row by row.

    batch: the natural number of rows a call, chosen so that memory stays bounded. Any other B is right, too: it is
    padded to batches of that one shape, so that the program is compiled once. The last bits of a row may depend on its
    place in the batch (the order of a sum does), never on what the other rows hold.
    """

    name: str
    dim: int
    batch: int

    def describe(self) -> dict[str, Any]:
        """What the manifest states about the features: plain JSON values."""
        ...

    def __call__(self, pixels: "np.ndarray") -> "np.ndarray": ...


def check(name: str, pool: str) -> None:
    """UserError unless both names are known. Costs nothing: called before any file is read."""
    if name not in BACKBONES:
        raise unknown("model", name, BACKBONES)
    if pool not in POOLINGS:
        raise unknown("pooling", pool, POOLINGS)


def load(name: str, image_shape: tuple[int, int, int], pool: str = "none") -> Backbone:
    """The backbone for pictures of image_shape (H, W, C). Raises UserError for what it does not know or cannot take."""
    check(name, pool)
    backbone: Backbone = import_module(_MODULES[name]).load(name, image_shape, pool)
    return backbone
