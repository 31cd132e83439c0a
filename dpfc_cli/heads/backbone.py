"""The backbone of a head, made again from what the head's card says, and how it reads pictures.

The card has the backbone's description, with the digest of its weights, and how pictures were prepared. A backbone is
used only if it describes itself in the same way. For pictures, all of it must give the fingerprint of the features that
the head was trained on.
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
from dpfc_cli.trust.card import SIDE

_STATED = record(
    {"name": among(BACKBONES)},
    weights=either(null, record({"id": text, "sha256": text})),
    preprocessing=either(text, record({"recipe": text})),
    image_shape=each(SIDE, least=3),
    pooling=text,
    precision=text,
)


@dataclass(frozen=True)
class Stated:
    """What the card of a head says of its backbone. Nothing is loaded yet.

    values: the description, checked. dim: the dimensions that the head takes. about: the parameter that errors are
    about. instead: what errors say that can be done without the backbone.
    """

    values: Mapping[str, Any]
    dim: int
    about: str
    instead: str

    def refused(self, what: str) -> UserError:
        return unsupported(what, self.instead, parameter=self.about)

    @property
    def geometry(self) -> Geometry | None:
        """What the model itself does with pictures of many sizes."""
        steps = self.values.get("preprocessing")
        return backbones.geometry_of(self.values["name"], steps["recipe"]) if isinstance(steps, dict) else None

    def shape(self, geometry: Geometry | None) -> tuple[int, int, int]:
        """(H, W, C) of pictures that were resized and cropped in this way; None: they keep their size."""
        shape = tuple(self.values.get("image_shape", ())) if geometry is None else (geometry.crop, geometry.crop, 3)
        if len(shape) != 3 or shape[2] not in (1, 3):
            raise self.refused("The card of the head does not say which shape the pictures have.")
        return shape

    def load(
        self,
        shape: tuple[int, int, int],
        weights: str | None,
        *,
        batch: int | None = None,
        precision: str | None = None,
        progress: Progress | None = None,
    ) -> Backbone:
        """Make the backbone. UserError: the weights are not found, or are others, or this dpfc computes other features.

        shape: (H, W, C) of the pictures. weights: a file, a folder or `hf:owner/name[/file]`; None: as the card says.
        batch: pictures per call; None: the model chooses. precision: None: as the card says. progress: in bytes that
        were downloaded.
        """
        stated, known, steps = dict(self.values), self.values.get("weights"), self.values.get("preprocessing")
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
                image_shape=shape,
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


def stated_of(head: Head, about: str, instead: str) -> Stated:
    """What the card of a head says of its backbone. `about` and `instead`: see `Stated`. UserError: the head was
    trained on imported features, or its card describes no backbone.
    """
    found = Stated(head.card["features"]["backbone"], head.dim, about, instead)
    if found.values.get("name") == "imported":
        raise found.refused(
            "The head was trained on features that were imported: they came from elsewhere. Its card does not say how "
            "they are computed from pictures."
        )
    wrong = fault(found.values, _STATED)
    if wrong is not None:
        raise found.refused(
            f"The card of the head describes no backbone of this dpfc: '{wrong[:80]}' is missing or makes no sense."
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What turns a picture into the features that a head takes. image_shape: (H, W, C). preparation: what is done with
    a picture before. dtype: the precision to which features are rounded.
    """

    stated: Stated
    image_shape: tuple[int, int, int]
    preparation: Preparation
    dtype: np.dtype[Any]

    def load(self, weights: str | None, batch: int | None, progress: Progress | None) -> Backbone:
        """Make the backbone. Arguments and errors: as for `Stated.load`."""
        return self.stated.load(self.image_shape, weights, batch=batch, progress=progress)


def recipe_of(head: Head) -> Recipe:
    """What the card of a head says of its features. Nothing is loaded. UserError: the head was trained on imported
    features, or its card does not say how pictures were prepared.
    """
    own = head.card["features"]
    given = stated_of(head, "head", "Predict on features: a feature set, or an .npy file.")
    stated = given.values
    preparation, dtype = own["preparation"] or {}, own["dtype"]
    if dtype not in DTYPES or own["fingerprint"] != fingerprint_of(
        stated, head.classes, head.dim, dtype, own["preparation"]
    ):
        raise unsupported(
            "The card of the head does not say how the pictures were prepared that it was trained on, or what it says "
            "does not give the fingerprint of these features.",
            "Extract features as for the training ('dpfc extract', with the same options), and predict on the feature "
            "set.",
            parameter="head",
        )
    geometry = _geometry(preparation) or given.geometry
    window = preparation.get("window")
    return Recipe(
        stated=given,
        image_shape=given.shape(geometry),
        preparation=Preparation(
            geometry=geometry,
            window=None if window is None else (float(window[0]), float(window[1])),
            exif=preparation.get("exif", False),
        ),
        dtype=np.dtype(dtype),
    )


def _geometry(said: Mapping[str, Any]) -> Geometry | None:
    if "crop" not in said:
        return None
    resize = said["resize"]
    return Geometry(
        resize=resize if isinstance(resize, int) else (resize[0], resize[1]), crop=said["crop"], filter=said["filter"]
    )
