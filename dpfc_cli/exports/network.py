"""The backbone of a head, made again so that it can be exported in front of the head."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfc_cli.backbones import Backbone, Progress
from dpfc_cli.heads.backbone import stated_of
from dpfc_cli.heads.head import Head

_LARGEST = 4096
"""The longest side of a picture whose graph is made."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A backbone that is to be exported.

    Attributes:
        backbone: it takes pictures that were resized and cropped already.
        input: (H, W, C) of a picture.
        said: how a picture must have been prepared before, in words.

    """

    backbone: Backbone
    input: tuple[int, int, int]
    said: str


def rebuilt(head: Head, weights: str | None = None, progress: Progress | None = None) -> Network:
    """Make the backbone of a head again, as `heads.backbone` does. A graph computes in float32 in any case."""
    stated = stated_of(head, "with_backbone", "Export the head alone.")
    shape = stated.shape(stated.geometry)
    if max(shape) > _LARGEST:
        raise stated.refused(
            f"The pictures of this head have sides of up to {max(shape)} pixels, too many for a graph."
        )
    backbone = stated.load(shape, weights, prepared=True, precision="float32", progress=progress)
    said = _said(backbone.describe(), head.card["features"].get("preparation"))
    return Network(backbone=backbone, input=shape, said=said)


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
