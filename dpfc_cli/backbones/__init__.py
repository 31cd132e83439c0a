"""Backbones: batches of pictures in, batches of feature vectors out.

A backbone is frozen. It was fixed before anyone saw the private pictures, and the features of a record depend on the
pixels of that record alone. Everything after the backbone counts privacy per record, and relies on this. A backbone
that normalised by the statistics of a batch, for example, would let one picture change the features of all others, and
no clipping could undo that.

The models belong to families (`Family`): those of the table `FAMILIES`, and those that packages add (`ADDED`). The
command line needs the names for `--help`, so importing this module imports no JAX. `load` does.
"""

from dataclasses import replace
from pathlib import Path

from dpfc_cli import points
from dpfc_cli.backbones import scattering, vision_transformer
from dpfc_cli.backbones.family import DEFAULT_RECIPE as _DEFAULT_RECIPE
from dpfc_cli.backbones.family import Backbone, Classifier, Family, Wanted, computed
from dpfc_cli.backbones.hub import File
from dpfc_cli.errors import conflict, parameter, unknown
from dpfc_cli.geometry import Geometry

__all__ = ["Backbone", "Classifier", "Family", "Geometry", "Wanted", "computed"]

FAMILIES: tuple[Family, ...] = (scattering.FAMILY, vision_transformer.FAMILY)
"""A new family is one row here and one module or package of its own."""
ADDED = "dpfc.backbones"
"""The group of entry points that adds families. What is added as NAME has the models NAME:MODEL."""
_FAMILY_OF: dict[str, Family] = {name: family for family in FAMILIES for name in family.models}
BACKBONES: tuple[str, ...] = tuple(_FAMILY_OF)
MODELS = (*BACKBONES, *(f"{each}:NAME" for each in points.added(ADDED)))
"""What a model may be called."""
POOLINGS = tuple(dict.fromkeys(name for family in FAMILIES for name in family.poolings))
PREPROCESS = tuple(dict.fromkeys(name for family in FAMILIES for name in family.recipes))
PRECISIONS = tuple(dict.fromkeys(name for family in FAMILIES for name in family.precisions))


def known(name: str) -> bool:
    """Whether this may be a model: a family has it, or has been added for models that begin so."""
    return name in _FAMILY_OF or name.partition(":")[0] in points.added(ADDED)


def fast_precision(name: str) -> str:
    """The precision of a model that this machine computes fastest: bfloat16, if the model has it and the processor or
    accelerator that JAX finds has units for its products (AVX-512 BF16 or AMX, compute capability 8, TPU); else
    float32.
    """
    import jax

    from dpfc_cli.backbones.vision_transformer.vit import tensor_cores

    if "bfloat16" not in check(Wanted(name=name)).precisions:
        return "float32"
    device, cpu = jax.local_devices()[0], Path("/proc/cpuinfo")
    if device.platform == "cpu":
        flags = set(cpu.read_text().split()) if cpu.exists() else set()
        fast = not flags.isdisjoint({"avx512_bf16", "amx_bf16"})
    else:
        fast = device.platform == "tpu" or tensor_cores()
    return "bfloat16" if fast else "float32"


def dimensions(name: str) -> int | None:
    """The length of a feature vector of a model; None if it depends on the pictures or on the weights."""
    return _family_of(name).dimensions(name)


def own_recipe(name: str) -> str:
    """The preprocessing that a model uses if the user names none, one of `PREPROCESS`."""
    return _family_of(name).own_recipe(name)


def geometry_of(name: str, preprocess: str | None = None) -> Geometry | None:
    """How pictures are resized and cropped for a model; None if the model takes them at their own size."""
    return _family_of(name).geometry(name, preprocess or own_recipe(name))


def classifier(wanted: Wanted) -> Classifier:
    """The classifier that a backbone was trained with, a row for each of its classes. No features are computed.

    wanted: without a pooling, it is the one that the classifier was trained on. Raises UserError if the model is
    unknown or has no classifier of this feature, or the weights cannot be used.
    """
    return check(wanted).classifier(wanted)


def files(wanted: Wanted, *, text: bool) -> tuple[File, ...]:
    """The files of the hub that are needed to load a model. text: its text tower, too. UserError as `check`."""
    return check(wanted).files(wanted, text=text)


def load(wanted: Wanted) -> Backbone:
    """Load a backbone for pictures of one shape: `load(Wanted(name="scattering", image_shape=(32, 32, 3)))`. UserError:
    a name is unknown, the options do not fit the model, or the weights cannot be used.
    """
    recipe = wanted.preprocess or own_recipe(wanted.name)
    return check(wanted).load(replace(wanted, preprocess=recipe, geometry=geometry_of(wanted.name, recipe)))


def _family_of(name: str) -> Family:
    if not known(name):
        raise unknown("model", name, MODELS)
    family: Family = _FAMILY_OF.get(name) or points.load(ADDED, name.partition(":")[0], Family)
    return family


def check(wanted: Wanted) -> Family:
    """The family of a model. UserError for all that is seen to be wrong without fetching or loading anything."""
    family = _family_of(wanted.name)
    if wanted.weights is not None and not family.own_weights:
        others = ", ".join(model for model in MODELS if model not in BACKBONES) or "none that is installed"
        raise conflict(
            f"The model {wanted.name} has its own weights alone.",
            f"Leave out {parameter('weights')}. Models that may run weights of yours: {others}.",
        )
    chosen = (
        ("pool", "pooling", wanted.pool, POOLINGS, family.poolings_of(wanted)),
        ("preprocess", "preprocessing", wanted.preprocess, PREPROCESS, family.recipes or (_DEFAULT_RECIPE,)),
        ("precision", "precision", wanted.precision, PRECISIONS, family.precisions),
    )
    for _, kind, value, of_all, own in chosen:
        if value is not None and value not in (*of_all, *own):
            raise unknown(kind, value, of_all)
    for option, kind, value, _, own in chosen:
        if value is not None and value not in own:
            raise conflict(
                f"The model {wanted.name} has no {kind} '{value}'.",
                f"Leave out {parameter(option)}, or use one that it has: {', '.join(own)}.",
            )
    family.check(wanted)
    return family
