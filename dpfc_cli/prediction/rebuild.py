"""The backbone of a head, made again from what the head's card says.

The card has the backbone's description, with the digest of its weights, and the fingerprint of the features that the
head was trained on. A backbone is used only if it gives this fingerprint: model, weights, pooling, preprocessing and
preparation of the pictures are then those of the training.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfc_cli import backbones
from dpfc_cli.backbones import BACKBONES, Backbone
from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.features.manifest import DTYPES, fingerprint_of
from dpfc_cli.heads.head import Head
from dpfc_cli.images import Preparation
from dpfc_cli.schema import among, each, either, fault, null, record, text, whole

LARGEST_SIDE = 8192
"""Pixels of a side. Larger pictures would take more memory than a head may ask for."""
_BACKBONE = record(
    {"name": among(BACKBONES)},
    weights=either(null, record({"id": text, "sha256": text})),
    preprocessing=either(text, record({"recipe": text})),
    image_shape=each(whole(1, LARGEST_SIDE), least=3),
    pooling=text,
    precision=text,
)
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What turns a picture into the features that a head takes.

    Attributes:
        stated: the description of the backbone, as the card has it.
        image_shape: of the pictures, (H, W, C).
        preparation: what is done with a picture before.
        dtype: the precision to which features are rounded.

    """

    stated: Mapping[str, Any]
    image_shape: tuple[int, int, int]
    preparation: Preparation
    dtype: np.dtype[Any]

    @property
    def prepared(self) -> bool:
        """Whether pictures are resized and cropped when they are decoded."""
        return self.preparation.geometry is not None


def recipe_of(head: Head) -> Recipe:
    """What the card of a head says of its features. Nothing is loaded.

    Raises:
        UserError: the head was trained on imported features, or its card does not say how pictures were prepared.

    """
    own = head.card["features"]
    stated = own.get("backbone") or {}
    if stated.get("name") == "imported":
        raise UserError(
            "The head was trained on features that were imported. Its card does not say how they are computed from "
            "pictures.",
            "Compute features in the same way as then, and predict on these: a feature set, or an .npy file.",
            code="unsupported",
            parameter="source",
        )
    wrong = fault(stated, _BACKBONE)
    if wrong is not None:
        raise UserError(
            f"The card of the head describes no backbone of this dpfc: '{wrong[:80]}' is missing or makes no sense.",
            "Use the dpfc that the head was made with, or predict on features.",
            code="unsupported",
            parameter="head",
        )
    found = next((each for each in _candidates(own, stated) if _fingerprint(head, stated, *each) == _own(head)), None)
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
    geometry = _geometry(said) or _own_geometry(stated)
    shape = tuple(stated.get("image_shape", ())) if geometry is None else (geometry.crop, geometry.crop, 3)
    if len(shape) != 3 or shape[2] not in (1, 3):
        raise UserError(
            "The card of the head does not say which shape the pictures have.",
            "Predict on features.",
            code="unsupported",
            parameter="head",
        )
    window = said.get("window")
    return Recipe(
        stated=stated,
        image_shape=(shape[0], shape[1], shape[2]),
        preparation=Preparation(
            geometry=geometry,
            window=None if window is None else (float(window[0]), float(window[1])),
            exif=said.get("exif", False),
        ),
        dtype=np.dtype(dtype),
    )


def load(head: Head, recipe: Recipe, weights: str | None, batch: int | None, progress: Progress | None) -> Backbone:
    """Make the backbone of a head again.

    Args:
        head: the head.
        recipe: what its card says.
        weights: where the weights are: a file, a folder or `hf:owner/name[/file]`. Default: as the card says.
        batch: pictures per call; None: the model chooses.
        progress: told how many bytes of a file were downloaded.

    Raises:
        UserError: the weights cannot be found, or are others; or this dpfc computes other features.

    """
    stated = recipe.stated
    known = stated.get("weights")
    if weights is not None and not known:
        raise UserError(
            f"The backbone of the head, {stated['name']}, has no weights.",
            f"Leave out {parameter('weights')}.",
            code="conflict",
            parameter="weights",
        )
    if known and weights is None and not known["id"].startswith("hf:"):
        raise UserError(
            f"The backbone of the head has weights from the file '{known['id']}' (SHA-256 {known['sha256']}).",
            f"Say where that file is: {parameter('weights')}.",
            code="missing",
            parameter="weights",
        )
    steps = stated.get("preprocessing")
    backbone = backbones.load(
        stated["name"],
        recipe.image_shape,
        stated.get("pooling"),
        weights=weights or (known["id"] if known else None),
        batch=batch,
        precision=stated.get("precision", "float32"),
        expected=known["sha256"] if known else None,
        prepared=recipe.prepared,
        progress=progress,
        **({"preprocess": steps["recipe"]} if isinstance(steps, dict) else {}),
    )
    made = backbone.describe()
    differ = [name for name in {**stated, **made} if name != "weights" and made.get(name) != stated.get(name)]
    if (made.get("weights") or {}).get("sha256") != (known or {}).get("sha256"):
        differ.append("weights")
    if differ or backbone.dim != head.dim:
        raise UserError(
            f"This dpfc computes other features than those that the head was trained on. They differ in "
            f"{', '.join(differ) or 'their width'}.",
            "Use the dpfc that the head was made with, or predict on features.",
            code="conflict",
            parameter="head",
            differ=differ,
        )
    return backbone


Candidate = tuple[Mapping[str, Any] | None, str]


def _candidates(own: Mapping[str, Any], stated: Mapping[str, Any]) -> Iterator[Candidate]:
    """How pictures may have been prepared, and the precision of the features.

    Cards of earlier versions do not say it. Then it is one of few, unless there was a window of grey values. The
    fingerprint tells which.
    """
    if "preparation" in own and "dtype" in own:
        if own["dtype"] in DTYPES:
            yield own["preparation"], own["dtype"]
        return
    geometry = _own_geometry(stated)
    side = stated.get("image_shape", [0])[0]
    square = geometry or (Geometry(resize=side, crop=side) if side else None)
    described: list[dict[str, Any] | None] = [None, {"exif": True}]
    if square is not None:
        described += [square.describe(), {**square.describe(), "exif": True}]
    for dtype in DTYPES:
        for preparation in described:
            yield preparation, dtype


def _own_geometry(stated: Mapping[str, Any]) -> Geometry | None:
    """What the model itself does with pictures of many sizes."""
    steps = stated.get("preprocessing")
    return backbones.geometry_of(stated["name"], steps["recipe"]) if isinstance(steps, dict) else None


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
