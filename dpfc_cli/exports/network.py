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
        said: how a picture must have been resized before, in words.
        described: what it says of itself, as `Backbone.describe`.

    """

    backbone: Backbone
    input: tuple[int, int, int]
    said: str
    described: Mapping[str, Any]


def rebuilt(head: Head, weights: str | None = None, progress: Progress | None = None) -> Network:
    """Make the backbone of a head again, as `heads.backbone` does. A graph computes in float32 in any case."""
    stated = stated_of(head, "with_backbone", "Export the head alone.")
    shape = stated.shape(stated.geometry)
    if max(shape) > _LARGEST:
        raise stated.refused(
            f"The pictures of this head have sides of up to {max(shape)} pixels, too many for a graph."
        )
    backbone = stated.load(shape, weights, prepared=True, precision="float32", progress=progress)
    made = backbone.describe()
    return Network(backbone=backbone, input=shape, said=_said(made), described=made)


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
