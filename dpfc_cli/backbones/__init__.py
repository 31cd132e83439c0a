"""Pixel batches in, feature batches out.

A backbone is frozen: it was fixed before anyone saw the private pictures, and a record's features are a function of its
own pixels alone. That is what lets everything after it count privacy per record: a backbone that normalised by batch
statistics, say, would let one picture move all the others' features, and no clipping in the core could undo that.

Names are needed by `--help`, so this module imports no JAX; the module that computes does, on `load`.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from dpfc_cli.errors import unknown

if TYPE_CHECKING:
    import jax
    import numpy as np

    from dpfc_cli.images.geometry import Geometry

BACKBONES: tuple[str, ...] = ("scattering",)
POOLINGS: tuple[str, ...] = ("none", "mean")
PREPROCESS: tuple[str, ...] = ("paper", "native")
Progress = Callable[[str, int, int | None], None]


class Backbone(Protocol):
    """uint8 pixels (B, H, W, C) to float32 features (B, dim), row by row."""

    name: str
    dim: int
    batch: int

    def describe(self) -> dict[str, Any]: ...

    def submit(self, pixels: "np.ndarray") -> "jax.Array": ...

    def __call__(self, pixels: "np.ndarray") -> "np.ndarray": ...


def check(name: str, pool: str | None, preprocess: str, weights: str | None) -> None:
    if name not in BACKBONES:
        raise unknown("model", name, BACKBONES)
    if pool is not None and pool not in POOLINGS:
        raise unknown("pooling", pool, POOLINGS)
    if preprocess not in PREPROCESS:
        raise unknown("preprocessing", preprocess, PREPROCESS)


def geometry(name: str, preprocess: str) -> "Geometry | None":
    return None


class _Adapter:
    def __init__(self, inner: Any, batch: int | None) -> None:
        self.name, self.dim, self.batch = inner.name, inner.dim, batch or inner.batch
        self.describe, self._inner = inner.describe, inner

    def submit(self, pixels: "np.ndarray") -> "jax.Array":
        import jax.numpy as jnp

        return jnp.asarray(self._inner(pixels))

    def __call__(self, pixels: "np.ndarray") -> "np.ndarray":
        return self._inner(pixels)  # type: ignore[no-any-return]


def load(
    name: str,
    image_shape: tuple[int, int, int],
    pool: str | None = None,
    *,
    preprocess: str = "paper",
    weights: str | None = None,
    batch: int | None = None,
    precision: str = "float32",
    prepared: bool = False,
    progress: Progress | None = None,
) -> Backbone:
    check(name, pool, preprocess, weights)
    return _Adapter(import_module("dpfc_cli.backbones.scattering").load(name, image_shape, pool or "none"), batch)
