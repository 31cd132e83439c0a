"""A Vision Transformer with the weights of a checkpoint, as a backbone.

One compiled program computes everything from bytes to features, for one shape of batches. The default batch is the
largest one with intermediates that fit into a fixed budget, so memory does not depend on the data set.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from dpfc_cli.backbones import hub
from dpfc_cli.backbones.batched import Group, Sharded, rows_that_fit
from dpfc_cli.backbones.checkpoint import Arrays, Parameters
from dpfc_cli.backbones.family import Wanted
from dpfc_cli.backbones.preprocess import DTYPES, Recipe, patches, seen
from dpfc_cli.backbones.vision_transformer import checkpoint, models, vit
from dpfc_cli.backbones.vision_transformer.models import MODELS, Activation, Model
from dpfc_cli.errors import conflict, damaged, missing, parameter
from dpfc_cli.geometry import Triple

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
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
    mean, std = statistics(model, located)
    return Transformer(wanted, weights, parameters, architecture(model, parameters, located, wanted.pool), mean, std)


def architecture(model: Model, parameters: Parameters, located: hub.Located, pool: str | None) -> vit.Architecture:
    """The architecture: from the shapes of the checkpoint first, then its config.json, then the table. pool: None is
    the pooling that the checkpoint was trained with. UserError: config.json has values that cannot be used, or the
    checkpoint cannot give this pooling.
    """
    inner = located.config.get("vision_config")
    config = inner if isinstance(inner, dict) and inner else located.config
    heads, epsilon, activation = unseen(
        model,
        located,
        width=parameters.outer["patch.weight"].shape[-1],
        heads=parameters.heads or config.get("num_attention_heads", model.heads),
        epsilon=config.get("layer_norm_eps", model.epsilon),
        stated=config.get("hidden_act"),
    )
    trained = checkpoint.pool_of(parameters.outer)
    if trained == "cls" and model.pool == "cls+mean":
        trained = "cls+mean"
    pool = pool or trained
    tokenless = "cls" not in parameters.outer
    lacks = {"cls": tokenless, "cls+mean": tokenless, "map": trained != "map"}
    if lacks.get(pool, False):
        what = "attention pooling" if pool == "map" else "class token"
        raise conflict(f"'{located.id}' has no {what}.", f"Leave out {parameter('pool')} to get '{trained}'.")
    return vit.Architecture(heads=heads, epsilon=epsilon, activation=activation, pool=pool)


def statistics(model: Model, located: hub.Located) -> tuple[Triple, Triple]:
    """Mean and standard deviation of the preprocessing: from a config.json of timm first, then from the table.
    UserError: config.json has values that cannot be used.
    """
    known = located.config.get("pretrained_cfg")
    known = known if isinstance(known, dict) else located.config
    if "mean" not in known and "std" not in known:
        return model.mean, model.std
    found: tuple[Any, Any] = known.get("mean"), known.get("std")
    if not all(map(_is_triple, found)) or 0 in found[1]:
        raise damaged(
            f"The config.json of '{located.id}' has values that make no sense: mean {found[0]!r}, standard deviation "
            f"{found[1]!r}.",
            "Get the config.json that belongs to the weights.",
        )
    mean, std = ((float(red), float(green), float(blue)) for red, green, blue in found)
    return mean, std


def _is_triple(values: Any) -> bool:
    return (
        isinstance(values, list) and len(values) == 3 and all(type(v) in (int, float) and 0 <= v <= 1 for v in values)
    )


def unseen(
    model: Model, located: hub.Located, *, width: int, heads: Any, epsilon: Any, stated: Any
) -> tuple[int, float, Activation]:
    """What the shapes of a checkpoint do not show: heads and epsilon, as config.json or the table states them, and the
    activation. width: of a token. stated: the activation in config.json; None if it has none. UserError: config.json
    has values that cannot be used, or the activation cannot be known.
    """
    possible = type(heads) is int and heads > 0 and not width % heads and stated in (None, *_ACTIVATIONS)
    if not possible or type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise damaged(
            f"The config.json of '{located.id}' has values that make no sense: {heads!r} heads for a width of {width}, "
            f"epsilon {epsilon!r}, activation {stated!r}.",
            f"Get the config.json that belongs to the weights. dpfc has these activations: {', '.join(_ACTIVATIONS)}.",
        )
    return heads, float(epsilon), _ACTIVATIONS[stated] if stated is not None else _unstated(model, located)


def _unstated(model: Model, located: hub.Located) -> Activation:
    """The activation if config.json has no `hidden_act`. Raises UserError if a CLIP model does not show it at all."""
    if model.activation != "quick_gelu" or located.id == f"hf:{model.home}":
        return model.activation
    found = models.clip_activation(located.config)
    if found is None:
        raise missing(
            f"'{located.id}' does not say which activation it was trained with. Some CLIP models use QuickGELU "
            "(OpenAI, MetaCLIP, DFN) and others GELU (LAION, DataComp). With the wrong one the features are bad.",
            'Put a config.json beside the weights: {"hidden_act": "gelu"} or {"hidden_act": "quick_gelu"}.',
        )
    return found


class Transformer(Sharded):
    """A Vision Transformer as a `Backbone`. The tensors are removed from the parameters while they are copied to the
    devices.
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
        super().__init__(wanted, weights, mean, std)
        kernel = parameters.outer["patch.weight"]
        patch, width = kernel.shape[0], int(kernel.shape[-1])
        self.dim = 2 * width if architecture.pool == "cls+mean" else width
        mlp = parameters.blocks[0]
        gated = mlp["fc1.weight"].shape[1] != len(mlp["fc2.weight"])
        crop = self.recipe.geometry.crop
        grid = crop // patch
        self.patch, self.architecture = patch, architecture
        self._run = partial(_features, patch=patch, architecture=architecture, recipe=self.recipe)
        prefix = [len(parameters.outer[each]) for each in ("cls", "dist", "registers") if each in parameters.outer]
        tokens = grid * grid + sum(prefix)
        self._divide(rows(tokens, parameters.blocks[0], architecture.heads), wanted.batch)
        self._description |= {
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
        outer = _joined(parameters, grid)
        parameters.outer.clear()
        self.outer = self._placed(outer)
        self.blocks = [self._placed(block) for block in parameters.blocks]


@partial(jax.jit, static_argnames=("patch", "architecture", "recipe"))
def _features(
    pixels: jax.Array,
    outer: Group,
    blocks: list[Group],
    *,
    patch: int,
    architecture: vit.Architecture,
    recipe: Recipe,
) -> jax.Array:
    return vit.features(outer, blocks, patches(seen(pixels, recipe), patch), architecture)


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
    """Rows per device. A row's intermediates are those of one block and the attention scores."""
    width, hidden = block["fc1.weight"].shape
    row = tokens * (4 * (2 * hidden + 6 * width) + 8 * heads * tokens)
    return rows_that_fit(row)
