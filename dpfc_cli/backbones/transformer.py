"""A Vision Transformer with a checkpoint's weights as a backbone: bytes in, features out, batch by batch.

Everything from bytes to features is one compiled program for one batch shape, run on all local devices, each taking its
part of the batch. Weights are read tensor by tensor into float32 or bfloat16 and copied to the devices; the largest
batch whose intermediates fit a fixed budget is the default, so that memory does not depend on the data set. A larger
one goes through the program in parts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpfc_cli.backbones import checkpoint, hub, models, vit
from dpfc_cli.backbones.batched import Batched
from dpfc_cli.backbones.checkpoint import Parameters
from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.backbones.models import MODELS, Activation, Model, Triple
from dpfc_cli.backbones.preprocess import normalised, patches, resized
from dpfc_cli.errors import UserError

DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
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
}
# Bytes of intermediates the program may take on a device, and rows at most. Processors are fastest while they fit into
# their caches: ViT-B/16 at 224 pixels with 8 rows half as fast again as with 128.
_BUDGET = {"cpu": 100 << 20}
_BUDGET_ELSEWHERE, _ROWS = 4 << 30, 256


def load(
    name: str,
    image_shape: tuple[int, int, int],
    pool: str | None,
    *,
    preprocess: str,
    weights: str | None,
    batch: int | None,
    precision: str,
    prepared: bool,
    progress: hub.Progress | None,
) -> "Transformer":
    """Fetches the weights where need be. UserError for weights that are not those of a `name`."""
    model = MODELS[name]
    located = hub.locate(weights or f"hf:{model.home}", progress)
    parameters = checkpoint.read(located.files, located.id, DTYPES[precision])
    _check_size(name, model, parameters, located.id)
    description = {
        "name": name,
        "weights": {"id": located.id, "sha256": checkpoint.digest(located.files), "dialect": parameters.dialect},
    }
    recipe = Recipe(preprocess, models.geometry(name, preprocess), model.mean, model.std)
    shaped = architecture(model, parameters, located, pool)
    return Transformer(description, parameters, shaped, recipe, image_shape, batch, prepared)


def architecture(model: Model, parameters: Parameters, located: hub.Located, pool: str | None) -> vit.Architecture:
    """The checkpoint's shapes come first, then its config.json, then the table. UserError for a pooling it lacks."""
    config = located.config.get("vision_config") or located.config
    width = parameters.outer["patch.weight"].shape[-1]
    stated, epsilon = config.get("hidden_act"), config.get("layer_norm_eps", model.epsilon)
    heads = parameters.heads or config.get("num_attention_heads", model.heads)
    known = type(heads) is int and type(epsilon) in (int, float) and isinstance(stated, str | None)
    if not known or not 0 < epsilon < 1:
        raise UserError(
            f"The config.json of '{located.id}' has values that make no sense: {heads!r} heads, epsilon {epsilon!r}, "
            f"activation {stated!r}.",
            "Fetch it again, or use the one that belongs to the weights.",
        )
    if heads < 1 or width % heads:
        raise UserError(f"'{located.id}' is {width} wide, which {heads} heads do not divide.", "Check its config.json.")
    if stated is not None and stated not in _ACTIVATIONS:
        raise UserError(
            f"The config.json of '{located.id}' asks for the activation '{stated}'.",
            f"Known are {', '.join(_ACTIVATIONS)}.",
        )
    trained = vit.pool_of(parameters.outer)
    pool = pool or trained
    lacks = {"cls": "cls" not in parameters.outer, "map": trained != "map"}
    if lacks.get(pool, False):
        what = "class token" if pool == "cls" else "attention pooling"
        raise UserError(f"'{located.id}' has no {what}.", f"Leave --pool away for '{trained}'.")
    return vit.Architecture(
        heads=heads,
        epsilon=float(epsilon),
        activation=_ACTIVATIONS[stated] if stated is not None else _unstated(model, located),
        pool=pool,
    )


def _unstated(model: Model, located: hub.Located) -> Activation:
    """The activation where config.json has no `hidden_act`. UserError for a CLIP from elsewhere that does not tell."""
    if model.activation != "quick_gelu" or located.id == f"hf:{model.home}":
        return model.activation
    found = models.clip_activation(located.config)
    if found is None:
        raise UserError(
            f"'{located.id}' does not say which activation it was trained with: CLIPs come with QuickGELU (OpenAI, "
            "MetaCLIP, DFN) and with GELU (LAION, DataComp), and the wrong one spoils the features.",
            'Put a config.json beside the weights: {"hidden_act": "gelu"} or {"hidden_act": "quick_gelu"}.',
        )
    return found


def _check_size(name: str, model: Model, parameters: Parameters, source: str) -> None:
    kernel = parameters.outer["patch.weight"]
    found = {"width": kernel.shape[-1], "depth": len(parameters.blocks), "patch": kernel.shape[0]}
    for what, value in found.items():
        expected = getattr(model, what)
        if expected not in (None, value):
            raise UserError(
                f"'{source}' is no {name}: its {what} is {value}, not {expected}.",
                "Choose the model that the weights belong to, or other weights.",
            )


