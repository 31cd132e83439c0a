"""Backbones of timm: `timm:NAME` is the model NAME of that library, computed by torch. `timm:hf-hub:OWNER/NAME` is the
model of a repository, as its config.json describes it.

Pictures are prepared as timm's configuration of the model says. The feature is the vector before the classifier.
"""

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfc_cli.backbones.family import Backbone, Family, Wanted
from dpfc_cli.backbones.hub import AGAIN, File
from dpfc_cli.errors import UserError, check_installed, missing, near, parameter, quoted, unsupported
from dpfc_cli.geometry import Geometry
from dpfc_cli.reading import readable

_PLACE = re.compile(r"hf-hub:(?P<repository>(?!\.)[\w.-]+/(?!\.)[\w.-]+)(?:@(?P<commit>[\w./-]+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What timm says of a model.

    Attributes:
        name: the model, with its variant.
        create: what `timm.create_model` takes.
        geometry: how pictures are resized and cropped.
        mean: per colour, of pixels in [0, 1].
        std: per colour, of pixels in [0, 1].
        classifier: the name of the last layer.
        file: the published weights, if they are on the hub.

    """

    name: str
    create: str
    geometry: Geometry
    mean: list[float]
    std: list[float]
    classifier: str | None
    file: File | None


def repository_of(name: str) -> File | None:
    """The weights of `timm:hf-hub:OWNER/NAME[@REVISION]`; None for the models that timm lists."""
    if not name.startswith("timm:hf-hub:"):
        return None
    found = _PLACE.fullmatch(name.removeprefix("timm:"))
    if found is None:
        what, remedy = f"'{name}' does not name a repository.", "Write timm:hf-hub:OWNER/NAME[@REVISION]."
        raise UserError(what, remedy, parameter="model")
    return File(repository=found["repository"], commit=found["commit"])


@functools.cache
def config_of(name: str) -> Config:
    """The configuration of a model. Of a repository it is fetched. UserError: timm is not installed or has no such
    model, it cannot be fetched or read, or dpfc cannot prepare pictures for it.
    """
    check_installed("timm", "timm", f"For {name}")
    import timm
    from timm.models._hub import load_model_config_from_path

    if (file := repository_of(name)) is not None:
        place = file.beside("config.json").local().path
        with readable(place, "a configuration of timm", AGAIN):
            said = load_model_config_from_path(place.parent)[0]
            return _config(name, f"local-dir:{place.parent}", said, file)
    try:
        known = timm.get_pretrained_cfg(name.partition(":")[2], allow_unregistered=False)
    except RuntimeError:
        names = [f"timm:{each}" for each in (*timm.list_models(), *timm.list_pretrained())]
        remedy = f"{near(name, names)}timm.list_models() has all."
        raise UserError(f"Unknown model '{name}'.", remedy, code="unknown-name", name=name) from None
    said, called = known.to_dict(), known.architecture + (f".{known.tag}" if known.tag else "")
    if said.get("hf_hub_id"):
        file = File(repository=said["hf_hub_id"], name=said.get("hf_hub_filename") or "model.safetensors")
    return _config(f"timm:{called}", called, said, file)


def _config(name: str, create: str, said: dict[str, Any], file: File | None) -> Config:
    """said: timm's configuration of the weights."""
    import timm

    data = timm.data.resolve_data_config(pretrained_cfg=said)
    (colours, height, width), mode, kind = data["input_size"], data["crop_mode"], data["interpolation"]
    if colours != 3 or height != width or mode not in ("center", "squash") or kind not in ("bicubic", "bilinear"):
        raise unsupported(
            f"dpfc cannot prepare pictures for '{name}': {colours} × {height} × {width}, {kind}, {mode}.",
            f"Choose another {parameter('model')}.",
        )
    side = math.floor(height / data["crop_pct"])
    layer = said.get("classifier")
    return Config(
        name=name,
        create=create,
        geometry=Geometry(resize=(side, side) if mode == "squash" else side, crop=height, filter=kind),
        mean=list(map(float, data["mean"])),
        std=list(map(float, data["std"])),
        classifier=next(iter(layer), None) if isinstance(layer, list | tuple) else layer,
        file=file,
    )


class TimmFamily(Family):
    """All models of timm."""

    poolings = ("own",)
    recipes = ("native",)
    own_weights = True

    def files(self, wanted: Wanted, *, text: bool) -> tuple[File, ...]:
        file = repository_of(wanted.name)
        config = () if file is None else (file.beside("config.json"),)
        if wanted.weights is not None:
            return config
        return (*config, *filter(None, (file or config_of(wanted.name).file,)))

    def check(self, wanted: Wanted) -> None:
        name = wanted.weights
        if name is None:
            file = repository_of(wanted.name) or config_of(wanted.name).file
            if file is None:
                raise missing(
                    f"timm has no weights of {wanted.name} on the Hugging Face hub.",
                    f"Choose one of its variants, NAME.VARIANT, or name a file of your own: {parameter('weights')}.",
                )
            name = file.name
        if not name.endswith(".safetensors"):
            raise unsupported(
                f"{quoted(name)} is no file of safetensors. Whoever opens a pickle runs the code in it.",
                "Convert it where that code can do no harm: tensors = torch.load(FILE, weights_only=True), then "
                "safetensors.torch.save_file(tensors, 'model.safetensors'). Name the new file: "
                f"{parameter('weights')}.",
            )
        if wanted.weights is not None and not Path(name).expanduser().is_file():
            raise missing(f"There are no weights at {quoted(name)}.", f"Name a file: {parameter('weights')}.")

    def own_recipe(self, name: str) -> str:
        return "native"

    def geometry(self, name: str, preprocess: str) -> Geometry:
        return config_of(name).geometry

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.extensions.timm.network import Network

        return Network(wanted, config_of(wanted.name))


FAMILY = TimmFamily()
