"""The backbone of a head, made again from its card, so that it can be exported in front of the head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpfc_cli import backbones
from dpfc_cli.backbones import BACKBONES, Progress
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.heads.head import Head
from dpfc_cli.schema import each, either, fault, null, record, test, text, whole

if TYPE_CHECKING:
    from dpfc_cli.backbones import Backbone

_LARGEST = 4096
"""The longest side of a picture whose graph is made."""
_SIDE = whole(1, _LARGEST)
_SHAPE = test(lambda value: type(value) is list and [_SIDE(each) for each in value] == [None] * 3)
_STATED = record(
    {
        **{"name": text, "pooling": text, "weights": either(null, record({"id": text, "sha256": text}))},
        "preprocessing": either(
            text, record({"recipe": text, "filter": text, "crop": whole(1), "resize": either(whole(1), each(whole(1)))})
        ),
    },
    input=_SHAPE,
    image_shape=_SHAPE,
)
_MAY_DIFFER = ("weights", "precision")
"""The place of the weights does not matter; their digest is compared. A graph computes in float32 in any case."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone that is to be exported.

    Attributes:
        backbone: it takes pictures that were resized and cropped already.
        input: (H, W, C) of a picture.
        said: how a picture must have been prepared before, in words.
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
    wrong = fault(stated, _STATED)
    if wrong is not None or not {"input", "image_shape"} & stated.keys():
        raise UserError(
            f"The card of this head does not say how its backbone was made: '{wrong or 'input'}' makes no sense.",
            "Export the head alone.",
            code="damaged",
            parameter="with_backbone",
        )
    known, recipe = stated["weights"], stated["preprocessing"]
    place = weights or (known["id"] if known else None)
    height, width, channels = stated.get("input") or stated["image_shape"]
    shape = (height, width, channels)
    options = {"preprocess": recipe["recipe"]} if isinstance(recipe, dict) else {}
    if weights is None and place is not None and not str(place).startswith("hf:"):
        raise UserError(
            f"The weights of the backbone are in a file of its owner: '{place}'.",
            f"Say where it is: {parameter('weights')}.",
            code="missing",
            parameter="weights",
        )
    backbone = backbones.load(
        stated["name"], shape, stated["pooling"], weights=place, prepared=True, progress=progress, **options
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
    return Network(
        backbone=backbone, input=shape, said=_said(made, head.card["features"].get("preparation")), described=made
    )


def _said(stated: Mapping[str, Any], preparation: Mapping[str, Any] | None) -> str:
    """How pictures must be prepared. preparation: what was chosen when the features were made, as the card has it."""
    recipe, chosen = stated.get("preprocessing"), preparation or {}
    words = []
    if "window" in chosen:
        low, high = chosen["window"]
        words.append(f"grey values from {low:g} to {high:g} as 0 to 255")
    if chosen.get("exif"):
        words.append("turned as their EXIF orientation says")
    sized = chosen if "crop" in chosen else recipe
    if isinstance(sized, Mapping):
        resize = sized["resize"]
        size = (
            f"{resize[0]} × {resize[1]} pixels" if isinstance(resize, list) else f"{resize} pixels on the shorter side"
        )
        words.append(f"resized to {size} ({sized['filter']}), then the central {sized['crop']} × {sized['crop']}")
    else:
        words.append("at their own size")
    inside = "the normalisation of colours" if isinstance(recipe, dict) else "the division by 255"
    return f"{', '.join(words)}; {inside} is in the graph"