@dataclass(frozen=True)
class Recipe:
    """Preprocessing: how pictures are cut, and the mean and standard deviation per colour, of pixels in [0, 1]."""

    name: str
    geometry: Geometry
    mean: Triple
    std: Triple

    def describe(self) -> dict[str, Any]:
        resize = self.geometry.resize
        return {
            "recipe": self.name,
            "resize": list(resize) if isinstance(resize, tuple) else resize,
            "crop": self.geometry.crop,
            "filter": f"{self.geometry.filter}, antialiased, rounded to bytes, as Pillow's",
            "mean": list(self.mean),
            "std": list(self.std),
        }


class Transformer(Batched):
    """One checkpoint, preprocessing and image shape: a `Backbone`. description: what to state of name and weights."""

    def __init__(
        self,
        description: dict[str, Any],
        parameters: Parameters,
        architecture: vit.Architecture,
        recipe: Recipe,
        image_shape: tuple[int, int, int],
        batch: int | None = None,
        prepared: bool = False,
    ) -> None:
        kernel = parameters.outer["patch.weight"]
        patch, self.dim = kernel.shape[0], int(kernel.shape[-1])
        mlp = parameters.blocks[0]
        gated = mlp["fc1.weight"].shape[1] != len(mlp["fc2.weight"])
        crop = recipe.geometry.crop
        grid = crop // patch
        if image_shape[2] not in (1, 3) or (prepared and image_shape[:2] != (crop, crop)):
            raise ValueError(f"no picture of this backbone: {image_shape}, crop {crop}")
        if not grid:
            raise UserError(f"The crop of {crop} pixels holds no patch of {patch}.", "Use other weights.")
        self.name: str = description["name"]
        self._shape = tuple(image_shape)
        self._plan = Plan(recipe, patch, architecture, prepared)
        prefix = [len(parameters.outer[each]) for each in ("cls", "dist", "registers") if each in parameters.outer]
        tokens = grid * grid + sum(prefix)
        self._devices = jax.local_devices()
        # The parts of a batch are equal, and so is what each device takes of a part.
        most = _rows(tokens, parameters, architecture.heads) * len(self._devices)
        self._parts = -(-(batch or most) // most)
        unit = self._parts * len(self._devices)
        self.batch: int = -(-(batch or most) // unit) * unit
        self._description = description | {
            "preprocessing": recipe.describe(),
            "input": [crop, crop, 3],
            "grid": [grid, grid],
            "architecture": {
                "width": self.dim,
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
        self._place(parameters, grid)

    def _place(self, parameters: Parameters, grid: int) -> None:
        """Copy the parameters to every device, letting go of them here one by one."""
        mesh = Mesh(np.array(self._devices), ("batch",))
        self._sharding = NamedSharding(mesh, PartitionSpec("batch"))  # type: ignore[no-untyped-call]
        everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]
        outer = _joined(parameters, grid)
        parameters.outer.clear()
        self._outer = {name: jax.device_put(outer.pop(name), everywhere) for name in list(outer)}
        self._blocks = [
            {name: jax.device_put(block.pop(name), everywhere) for name in list(block)} for block in parameters.blocks
        ]

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def _compute(self, whole: np.ndarray) -> jax.Array:
        parts = (jax.device_put(part, self._sharding) for part in np.split(whole, self._parts))
        out: list[jax.Array] = [_features(part, self._outer, self._blocks, self._plan) for part in parts]
        return jnp.concatenate(out) if len(out) > 1 else out[0]


@dataclass(frozen=True)
class Plan:
    """What the compiled program is made for, beside the shapes of its arguments."""

    recipe: Recipe
    patch: int
    architecture: vit.Architecture
    prepared: bool


@partial(jax.jit, static_argnames="plan")
def _features(pixels: jax.Array, outer: vit.Group, blocks: list[vit.Group], plan: Plan) -> jax.Array:
    if plan.prepared:
        planes = pixels.transpose(0, 3, 1, 2).astype(jnp.float32)
    else:
        planes = resized(pixels, plan.recipe.geometry)
    seen = normalised(planes, np.array(plan.recipe.mean), np.array(plan.recipe.std))
    features: jax.Array = vit.features(outer, blocks, patches(seen, plan.patch), plan.architecture)
    return features


def _joined(parameters: Parameters, grid: int) -> dict[str, np.ndarray]:
    """The parameters outside blocks with tokens, positions and patches as `vit` takes them."""
    outer = parameters.outer
    ahead, positions = vit.position(parameters, grid)
    result = {name: array for name, array in outer.items() if name not in ("cls", "dist", "registers")}
    result["patch.weight"] = outer["patch.weight"].reshape(-1, outer["patch.weight"].shape[-1])
    result["position"] = positions.astype(np.float32)
    tokens = [outer[name] for name in ("cls", "dist") if name in outer]
    if len(ahead):
        tokens = [np.concatenate(tokens) + ahead]
    if "registers" in outer:
        tokens.append(outer["registers"])
    return result | ({"prefix": np.concatenate(tokens)} if tokens else {})


def _rows(tokens: int, parameters: Parameters, heads: int) -> int:
    """Rows a device, for the memory that one row's intermediates take: those of a block, and the scores."""
    kernel = parameters.outer["patch.weight"]
    hidden = parameters.blocks[0]["fc1.weight"].shape[1]
    row = tokens * (4 * (2 * hidden + 6 * kernel.shape[-1]) + 8 * heads * tokens)
    budget = _BUDGET.get(jax.default_backend(), _BUDGET_ELSEWHERE)
    return int(max(1, min(budget // row, _ROWS)))
