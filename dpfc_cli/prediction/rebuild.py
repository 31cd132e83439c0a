"""How a head reads pictures, from what its card says.

The card describes the backbone (`heads.backbone`), and has the fingerprint of the features that it was trained on.
The backbone is used only if it gives this fingerprint: model, weights, pooling, preprocessing and preparation of the
pictures are then those of the training.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli.backbones import Backbone, Progress
from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import DTYPES, fingerprint_of
from dpfc_cli.heads.backbone import Stated, stated_of
from dpfc_cli.heads.head import Head
from dpfc_cli.images import Preparation


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What turns a picture into the features that a head takes.

    Attributes:
        stated: what the card says of the backbone.
        image_shape: of the pictures, (H, W, C).
        preparation: what is done with a picture before.
        dtype: the precision to which features are rounded.

    """

    stated: Stated
    image_shape: tuple[int, int, int]
    preparation: Preparation
    dtype: np.dtype[Any]

    @property
    def prepared(self) -> bool:
        """Whether pictures are resized and cropped when they are decoded."""
        return self.preparation.geometry is not None

    def load(self, weights: str | None, batch: int | None, progress: Progress | None) -> Backbone:
        """Make the backbone. Arguments and errors: as for `Stated.load`."""
        return self.stated.load(self.image_shape, weights, prepared=self.prepared, batch=batch, progress=progress)


def recipe_of(head: Head) -> Recipe:
    """What the card of a head says of its features. Nothing is loaded.

    Raises:
        UserError: the head was trained on imported features, or its card does not say how pictures were prepared.

    """
    own = head.card["features"]
    given = stated_of(head, "head", "Predict on features: a feature set, or an .npy file.")
    stated = given.values
    found = next((each for each in _candidates(own, given) if _fingerprint(head, stated, *each) == _own(head)), None)
    if found is None:
        raise UserError(
            "The card of the head does not say how the pictures were prepared that it was trained on, or what it says "
            "does not give the fingerprint of these features.",
            "Extract features as for the training ('dpfc extract', with the same options), and predict on the feature "
            "set.",
            code="unsupported",
            parameter="head",
        )
    preparation, dtype = found
    said = preparation or {}
    # What was resized on the device then is resized while it is decoded now. Both give the same bytes.
    geometry = _geometry(said) or given.geometry
    window = said.get("window")
    return Recipe(
        stated=given,
        image_shape=given.shape(geometry),
        preparation=Preparation(
            geometry=geometry,
            window=None if window is None else (float(window[0]), float(window[1])),
            exif=said.get("exif", False),
        ),
        dtype=np.dtype(dtype),
    )


Candidate = tuple[Mapping[str, Any] | None, str]


def _candidates(own: Mapping[str, Any], stated: Stated) -> Iterator[Candidate]:
    """How pictures may have been prepared, and the precision of the features.

    Cards of earlier versions do not say it. Then it is one of few, unless there was a window of grey values. The
    fingerprint tells which.
    """
    if "preparation" in own and "dtype" in own:
        if own["dtype"] in DTYPES:
            yield own["preparation"], own["dtype"]
        return
    geometry = stated.geometry
    side = stated.values.get("image_shape", [0])[0]
    square = geometry or (Geometry(resize=side, crop=side) if side else None)
    described: list[dict[str, Any] | None] = [None, {"exif": True}]
    if square is not None:
        described += [square.describe(), {**square.describe(), "exif": True}]
    for dtype in DTYPES:
        for preparation in described:
            yield preparation, dtype


def _geometry(said: Mapping[str, Any]) -> Geometry | None:
    if "crop" not in said:
        return None
    resize = said["resize"]
    return Geometry(
        resize=resize if isinstance(resize, int) else (resize[0], resize[1]), crop=said["crop"], filter=said["filter"]
    )


def _own(head: Head) -> str:
    return str(head.card["features"]["fingerprint"])


def _fingerprint(head: Head, stated: Mapping[str, Any], preparation: Mapping[str, Any] | None, dtype: str) -> str:
    return fingerprint_of(stated, head.classes, head.dim, dtype, preparation)
