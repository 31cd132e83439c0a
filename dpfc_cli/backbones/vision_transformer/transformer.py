"""A Vision Transformer with the weights of a checkpoint, as a backbone.

One compiled program computes everything from bytes to features, for one shape of batches. The default batch is the
largest one with intermediates that fit into a fixed budget, so memory does not depend on the data set.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.checkpoint import Arrays, Parameters
from dpfc_cli.backbones.family import Backbone, Wanted
from dpfc_cli.backbones.preprocess import DTYPES, Recipe, patches, seen
from dpfc_cli.backbones.stated import Activation, stated
from dpfc_cli.backbones.vision_transformer import checkpoint, models, vit
from dpfc_cli.backbones.vision_transformer.models import MODELS, Model
from dpfc_cli.errors import conflict, damaged, missing, parameter
from dpfc_cli.geometry import Geometry, Triple

_FEATURES = {
    "cls": "class token after the final normalisation",
    "mean": "mean of the patches' tokens after the final normalisation",
    "map": "output of the attention pooling",
    "cls+mean": "class token, then the mean of the patches' tokens, both after the final normalisation",
}


def load(wanted: Wanted) -> "Transformer":
    model = MODELS[wanted.name]
    located, digest = model.find(wanted.weights, wanted.progress, wanted.expected)
    parameters = checkpoint.read(located.file, located.id, DTYPES[wanted.precision])
    kernel = parameters.outer["patch.weight"]
    model.check_sizes(located.id, width=kernel.shape[-1], depth=len(parameters.blocks), patch=kernel.shape[0])
    weights = {"id": located.id, "sha256": digest, "dialect": parameters.dialect}
    native = wanted.geometry if wanted.preprocess == "native" else None
    return Transformer(wanted, weights, parameters, *look(model, parameters, located, wanted.pool, native))


def look(
    model: Model, parameters: Parameters, located: hub.Located, pool: str | None, native: Geometry | None = None
) -> tuple[vit.Architecture, Triple, Triple]:
    """The architecture, and mean and standard deviation of colours: from the shapes of the checkpoint first, then as
    the files beside it state them, then from the table. pool: None is the pooling that the checkpoint was trained with.
    native: as for `stated`. UserError: as `stated`, or the checkpoint cannot give this pooling.
    """
    kernel, depth = parameters.outer["patch.weight"], len(parameters.blocks)
    shown = {"width": kernel.shape[-1], "depth": depth, "patch": kernel.shape[0], "heads": parameters.heads}
    facts = stated(located, model, native, **shown)
    heads = facts.get("heads", parameters.heads or model.heads)
    epsilon, activation = unseen(model, located, facts, width=kernel.shape[-1], heads=heads)
    trained = facts.get("pool") or checkpoint.pool_of(parameters.outer)
    if trained == "cls" and model.pool == "cls+mean":
        trained = "cls+mean"
    pool = pool or trained
    tokenless = "cls" not in parameters.outer
    lacks = {"cls": tokenless, "cls+mean": tokenless, "map": "map.probe" not in parameters.outer}
    if lacks.get(pool, False):
        what = "attention pooling" if pool == "map" else "class token"
        raise conflict(f"'{located.id}' has no {what}.", f"Leave out {parameter('pool')} to get '{trained}'.")
    found = vit.Architecture(heads=heads, epsilon=epsilon, activation=activation, pool=pool)
    return found, facts.get("mean", model.mean), facts.get("std", model.std)


def unseen(
    model: Model, located: hub.Located, facts: Mapping[str, Any], *, width: int, heads: int
) -> tuple[float, Activation]:
    """Epsilon and activation, as the files beside a checkpoint state them (facts), or the table. width: of a token.
    UserError: it has no whole number of dimensions for each of the heads, or a CLIP does not show its activation.
    """
    if width % heads:
        raise damaged(
            f"Beside '{located.id}' stands that it has {heads} heads, for a width of {width}.",
            "Get the config.json that belongs to the weights.",
        )
    published = located.id == f"hf:{model.home}"
    activation = model.activation if published else models.unstated_activation(located.config, model.activation)
    activation = facts.get("activation", activation)
    if activation is None:
        raise missing(
            f"'{located.id}' does not say which activation it was trained with. Some CLIP models use QuickGELU "
            "(OpenAI, MetaCLIP, DFN) and others GELU (LAION, DataComp). With the wrong one the features are bad.",
            'Put a config.json beside the weights: {"hidden_act": "gelu"} or {"hidden_act": "quick_gelu"}.',
        )
    return facts.get("epsilon", model.epsilon), activation


class Transformer(Backbone):
    """A Vision Transformer as a `Backbone`. All local devices run it, each on its part of a batch. A batch is computed
    in parts of one size, so that the intermediates of a part fit into a fixed budget. The tensors are removed from the
    parameters while they are copied to the devices.

    Args:
        wanted: what is to be loaded. The batch is rounded up to suit the devices.
        weights: what the manifest says about the weights.
        parameters: the content of the checkpoint.
        architecture: what the parameters do not show.
        mean: of the preprocessing, for each channel. The same for std, the standard deviation.

    """

    def __init__(
        self,
        wanted: Wanted,
        weights: Mapping[str, Any],
        parameters: Parameters,
        architecture: vit.Architecture,
        mean: Triple,
        std: Triple,
    ) -> None:
        assert wanted.geometry is not None
        shape, crop = wanted.image_shape, wanted.geometry.crop
        if shape != (crop, crop, 3):
            raise ValueError(f"pictures of shape {shape} do not fit this backbone with crop {crop}")
        recipe = Recipe(name=str(wanted.preprocess), geometry=wanted.geometry, mean=mean, std=std)
        kernel, mlp = parameters.outer["patch.weight"], parameters.blocks[0]
        patch, width = kernel.shape[0], int(kernel.shape[-1])
        gated = mlp["fc1.weight"].shape[1] != len(mlp["fc2.weight"])
        grid = crop // patch
        prefix = [len(parameters.outer[each]) for each in ("cls", "dist", "registers") if each in parameters.outer]
        tokens = grid * grid + sum(prefix)
        self.name, self._shape = wanted.name, tuple(shape)
        self.dim = 2 * width if architecture.pool == "cls+mean" else width
        self._description = {
            "name": self.name,
            "weights": weights,
            "preprocessing": recipe.describe(),
            "input": [crop, crop, 3],
            "grid": [grid, grid],
            "architecture": {
                "width": width,
                "depth": len(parameters.blocks),
                "patch": patch,
                "tokens": tokens,
                "heads": architecture.heads,
                "activation": "swiglu" if gated else architecture.activation,
                "epsilon": architecture.epsilon,
            },
            "pooling": architecture.pool,
            "feature": _FEATURES[architecture.pool],
            "precision": str(kernel.dtype),
            "dim": self.dim,
        }
        devices = jax.local_devices()
        most = len(devices) * rows(tokens, mlp, architecture.heads)
        self._parts = -(-(wanted.batch or most) // most)
        # Each device takes the same number of rows of a part.
        unit = self._parts * len(devices)
        self.batch = -(-(wanted.batch or most) // unit) * unit
        mesh = Mesh(np.array(devices), ("batch",))
        self._sharding = NamedSharding(mesh, PartitionSpec("batch"))  # type: ignore[no-untyped-call]
        everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

        def placed(arrays: Arrays) -> vit.Group:
            # Each one is freed on the host after it was copied.
            return {name: jax.device_put(arrays.pop(name), everywhere) for name in list(arrays)}

        outer = _joined(parameters, grid)
        parameters.outer.clear()
        self.outer, self.blocks = placed(outer), [placed(block) for block in parameters.blocks]
        self._run = partial(_features, patch=patch, architecture=architecture, recipe=recipe)

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def traced(self, pixels: jax.Array) -> jax.Array:
        found: jax.Array = self._run(pixels, self.outer, self.blocks)
        return found

    def _compute(self, whole: np.ndarray) -> jax.Array:
        parts = (jax.device_put(part, self._sharding) for part in np.split(whole, self._parts))
        out = [self.traced(part) for part in parts]
        return jnp.concatenate(out) if len(out) > 1 else out[0]


@partial(jax.jit, static_argnames=("patch", "architecture", "recipe"))
def _features(
    pixels: jax.Array,
    outer: vit.Group,
    blocks: list[vit.Group],
    *,
    patch: int,
    architecture: vit.Architecture,
    recipe: Recipe,
) -> jax.Array:
    return vit.features(outer, blocks, patches(seen(pixels, recipe.mean, recipe.std), patch), architecture)


def _joined(parameters: Parameters, grid: int) -> dict[str, np.ndarray]:
    """The parameters outside blocks, with tokens, positions and patches in the form that `vit` takes."""
    outer = parameters.outer
    ahead, positions = vit.position(parameters, grid)
    result = {name: array for name, array in outer.items() if name not in ("cls", "dist", "registers")}
    result["patch.weight"] = outer["patch.weight"].reshape(-1, outer["patch.weight"].shape[-1])
    result["position"] = positions.astype(np.float32)
    tokens = [outer[name] for name in ("cls", "dist", "registers") if name in outer]
    if not tokens:
        return result
    prefix = np.concatenate(tokens)
    # Registers have positions only in files of timm that give all tokens one.
    prefix[: len(ahead)] += ahead
    return result | {"prefix": prefix}


def rows(tokens: int, block: Arrays, heads: int) -> int:
    """The rows that a device computes at a time, 256 at most: their intermediates are those of one block and the
    attention scores.
    """
    width, hidden = block["fc1.weight"].shape
    row = tokens * (4 * (2 * hidden + 6 * width) + 8 * heads * tokens)
    # On CPUs more than 32 MB would be taken from the system anew, and emptied by it, for each part.
    budget = 32 << 20 if jax.default_backend() == "cpu" else 4 << 30
    return int(max(1, min(budget // row, 256)))
