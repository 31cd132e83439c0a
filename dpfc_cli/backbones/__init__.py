"""Pixel batches in, feature batches out.

A backbone is frozen: it was fixed before anyone saw the private pictures, and a record's features are a function of its
own pixels alone. That is what lets everything after it count privacy per record: a backbone that normalised by batch
statistics, say, would let one picture move all the others' features, and no clipping in the core could undo that.

Names are needed by `--help`, so this module imports no JAX; the modules that compute do, on `load`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dpfc_cli.backbones import models
from dpfc_cli.backbones.models import MODELS
from dpfc_cli.errors import UserError, unknown

if TYPE_CHECKING:
    import jax
    import numpy as np

    from dpfc_cli.backbones.geometry import Geometry

SCATTERING = "scattering"
BACKBONES: tuple[str, ...] = (SCATTERING, *MODELS)
POOLINGS: tuple[str, ...] = ("none", "mean", "cls", "map")
PREPROCESS: tuple[str, ...] = ("paper", "native")
PRECISIONS: tuple[str, ...] = ("float32", "bfloat16")
UNPOOLED = 32
"""Pixels a side up to which scattering is not pooled by default."""

Progress = Callable[[str, int, int | None], None]


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

    def submit(self, pixels: "np.ndarray") -> "jax.Array":
        """The same for at most `batch` rows, without waiting: the host may decode on while the device computes.

        `np.asarray` of the result waits. The pixels are copied: their array may be filled anew at once.
        """
        ...


def check(name: str, pool: str | None, preprocess: str = "paper", weights: str | None = None) -> None:
    """UserError for what is seen to be wrong without fetching anything. pool None: the backbone's own."""
    if name not in BACKBONES:
        raise unknown("model", name, BACKBONES)
    if pool is not None and pool not in POOLINGS:
        raise unknown("pooling", pool, POOLINGS)
    if preprocess not in PREPROCESS:
        raise unknown("preprocessing", preprocess, PREPROCESS)
    if name != SCATTERING:
        models.check(name, pool, weights)
        if weights is not None:
            from dpfc_cli.backbones import hub

            hub.check(weights)
        return
    if weights is not None:
        raise UserError("scattering has no weights.", "Leave --weights away, or choose another --model.")
    if preprocess != PREPROCESS[0]:
        raise UserError("scattering has no preprocessing of its own.", "Leave --preprocess away.")
    if pool not in (None, "none", "mean"):
        raise UserError(f"scattering has no '{pool}' feature.", "Leave --pool away, or choose mean.")


def own_pool(name: str, image_shape: tuple[int, int, int]) -> str | None:
    """The pooling of a backbone that leaves it open, unless the user says otherwise; None: its weights decide.

    Scattering has 81 numbers per channel for each 4 × 4 pixels: kept apart up to MNIST's and CIFAR's size, beyond which
    they make tens of thousands of dimensions that no Gram matrix holds.
    """
    if name != SCATTERING:
        return None
    return "none" if max(image_shape[:2]) <= UNPOOLED else "mean"


def geometry_of(name: str, preprocess: str) -> "Geometry | None":
    """How pictures become what the backbone looks at; None where it takes the data set's own size."""
    if name == SCATTERING:
        return None
    return models.geometry(name, preprocess)


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
    """The backbone for pictures of image_shape (H, W, C). UserError for what it does not know or cannot take.

    weights: a file, a folder or `hf:owner/name[/file]`; None is the model's public home. batch: rows a call; None lets
    the backbone choose. precision: of the arithmetic; features are float32 in any case. prepared: the pictures were
    resized and cropped as `geometry` says. progress(what, done, total) is told of the bytes of a download.
    """
    check(name, pool, preprocess, weights)
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if name == SCATTERING:
        if batch is not None or precision != PRECISIONS[0]:
            raise UserError(
                "scattering chooses its batch itself and computes in float32.", "Leave --batch and --precision away."
            )
        from dpfc_cli.backbones import scattering

        return scattering.load(name, image_shape, pool or own_pool(name, image_shape) or "none")
    from dpfc_cli.backbones import transformer

    return transformer.load(
        name,
        image_shape,
        pool,
        preprocess=preprocess,
        weights=weights,
        batch=batch,
        precision=precision,
        prepared=prepared,
        progress=progress,
    )
