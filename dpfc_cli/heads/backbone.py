"""The backbone of a head, made again from what the head's card says, and how it reads pictures.

The card has the backbone's description, with the digest of its weights, and how pictures were prepared. All of it must
give the fingerprint of the features that the head was trained on. A backbone is used only if it describes itself in the
same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli import backbones
from dpfc_cli.backbones import BACKBONES, Backbone, Geometry
from dpfc_cli.errors import UserError, conflict, missing, parameter, unsupported
from dpfc_cli.features.manifest import DTYPES, fingerprint_of
from dpfc_cli.heads.head import Head
from dpfc_cli.images.sets import Preparation
from dpfc_cli.progress import Progress
from dpfc_cli.schema import among, each, either, fault, null, record, text
from dpfc_cli.records.findings import SIDE

_SHAPE = each(SIDE, least=3)
_STATED = record(
    {"name": among(BACKBONES)},
    weights=either(null, record({"id": text, "sha256": text})),
    preprocessing=either(text, record({"recipe": text})),
    image_shape=_SHAPE,
    input=_SHAPE,
    pooling=text,
    precision=text,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What turns a picture into the features that a head takes, as its card says. Nothing is loaded yet.

    backbone: the description, checked. dim: the dimensions that the head takes. image_shape: (H, W, C) of pictures that
    were prepared. preparation: how. dtype: the precision to which features are rounded. about, instead: see
    `recipe_of`.
    """

    backbone: Mapping[str, Any]
    dim: int
    image_shape: tuple[int, int, int]
    preparation: Preparation
    dtype: np.dtype[Any]
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

        weights: a file, a folder or `hf:owner/name[/file]`; None: as the card says. batch: pictures per call; None: the
        model chooses. progress: in bytes that were downloaded. precision: None: as the card says.
        """
        stated, known, steps = dict(self.backbone), self.backbone.get("weights"), self.backbone.get("preprocessing")
        if weights is not None and not known:
            raise conflict(
                f"The backbone of the head, {stated['name']}, has no weights.", f"Leave out {parameter('weights')}."
            )
        if known and weights is None and not known["id"].startswith("hf:"):
            raise missing(
                f"The backbone of the head has weights from the file '{known['id']}' (SHA-256 {known['sha256']}).",
                f"Say where that file is: {parameter('weights')}.",
            )
        if precision is not None and "precision" in stated:
            stated["precision"] = precision
        backbone = backbones.load(
            backbones.Wanted(
                name=stated["name"],
                image_shape=self.image_shape,
                pool=stated.get("pooling"),
                weights=weights or (known["id"] if known else None),
                batch=batch,
                precision=stated.get("precision", "float32"),
                expected=known["sha256"] if known else None,
                progress=progress,
                preprocess=steps["recipe"] if isinstance(steps, dict) else None,
            )
        )
        made = backbone.describe()
        differ = [name for name in {**stated, **made} if name != "weights" and made.get(name) != stated.get(name)]
        if (made.get("weights") or {}).get("sha256") != (known or {}).get("sha256"):
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
    own = head.card["features"]
    stated, preparation, dtype = own["backbone"], own["preparation"] or {}, own["dtype"]

    def refused(what: str) -> UserError:
        return unsupported(what, instead, parameter=about)

    if stated.get("name") == "imported":
        raise refused(
            "The head was trained on features that were imported: they came from elsewhere. Its card does not say how "
            "they are computed from pictures."
        )
    wrong = fault(stated, _STATED)
    if wrong is not None:
        raise refused(
            f"The card of the head describes no backbone of this dpfc: '{wrong[:80]}' is missing or makes no sense."
        )
    # A network without a size is from before pictures were resized where they are decoded.
    if (
        dtype not in DTYPES
        or own["fingerprint"] != fingerprint_of(stated, head.classes, head.dim, dtype, own["preparation"])
        or (isinstance(stated.get("preprocessing"), dict) and "crop" not in preparation)
    ):
        raise refused(
            "The card of the head does not say how the pictures were prepared that it was trained on, or what it says "
            "does not give the fingerprint of these features. Extract and train anew for a head that does."
        )
    shape = tuple(stated.get("image_shape") or stated.get("input") or ())
    if len(shape) != 3 or shape[2] not in (1, 3):
        raise refused("The card of the head does not say which shape the pictures have.")
    window = preparation.get("window")
    return Recipe(
        backbone=stated,
        dim=head.dim,
        image_shape=shape,
        preparation=Preparation(
            geometry=_geometry(preparation),
            window=None if window is None else (float(window[0]), float(window[1])),
            exif=preparation.get("exif", False),
        ),
        dtype=np.dtype(dtype),
        about=about,
        instead=instead,
    )


def _geometry(said: Mapping[str, Any]) -> Geometry | None:
    if "crop" not in said:
        return None
    resize = said["resize"]
    return Geometry(
        resize=resize if isinstance(resize, int) else (resize[0], resize[1]), crop=said["crop"], filter=said["filter"]
    )
