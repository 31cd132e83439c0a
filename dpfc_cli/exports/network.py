"""The backbone of a head, made again from its card, so that it can be exported in front of the head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfc_cli import backbones
from dpfc_cli.backbones import BACKBONES, Progress
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.heads.head import Head

if TYPE_CHECKING:
    from dpfc_cli.backbones import Backbone

_MAY_DIFFER = ("weights", "precision", "image_shape")
"""The place of the weights does not matter; their digest is compared. The rest is of pictures that are not resized."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone that is to be exported.

    Attributes:
        backbone: it takes pictures that were resized and cropped already.
        input: (H, W, C) of a picture.
        said: how a picture must have been resized before, in words.
        described: what it says of itself, as `Backbone.describe`.

    """

    backbone: "Backbone"
    input: tuple[int, int, int]
    said: str
    described: Mapping[str, Any]


def rebuilt(head: Head, weights: str | None = None, progress: Progress | None = None) -> Network:
    """Make the backbone of a head again.

    Args:
        head: the head.
        weights: where the weights are: a file, a folder or `hf:owner/name[/file]`. None: where the card says, if they
            are on the hub.
        progress: told how many bytes of a file were downloaded.

    Raises:
        UserError: the card names no backbone of dpfc, or the weights cannot be had, or are others.

    """
    stated = head.card["features"].get("backbone")
    if not isinstance(stated, dict) or stated.get("name") not in BACKBONES:
        raise UserError(
            "The card of this head names no backbone of dpfc: its features came from elsewhere.",
            "Export the head alone.",
            code="unsupported",
            parameter="with_backbone",
        )
    try:
        known, recipe = stated.get("weights"), stated.get("preprocessing")
        place = weights or (known["id"] if known else None)
        square = stated["input"] if "input" in stated else stated["image_shape"]
        shape = (int(square[0]), int(square[1]), int(square[2]))
        options = {"preprocess": recipe["recipe"]} if isinstance(recipe, dict) else {}
        pool = stated["pooling"]
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            "The card of this head does not say how its backbone was made.",
            "Export the head alone.",
            code="damaged",
            parameter="with_backbone",
        ) from error
    if weights is None and place is not None and not str(place).startswith("hf:"):
        raise UserError(
            f"The weights of the backbone are in a file of its owner: '{place}'.",
            f"Say where it is: {parameter('weights')}.",
            code="missing",
            parameter="weights",
        )
    backbone = backbones.load(
        stated["name"], shape, pool, weights=place, prepared=True, progress=progress, **options
    )
    made = backbone.describe()
    # Through JSON, as the card went.
    differ = [each for each in made if each not in _MAY_DIFFER and made[each] != stated.get(each)]
    if (made["weights"] or {}).get("sha256") != (known or {}).get("sha256"):
        differ.insert(0, "weights")
    if differ:
        raise UserError(
            f"This is not the backbone that the head was trained behind. They differ in: {', '.join(differ)}.",
            f"Name the weights of the features: {parameter('weights')}. Or export the head alone.",
            code="conflict",
            parameter="weights",
            differ=differ,
        )
    return Network(backbone=backbone, input=shape, said=_said(stated), described=made)


def _said(stated: Mapping[str, Any]) -> str:
    recipe = stated.get("preprocessing")
    if not isinstance(recipe, dict):
        return "at their own size; the division by 255 is in the graph"
    resize = recipe["resize"]
    size = f"{resize[0]} × {resize[1]}" if isinstance(resize, list) else f"{resize} on the shorter side"
    return (
        f"resized to {size} pixels ({recipe['filter']}), then the central {recipe['crop']} × {recipe['crop']}; "
        "the normalisation of colours is in the graph"
    )
