"""ConvNeXt (Liu et al. 2022) with the weights of a checkpoint, as a backbone.

Four stages work on grids of 4, 8, 16 and 32 pixels a place. A block computes x + γ · m(n(c(x))): a convolution c of
each channel by itself over 7 × 7 places, a normalisation n over the channels, and an MLP m at each place. The feature
is the mean over all places, then the final normalisation. It is the vector before the classifier.

The convolution is written as 49 products of the picture, moved, with one number for each channel. On CPUs this is ten
to thirty times as fast as the compiler's own convolution of single channels. It is computed in float32.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.batched import Group, Sharded, dense, gelu, norm, product, rows_that_fit
from dpfc_cli.backbones.checkpoint import Dialect, Parameters, gathered
from dpfc_cli.backbones.convnext import EPSILON, MEAN, MODELS, STD
from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.preprocess import DTYPES, Recipe, patches, seen
from dpfc_cli.backbones.stated import stated

KERNEL = 7
"""The side of the convolution of each channel, in places."""


def load(wanted: Wanted) -> "Network":
    model = MODELS[wanted.name]
    located, digest = model.find(wanted.weights, wanted.progress, wanted.expected)
    parameters = read(located.file, located.id, model.depths, model.widths, DTYPES[wanted.precision])
    # transformers states the epsilon of the last normalisation, and timm that of all.
    shown: dict[str, Any] = {"patch": 4, "pool": "mean", "activation": "gelu"}
    shown |= {"epsilon": EPSILON} if parameters.dialect == "timm" else {}
    facts = stated(located, model, wanted.geometry if wanted.preprocess == "native" else None, **shown)
    weights = {"id": located.id, "sha256": digest, "dialect": parameters.dialect}
    return Network(wanted, weights, parameters, facts)


class Network(Sharded):
    """A ConvNeXt as a `Backbone`. facts: what is stated of colours, and of the epsilon of the final normalisation. The
    tensors are removed from the parameters while they are copied to the devices.
    """

    def __init__(
        self, wanted: Wanted, weights: Mapping[str, Any], parameters: Parameters, facts: Mapping[str, Any]
    ) -> None:
        super().__init__(wanted, weights, facts.get("mean", MEAN), facts.get("std", STD))
        epsilon = facts.get("epsilon", EPSILON)
        crop = self.recipe.geometry.crop
        widths = [len(stage[0]["norm.weight"]) for stage in parameters.blocks]
        stem = parameters.outer["stem.weight"]
        self.dim = widths[-1]
        # The first stage has the largest intermediates: those of its MLP, and some of the width of the stage.
        self._divide(rows_that_fit(4 * (crop // 4) ** 2 * 14 * widths[0]), wanted.batch)
        self._description |= {
            "grid": [crop // 32, crop // 32],
            "architecture": {
                "widths": widths,
                "depths": [len(stage) for stage in parameters.blocks],
                "activation": "gelu",
                "epsilon": epsilon,
            },
            "pooling": "mean",
            "feature": "mean over all places, then the final normalisation",
            "precision": str(stem.dtype),
            "dim": self.dim,
        }
        self.epsilon = epsilon
        self._run = partial(_features, epsilon=epsilon, recipe=self.recipe)
        self.outer = self._placed(parameters.outer)
        self.blocks = [[self._placed(block) for block in stage] for stage in parameters.blocks]


@partial(jax.jit, static_argnames="recipe")
def _features(
    pixels: jax.Array,
    outer: Group,
    blocks: list[list[Group]],
    epsilon: float | jax.Array,
    recipe: Recipe,
) -> jax.Array:
    x = norm(_strided(seen(pixels, recipe), outer, "stem"), outer, "stem_norm", EPSILON)
    for i, stage in enumerate(blocks):
        if i:
            planes = norm(x, outer, f"down_norm{i}", EPSILON).transpose(0, 3, 1, 2)
            x = _strided(planes, outer, f"down{i}")
        for block in stage:
            x = _transform(block, x)
    return norm(x.mean((1, 2)), outer, "norm", epsilon)


def _strided(planes: jax.Array, group: Group, name: str) -> jax.Array:
    """A convolution of neighbouring squares: from float32 (B, C, S, S) to (B, S / side, S / side, D).

    Places that no whole square covers are dropped.
    """
    kernel = group[f"{name}.weight"]
    side = kernel.shape[0]
    grid = planes.shape[2] // side
    matrix = kernel.reshape(-1, kernel.shape[-1])
    y = product(patches(planes, side).astype(kernel.dtype), matrix) + group[f"{name}.bias"]
    return y.reshape(len(planes), grid, grid, -1)


def _transform(block: Group, x: jax.Array) -> jax.Array:
    """One block: from float32 (B, H, W, C) to the same shape."""
    y = norm(_depthwise(block, x), block, "norm", EPSILON)
    return x + dense(gelu(dense(y, block, "fc1")), block, "fc2") * block.get("scale", 1)


def _depthwise(block: Group, x: jax.Array) -> jax.Array:
    """The convolution of each channel by itself, with zeros around the picture."""
    kernel, margin = block["depthwise.weight"], KERNEL // 2
    height, width = x.shape[1:3]
    padded = jnp.pad(x, ((0, 0), (margin, margin), (margin, margin), (0, 0)))
    y = jnp.broadcast_to(block["depthwise.bias"], x.shape)
    for row in range(KERNEL):
        for column in range(KERNEL):
            y = y + padded[:, row : row + height, column : column + width] * kernel[row, column]
    # This changes nothing, but keeps XLA on CPUs from merging the sum with the next product, which takes twice as long.
    return jnp.where(jnp.isnan(y), jnp.nan, y)


# Checkpoints


TIMM = Dialect(
    name="timm",
    prefixes=("", "module.", "model."),
    block=r"stages\.(\d+)\.blocks\.(\d+)\.(.+)",
    outer={"stem.0": "stem", "stem.1": "stem_norm", "head.norm": "norm"}
    | {f"stages.{i}.downsample.0": f"down_norm{i}" for i in (1, 2, 3)}
    | {f"stages.{i}.downsample.1": f"down{i}" for i in (1, 2, 3)},
    inner={"conv_dw": "depthwise", "norm": "norm", "mlp.fc1": "fc1", "mlp.fc2": "fc2", "gamma": "scale"},
    ignored=("head.fc.*",),
)
TRANSFORMERS = Dialect(
    name="transformers",
    prefixes=("", "convnext."),
    block=r"encoder\.stages\.(\d+)\.layers\.(\d+)\.(.+)",
    outer={"embeddings.patch_embeddings": "stem", "embeddings.layernorm": "stem_norm", "layernorm": "norm"}
    | {f"encoder.stages.{i}.downsampling_layer.0": f"down_norm{i}" for i in (1, 2, 3)}
    | {f"encoder.stages.{i}.downsampling_layer.1": f"down{i}" for i in (1, 2, 3)},
    inner={
        "dwconv": "depthwise",
        "layernorm": "norm",
        "pwconv1": "fc1",
        "pwconv2": "fc2",
        "layer_scale_parameter": "scale",
    },
    ignored=("classifier.*",),
)


def read(file: Path, source: str, depths: tuple[int, ...], widths: tuple[int, ...], dtype: np.dtype[Any]) -> Parameters:
    """Read a checkpoint. For `file`, `source` and `dtype` see `gathered`. Raises UserError if a tensor is unknown,
    missing, of the wrong shape or damaged.
    """
    found = gathered(file, source, (TIMM, TRANSFORMERS), "ConvNeXt", dtype)
    # Weights without LayerScale were trained without it.
    shapes = _shapes(depths, widths)
    found.check({name: shape for name, shape in shapes if not name.endswith(".scale") or name in found.arrays})
    outer = {name: array for name, array in found.arrays.items() if not name[0].isdigit()}
    blocks = [[found.under(i, j) for j in range(depth)] for i, depth in enumerate(depths)]
    return Parameters(dialect=found.dialect.name, outer=outer, blocks=blocks)


def _shapes(depths: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the network and their shapes: matrices (in, out), convolutions (side, side, in, out)."""

    def both(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[-1:]

    yield from both("stem", 4, 4, 3, widths[0])
    yield from both("stem_norm", widths[0])
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if i:
            yield from both(f"down_norm{i}", widths[i - 1])
            yield from both(f"down{i}", 2, 2, widths[i - 1], width)
        for j in range(depth):
            block = f"{i}.{j}"
            yield from both(f"{block}.depthwise", KERNEL, KERNEL, width)
            yield from both(f"{block}.norm", width)
            yield from both(f"{block}.fc1", width, 4 * width)
            yield from both(f"{block}.fc2", 4 * width, width)
            yield f"{block}.scale", (width,)
    yield from both("norm", widths[-1])
