"""A Vision Transformer with the weights of a checkpoint, as a backbone.

One compiled program computes everything from bytes to features, for one shape of batches. The default batch is the
largest one with intermediates that fit into a fixed budget, so memory does not depend on the data set.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpfc_cli.backbones.family import Backbone, Wanted
from dpfc_cli.backbones.hub import Local
from dpfc_cli.backbones.preprocess import DTYPES, Recipe, patches, seen
from dpfc_cli.backbones.vision_transformer import checkpoint, vit
from dpfc_cli.backbones.vision_transformer.checkpoint import Arrays
from dpfc_cli.backbones.vision_transformer.models import MODELS, Model
from dpfc_cli.structs import Values

_FEATURES = {
    "cls": "class token after the final normalisation",
    "mean": "mean of the patches' tokens after the final normalisation",
    "map": "output of the attention pooling",
    "cls+mean": "class token, then the mean of the patches' tokens, both after the final normalisation",
}


def load(wanted: Wanted) -> "Transformer":
    model = MODELS[wanted.name]
    local = model.file.local(wanted.progress)
    local.check_is(wanted.expected)
    return Transformer(wanted, model, local)


class Transformer(Backbone):
    """A Vision Transformer as a `Backbone`. All local devices run it, each on its part of a batch. A batch is computed
    in parts of one size, so that the intermediates of a part fit into a fixed budget. The tensors are removed from
    memory while they are copied to the devices.

    Args:
        wanted: what is to be loaded. The batch is rounded up to suit the devices.
        model: its row of the table.
        weights: the file of its weights.

    """

    def __init__(self, wanted: Wanted, model: Model, weights: Local) -> None:
        assert wanted.geometry is not None
        shape, crop = wanted.image_shape, wanted.geometry.crop
        if shape != (crop, crop, 3):
            raise ValueError(f"pictures of shape {shape} do not fit this backbone with crop {crop}")
        parameters = checkpoint.read(weights, model, DTYPES[wanted.precision])
        recipe = Recipe(name=str(wanted.preprocess), geometry=wanted.geometry, mean=model.mean, std=model.std)
        mlp, patch, pool = parameters.blocks[0], model.patch, wanted.pool or model.pool
        architecture = vit.Architecture(
            heads=model.heads, epsilon=model.epsilon, activation=model.activation, pool=pool
        )
        gated = mlp["fc1.weight"].shape[1] != len(mlp["fc2.weight"])
        grid = crop // patch
        outer = _joined(parameters.outer, grid, antialiased=model.names.antialiased)
        tokens = grid * grid + len(outer.get("prefix", ()))
        self.name, self._shape = wanted.name, tuple(shape)
        self.dim = 2 * model.width if pool == "cls+mean" else model.width
        self._description = {
            "name": self.name,
            "weights": weights.describe(),
            "preprocessing": recipe.describe(),
            "input": [crop, crop, 3],
            "grid": [grid, grid],
            "architecture": {
                "width": model.width,
                "depth": model.depth,
                "patch": patch,
                "tokens": tokens,
                "heads": model.heads,
                "activation": "swiglu" if gated else model.activation,
                "epsilon": model.epsilon,
            },
            "pooling": pool,
            "feature": _FEATURES[pool],
            "precision": wanted.precision,
            "dim": self.dim,
        }
        devices = jax.local_devices()
        most = len(devices) * rows(tokens, mlp, model.heads)
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

        parameters.outer.clear()
        self.outer, self.blocks = placed(outer), [placed(block) for block in parameters.blocks]
        self._run = partial(_features, patch=patch, architecture=architecture, recipe=recipe)

    def describe(self) -> Values:
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


def _joined(outer: Arrays, grid: int, *, antialiased: bool) -> Arrays:
    """The parameters outside blocks, with tokens, positions and patches in the form that `vit` takes."""
    # Of the transformers library, DINOv2 with registers alone resizes positions with antialiasing.
    ahead, positions = vit.position(outer["position"], grid, antialiased=antialiased or "registers" in outer)
    result = {name: array for name, array in outer.items() if name not in ("cls", "registers")}
    result["patch.weight"] = outer["patch.weight"].reshape(-1, outer["patch.weight"].shape[-1])
    result["position"] = positions.astype(np.float32)
    tokens = [outer[name] for name in ("cls", "registers") if name in outer]
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
