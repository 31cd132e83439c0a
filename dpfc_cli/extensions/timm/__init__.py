"""Backbones of timm: `timm:NAME` is the model NAME of that library, computed by torch.

Pictures are prepared as timm's configuration of the model says. The feature is the vector before the classifier.
"""

import functools
import math
from typing import Any

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.family import Backbone, Family, Wanted
from dpfc_cli.errors import UserError, check_installed, missing, near, parameter, unsupported
from dpfc_cli.geometry import Geometry


@functools.cache
def config_of(name: str) -> Any:
    """The configuration of `timm:NAME`. UserError: timm is not installed or has no such model, or dpfc cannot prepare
    pictures for it.
    """
    check_installed("timm", "timm", f"For {name}")
    import timm

    try:
        config = timm.get_pretrained_cfg(name.partition(":")[2], allow_unregistered=False)
    except RuntimeError:
        known = [f"timm:{each}" for each in (*timm.list_models(), *timm.list_pretrained())]
        remedy = f"{near(name, known)}timm.list_models() has all."
        raise UserError(f"Unknown model '{name}'.", remedy, code="unknown-name", name=name) from None
    colours, height, width = config.input_size
    modes = config.crop_mode in ("center", "squash") and config.interpolation in ("bicubic", "bilinear")
    if colours != 3 or height != width or not modes:
        raise unsupported(
            f"dpfc cannot prepare pictures for '{name}': {colours} × {height} × {width}, {config.interpolation}, "
            f"{config.crop_mode}.",
            f"Choose another {parameter('model')}.",
        )
    return config


class TimmFamily(Family):
    """All models of timm."""

    poolings = ("own",)
    recipes = ("native",)

    def published_of(self, name: str) -> hub.Published:
        config = config_of(name)
        file = config.hf_hub_filename or "model.safetensors"
        return hub.Published(home=config.hf_hub_id and f"{config.hf_hub_id}/{file}", width=None)

    def check(self, wanted: Wanted) -> None:
        published = self.published_of(wanted.name)
        if wanted.weights is None and published.home is None:
            raise missing(
                f"timm has no weights of {wanted.name} on the Hugging Face hub.",
                f"Choose one of its variants, NAME.VARIANT, or name a file of your own with {parameter('weights')}.",
            )
        place = published.place(wanted.weights)[0]
        hub.check(place)
        if place.endswith(".npz"):
            raise unsupported(f"timm does not read '{place}'.", f"Name a file of safetensors: {parameter('weights')}.")

    def own_recipe(self, name: str) -> str:
        return "native"

    def geometry(self, name: str, preprocess: str) -> Geometry:
        config = config_of(name)
        crop = config.input_size[1]
        side = math.floor(crop / config.crop_pct)
        return Geometry(
            resize=(side, side) if config.crop_mode == "squash" else side, crop=crop, filter=config.interpolation
        )

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.extensions.timm.network import Network

        return Network(wanted, config_of(wanted.name), self.published_of(wanted.name))


FAMILY = TimmFamily()
