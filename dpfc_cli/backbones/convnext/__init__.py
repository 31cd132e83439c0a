"""ConvNeXt, a family of convolutional networks (Liu et al. 2022). This module describes it without JAX.

The weights are timm's, trained on ImageNet-22k. Sizes and preprocessing are those of timm's table: bicubic, 0.875 of
the shorter side, ImageNet's statistics. The versions of the weights are not pinned.
"""

from dataclasses import dataclass

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Backbone, Family, Wanted
from dpfc_cli.geometry import IMAGENET, PAPER, Geometry


@dataclass(frozen=True, kw_only=True)
class Model(hub.Published):
    """One model of the table. Its weights must have so many blocks (`depths`) and channels (`widths`) in each stage."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]


def _model(name: str, third: int, first: int) -> Model:
    home = f"timm/convnext_{name}.fb_in22k/model.safetensors"
    widths = tuple(first << i for i in range(4))
    return Model(home=home, width=widths[-1], depths=(3, 3, third, 3), widths=widths)


MODELS: dict[str, Model] = {
    "convnext-t": _model("tiny", 9, 96),
    "convnext-s": _model("small", 27, 96),
    "convnext-b": _model("base", 27, 128),
    "convnext-l": _model("large", 27, 192),
}
NATIVE = Geometry(resize=256, crop=224)
MEAN, STD = IMAGENET
EPSILON = 1e-6
"""Of all normalisations. That of the last one is another if config.json states it."""


class ConvNeXtFamily(Family):
    """The models of the table `MODELS`."""

    models, published = tuple(MODELS), MODELS
    poolings = ("mean",)
    recipes = ("paper", "native")
    precisions = ("float32", "bfloat16")

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        return "mean"

    def own_recipe(self, name: str) -> str:
        return "native"

    def geometry(self, name: str, preprocess: str) -> Geometry:
        return PAPER if preprocess == "paper" else NATIVE

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.backbones.convnext import network

        return network.load(wanted)


FAMILY = ConvNeXtFamily()
