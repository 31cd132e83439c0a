"""ConvNeXt (Liu et al. 2022) with the weights of a checkpoint, as a backbone.

Four stages work on grids of 4, 8, 16 and 32 pixels a place. A block computes x + γ · m(n(c(x))): a convolution c of
each channel by itself over 7 × 7 places, a normalisation n over the channels, and an MLP m at each place. The feature
is the mean over all places, then the final normalisation. It is the vector before the classifier.

The convolution is written as 49 products of the picture, moved, with one number for each channel. On CPUs this is ten
to thirty times as fast as the compiler's own convolution of single channels. It is computed in float32.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli.backbones.batched import Group, Sharded, dense, gelu, norm, product, rows_that_fit
from dpfc_cli.backbones.convnext import EPSILON, MEAN, MODELS, STD
from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.hub import find, place
from dpfc_cli.backbones.preprocess import DTYPES, Recipe, patches, seen
from dpfc_cli.backbones.tensors import check_shape, foreign, incomplete, tensors, unrecognised
from dpfc_cli.errors import UserError

KERNEL = 7
"""The side of the convolution of each channel, in places."""


def load(wanted: Wanted) -> "Network":
    """Load a model of the table, and fetch its weights if they are not on this machine. Errors: see `Family.load`."""
    model, options = MODELS[wanted.name], wanted.options
    located, digest = find(*place(model, options.weights), wanted.progress, options.expected)
    parameters = read(located.files, located.id, model.depths, model.widths, DTYPES[options.precision])
    epsilon = located.config.get("layer_norm_eps", EPSILON)
    activation = located.config.get("hidden_act", "gelu")
    if type(epsilon) is not float or not 0 < epsilon < 1 or activation != "gelu":
        raise UserError(
            f"The config.json of '{located.id}' has values that dpfc cannot use: epsilon {epsilon!r}, activation "
            f"{activation!r}.",
            "Get the config.json that belongs to the weights.",
            code="damaged",
        )
    return Network(wanted, {"id": located.id, "sha256": digest, "dialect": parameters.dialect}, parameters, epsilon)


class Network(Sharded):
    """A ConvNeXt as a `Backbone`.

    Args:
        wanted: what is to be loaded. The batch is rounded up to suit the devices.
        weights: what the manifest says about the weights.
        parameters: the content of the checkpoint. Its tensors are removed from it while they are copied to the devices.
        epsilon: of the final normalisation.

    """

    def __init__(self, wanted: Wanted, weights: Mapping[str, Any], parameters: "Parameters", epsilon: float) -> None:
        super().__init__(wanted, weights, MEAN, STD)
        crop = self._recipe.geometry.crop
        widths = [len(stage[0]["norm.weight"]) for stage in parameters.blocks]
        stem = parameters.outer["stem.weight"]
        self.dim = widths[-1]
        # The first stage has the largest intermediates: those of its MLP, and some of the width of the stage.
        self._divide(rows_that_fit(4 * (crop // 4) ** 2 * 14 * widths[0]), wanted.options.batch)
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
        self._run = partial(_features, epsilon=epsilon, recipe=self._recipe, prepared=wanted.prepared)
        self._outer = self._placed(parameters.outer)
        self._blocks = [[self._placed(block) for block in stage] for stage in parameters.blocks]

    @property
    def parts(self) -> tuple[Group, list[list[Group]], float, Recipe]:
        """What it computes with: the parameters outside blocks, those of the blocks of each stage, the epsilon of the
        final normalisation, and the preprocessing.
        """
        return self._outer, self._blocks, self._run.keywords["epsilon"], self._recipe

    def _part(self, pixels: jax.Array) -> jax.Array:
        features: jax.Array = self._run(pixels, self._outer, self._blocks)
        return features


@partial(jax.jit, static_argnames=("recipe", "prepared"))
def _features(
    pixels: jax.Array,
    outer: Group,
    blocks: list[list[Group]],
    epsilon: float | jax.Array,
    recipe: Recipe,
    prepared: bool,
) -> jax.Array:
    x = norm(_strided(seen(pixels, recipe, prepared), outer, "stem"), outer, "stem_norm", EPSILON)
    for i, stage in enumerate(blocks):
        if i:
            planes = norm(x, outer, f"{i}.down_norm", EPSILON).transpose(0, 3, 1, 2)
            x = _strided(planes, outer, f"{i}.down")
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
    # Without the barrier, each of the next three passes over y would compute it anew.
    whole: jax.Array = jax.lax.optimization_barrier(y)  # type: ignore[no-untyped-call]
    return whole


# Checkpoints: from the names of timm and of transformers to those that are used here

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The content of a checkpoint. dialect: the name of its dialect. outer: the tensors outside blocks. blocks: the
    tensors of each block, for each stage.
    """

    dialect: str
    outer: Arrays
    blocks: list[list[Arrays]]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The naming of one library: what its names may begin with, a name that identifies it, patterns of its names with
    their places here, and what the names of tensors that are not used begin with.
    """

    prefixes: tuple[str, ...]
    mark: str
    places: dict[str, str]
    ignored: str


DIALECTS = {
    "timm": Dialect(
        prefixes=("", "module.", "model."),
        mark="stem.0.weight",
        places={
            r"stem\.0\.(\w+)": r"stem.\1",
            r"stem\.1\.(\w+)": r"stem_norm.\1",
            r"stages\.(\d+)\.downsample\.0\.(\w+)": r"\1.down_norm.\2",
            r"stages\.(\d+)\.downsample\.1\.(\w+)": r"\1.down.\2",
            r"stages\.(\d+)\.blocks\.(\d+)\.conv_dw\.(\w+)": r"\1.\2.depthwise.\3",
            r"stages\.(\d+)\.blocks\.(\d+)\.norm\.(\w+)": r"\1.\2.norm.\3",
            r"stages\.(\d+)\.blocks\.(\d+)\.mlp\.(fc[12]\.\w+)": r"\1.\2.\3",
            r"stages\.(\d+)\.blocks\.(\d+)\.gamma": r"\1.\2.scale",
            r"head\.norm\.(\w+)": r"norm.\1",
        },
        ignored="head.fc.",
    ),
    "transformers": Dialect(
        prefixes=("", "convnext."),
        mark="embeddings.patch_embeddings.weight",
        places={
            r"embeddings\.patch_embeddings\.(\w+)": r"stem.\1",
            r"embeddings\.layernorm\.(\w+)": r"stem_norm.\1",
            r"encoder\.stages\.(\d+)\.downsampling_layer\.0\.(\w+)": r"\1.down_norm.\2",
            r"encoder\.stages\.(\d+)\.downsampling_layer\.1\.(\w+)": r"\1.down.\2",
            r"encoder\.stages\.(\d+)\.layers\.(\d+)\.dwconv\.(\w+)": r"\1.\2.depthwise.\3",
            r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layernorm\.(\w+)": r"\1.\2.norm.\3",
            r"encoder\.stages\.(\d+)\.layers\.(\d+)\.pwconv([12]\.\w+)": r"\1.\2.fc\3",
            r"encoder\.stages\.(\d+)\.layers\.(\d+)\.layer_scale_parameter": r"\1.\2.scale",
            r"layernorm\.(\w+)": r"norm.\1",
        },
        ignored="classifier.",
    ),
}


def read(
    files: tuple[Path, ...], source: str, depths: tuple[int, ...], widths: tuple[int, ...], dtype: np.dtype[Any]
) -> Parameters:
    """Read a checkpoint. Each tensor of it must have a place here, or be a part of its classifier.

    Args:
        files: the files that hold it.
        source: what messages call it.
        depths: the blocks of each stage.
        widths: the channels of each stage.
        dtype: of the factors of matrix products. All other tensors are float32.

    Raises:
        UserError: a tensor is unknown, missing, of the wrong shape or damaged.

    """
    wanted, found = dict(_shapes(depths, widths)), Arrays()
    with ExitStack() as stack:
        readers = tensors(files, stack)
        known = ((name, prefix) for name, each in DIALECTS.items() for prefix in each.prefixes)
        own = next(((name, prefix) for name, prefix in known if prefix + DIALECTS[name].mark in readers), None)
        if own is None:
            raise unrecognised(source, readers, "ConvNeXt", list(DIALECTS))
        dialect, prefix = own
        for name, reader in readers.items():
            inner = name.removeprefix(prefix)
            if inner.startswith(DIALECTS[dialect].ignored):
                continue
            matches = ((re.fullmatch(pattern, inner), to) for pattern, to in DIALECTS[dialect].places.items())
            target = next((match.expand(to) for match, to in matches if match), None)
            if target not in wanted:
                raise foreign(source, name, f"{dialect} checkpoint of this ConvNeXt")
            if target in found:
                raise incomplete(source, f"holds the tensor '{target}' twice, once as '{name}'")
            found[target] = _laid(target, reader(), source, name, wanted[target], dtype)
    # Weights without LayerScale were trained without it.
    lacking = [name for name in wanted if name not in found and not name.endswith(".scale")]
    if lacking:
        raise incomplete(source, f"lacks the tensor '{lacking[0]}', in the names of dpfc")
    blocks = [
        [{name.split(".", 2)[2]: array for name, array in found.items() if name.startswith(f"{i}.{j}.")}
         for j in range(depth)]
        for i, depth in enumerate(depths)
    ]  # fmt: skip
    outer = {name: array for name, array in found.items() if not re.match(r"\d+\.\d+\.", name)}
    return Parameters(dialect=dialect, outer=outer, blocks=blocks)


def _shapes(depths: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The tensors of the network and their shapes: matrices (in, out), convolutions (side, side, in, out)."""

    def both(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[-1:]

    yield from both("stem", 4, 4, 3, widths[0])
    yield from both("stem_norm", widths[0])
    for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        if i:
            yield from both(f"{i}.down_norm", widths[i - 1])
            yield from both(f"{i}.down", 2, 2, widths[i - 1], width)
        for j in range(depth):
            block = f"{i}.{j}"
            yield from both(f"{block}.depthwise", KERNEL, KERNEL, width)
            yield from both(f"{block}.norm", width)
            yield from both(f"{block}.fc1", width, 4 * width)
            yield from both(f"{block}.fc2", 4 * width, width)
            yield f"{block}.scale", (width,)
    yield from both("norm", widths[-1])


def _laid(
    target: str, array: np.ndarray, source: str, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """The tensor in the layout that is used here."""
    if target.endswith("depthwise.weight") and array.ndim == 4:
        array = array[:, 0].transpose(1, 2, 0) if array.shape[1] == 1 else array
    elif target.endswith(("stem.weight", "down.weight")) and array.ndim == 4:
        array = array.transpose(2, 3, 1, 0)
    elif target.endswith(("fc1.weight", "fc2.weight")):
        # timm's smallest models have convolutions of one place instead of matrices.
        array = (array[..., 0, 0] if array.shape[2:] == (1, 1) else array).T
    check_shape(source, name, array, shape)
    product = len(shape) > 1 and "depthwise" not in target
    return np.ascontiguousarray(array, dtype=dtype if product else np.float32)
