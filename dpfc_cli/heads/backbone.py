"""The backbone of a head, made again from what the head's card says, and how it reads pictures.

The card has the backbone's description, with the digest of its weights, and how pictures were prepared. All of it must
give the fingerprint of the features that the head was trained on. A backbone is used only if it describes itself in the
same way.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from dpfc_cli import backbones
from dpfc_cli.backbones import Backbone, Geometry
from dpfc_cli.errors import UserError, conflict, missing, parameter, unsupported
from dpfc_cli.features.manifest import DTYPES, fingerprint_of
from dpfc_cli.heads.head import Head
from dpfc_cli.images.pictures import Preparation
from dpfc_cli.progress import Progress
from dpfc_cli.records.card import Prepared, Side
from dpfc_cli.structs import Fault, Open, Values, decoded, encoded

Shape = Annotated[tuple[Side, ...], Meta(min_length=3)]


class _Weights(Open):
    id: str
    sha256: str


class _Steps(Open):
    recipe: str


class Stated(Open):
    """What a backbone says of itself, as far as it is needed to make it again."""

    name: str
    weights: _Weights | None = None
    preprocessing: str | _Steps | None = None
    image_shape: Shape | None = None
    input: Shape | None = None
    pooling: str | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What turns a picture into the features that a head takes, as its card says. Nothing is loaded yet.

    backbone: the description, checked. dim: the dimensions that the head takes. image_shape: (H, W, C) of pictures that
    were prepared. preparation: how. dtype: the precision to which features are rounded. about, instead: see
    `recipe_of`.
    """

    backbone: Values
    dim: int
    image_shape: tuple[int, int, int]
    preparation: Preparation
    dtype: np.dtype[np.floating]
    about: str
    instead: str

    def load(
        self,
        weights: str | None,
        batch: int | None = None,
        progress: Progress | None = None,
        precision: str | None = None,
    ) -> Backbone:
        """Make the backbone. UserError: the weights are not found, or are others, or this dpfc computes other features.

        weights: a file; None: the published ones. batch: pictures per call; None: the
        model chooses. progress: in bytes that were downloaded. precision: None: as the card says.
        """
        stated, known = decoded(self.backbone, Stated), dict(self.backbone)
        trained = stated.weights
        if trained and weights is None and not trained.id.startswith("hf:"):
            raise missing(
                f"The backbone of the head has weights from the file '{trained.id}' (SHA-256 {trained.sha256}).",
                f"Say where that file is: {parameter('weights')}. Or do without: {self.instead}",
            )
        if precision is not None and stated.precision is not None:
            known["precision"] = precision
        backbone = backbones.load(
            backbones.Wanted(
                name=stated.name,
                image_shape=self.image_shape,
                pool=stated.pooling,
                weights=weights,
                batch=batch,
                precision=known.get("precision", "float32"),
                expected=trained.sha256 if trained else None,
                progress=progress,
                preprocess=stated.preprocessing.recipe if isinstance(stated.preprocessing, _Steps) else None,
            )
        )
        made = backbone.describe()
        differ = [name for name in {**known, **made} if name != "weights" and made.get(name) != known.get(name)]
        if (made.get("weights") or {}).get("sha256") != (trained.sha256 if trained else None):
            differ.append("weights")
        if differ or backbone.dim != self.dim:
            raise conflict(
                "This dpfc computes other features than those that the head was trained on. They differ in "
                f"{', '.join(differ) or 'their width'}.",
                f"Use the dpfc that the head was made with. {self.instead}",
                parameter=self.about,
            )
        return backbone


def recipe_of(
    head: Head, about: str = "head", instead: str = "Predict on features: a feature set, or an .npy file."
) -> Recipe:
    """What the card of a head says of its features. UserError: they were imported, or the card does not say how they
    are computed from pictures. about: the parameter that errors are about. instead: what they say that can be done
    without the backbone.
    """
    own = head.card.features
    prepared = own.preparation or Prepared()

    def refused(what: str) -> UserError:
        return unsupported(what, instead, parameter=about)

    if own.backbone.get("name") == "imported":
        raise refused(
            "The head was trained on features that were imported: they came from elsewhere. Its card does not say how "
            "they are computed from pictures."
        )
    try:
        stated = decoded(own.backbone, Stated)
        if not backbones.known(stated.name):
            raise Fault("name")
    except Fault as fault:
        raise refused(
            f"The card of the head describes no backbone of this dpfc: '{fault.place[:80]}' is missing or makes no "
            "sense."
        ) from None
    # A network without a size is from before pictures were resized where they are decoded.
    preparation = None if own.preparation is None else encoded(own.preparation)
    if (
        own.dtype not in DTYPES
        or own.fingerprint != fingerprint_of(own.backbone, head.classes, head.dim, own.dtype, preparation)
        or (isinstance(stated.preprocessing, _Steps) and prepared.crop is None)
    ):
        raise refused(
            "The card of the head does not say how the pictures were prepared that it was trained on, or what it says "
            "does not give the fingerprint of these features. Extract and train anew for a head that does."
        )
    shape = stated.image_shape or stated.input or ()
    if len(shape) != 3 or shape[2] not in (1, 3):
        raise refused("The card of the head does not say which shape the pictures have.")
    window = None if prepared.window is None else (prepared.window[0], prepared.window[1])
    return Recipe(
        backbone=own.backbone,
        dim=head.dim,
        image_shape=shape,
        preparation=Preparation(geometry=_geometry(prepared), window=window, exif=bool(prepared.exif)),
        dtype=np.dtype(own.dtype),
        about=about,
        instead=instead,
    )


def _geometry(said: Prepared) -> Geometry | None:
    if said.crop is None or said.resize is None or said.filter is None:
        return None
    resize = said.resize if isinstance(said.resize, int) else (said.resize[0], said.resize[1])
    return Geometry(resize=resize, crop=said.crop, filter=said.filter)
