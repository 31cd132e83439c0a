"""ConvNeXt, a family of convolutional networks (Liu et al. 2022). This module describes it without JAX.

The weights are timm's, trained on ImageNet-22k. Sizes and preprocessing are those of timm's table: bicubic, 0.875 of
the shorter side, ImageNet's statistics. The versions of the weights are not pinned.
"""

from dataclasses import dataclass

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Backbone, Family, Options, Wanted
from dpfc_cli.backbones.geometry import Geometry, Triple


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model of the table.

    Attributes:
        home: `owner/name/file` on the Hugging Face hub.
        depths: blocks of each stage. The weights must have them.
        widths: channels of each stage. The weights must have them.
        pin: the version of the published weights. None: it was not established, and the newest is taken.

    """

    home: str
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    pin: hub.Pin | None = None

    @property
    def width(self) -> int:
        """The length of a feature vector."""
        return self.widths[-1]


def _model(name: str, third: int, first: int) -> Model:
    home = f"timm/convnext_{name}.fb_in22k/model.safetensors"
    return Model(home=home, depths=(3, 3, third, 3), widths=tuple(first << i for i in range(4)))


MODELS: dict[str, Model] = {
    "convnext-t": _model("tiny", 9, 96),
    "convnext-s": _model("small", 27, 96),
    "convnext-b": _model("base", 27, 128),
    "convnext-l": _model("large", 27, 192),
}
NATIVE = Geometry(resize=256, crop=224)
PAPER = Geometry(resize=(384, 384), crop=256)
MEAN: Triple = (0.485, 0.456, 0.406)
STD: Triple = (0.229, 0.224, 0.225)
EPSILON = 1e-6
"""Of all normalisations. That of the last one is another if config.json states it."""


class ConvNeXtFamily(Family):
    """The models of the table `MODELS`."""

    models = tuple(MODELS)
    poolings = ("mean",)
    recipes = ("paper", "native")
    precisions = ("float32", "bfloat16")

    def check(self, name: str, options: Options) -> None:
        if options.weights is not None:
            hub.check(options.weights)

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        return "mean"

    def dimensions(self, name: str) -> int:
        """The width of the last stage."""
        return MODELS[name].width

    def repository(self, name: str) -> str:
        return MODELS[name].home.rpartition("/")[0]

    def own_recipe(self, name: str) -> str:
        return "native"

    def geometry(self, name: str, preprocess: str) -> Geometry:
        return PAPER if preprocess == "paper" else NATIVE

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.backbones.convnext import network

        return network.load(wanted)


FAMILY = ConvNeXtFamily()
