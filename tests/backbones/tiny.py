"""Checkpoints made from a seed, the same here and where the reference libraries run (`bench/references.py`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpfc_cli.backbones.vision_transformer.models import Model
    from dpfc_cli.backbones.vision_transformer.transformer import Transformer

DATA = Path(__file__).parent / "data" / "references.json"


def references() -> dict[str, dict[str, Any]]:
    """By model of the table: the library, the names and shapes of its tensors, and the features it computed."""
    found: dict[str, dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
    return found


def random_weights(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors of a size that keeps activations near 1. RandomState gives the same numbers in all versions of NumPy."""
    random = np.random.RandomState(seed)
    weights = {}
    for name in sorted(shapes):
        shape = tuple(shapes[name])
        values = random.standard_normal(shape)
        leaf = name.rpartition(".")[2]
        if leaf in ("weight", "gamma", "lambda1") and len(shape) == 1:
            values = 1 + 0.2 * values
        elif leaf.endswith("weight") and "position" not in name:
            values /= np.sqrt(int(np.prod(shape[1:])))
        elif leaf in ("bias", "in_proj_bias"):
            values *= 0.2
        weights[name] = values.astype(np.float32)
    return weights


def weights_of(name: str) -> dict[str, np.ndarray]:
    """The tensors of a model of the references."""
    return random_weights(references()[name]["shapes"])


def pictures(size: int, count: int = 2, seed: int = 1) -> np.ndarray:
    """uint8 (count, size, size, 3)."""
    return np.random.RandomState(seed).randint(0, 256, (count, size, size, 3)).astype(np.uint8)


def write(weights: Mapping[str, np.ndarray], folder: Path) -> Path:
    """The weights as a file."""
    from safetensors.numpy import save_file

    file = folder / "model.safetensors"
    save_file(dict(weights), file)
    return file


def kept(model: "Model", cache: Path, weights: Mapping[str, np.ndarray]) -> Path:
    """The weights of a model at the place in the cache of dpfc where files lie that were got in another way."""
    folder = cache / "hub" / model.file.repository
    folder.mkdir(parents=True, exist_ok=True)
    return write(weights, folder).rename(folder / model.file.name)


def tiny(name: str) -> "Model":
    """The row of the table with the size of the references. Mean and standard deviation are one half."""
    from dataclasses import replace

    from dpfc_cli.backbones.vision_transformer.models import HALF, MODELS

    return replace(MODELS[name], width=32, depth=2, heads=2, patch=4, mean=HALF, std=HALF)


def build(
    file: Path | str,
    name: str = "vit-ti16",
    size: int = 16,
    pool: str | None = None,
    batch: int | None = 2,
    precision: str = "float32",
) -> "Transformer":
    """The backbone of a tiny checkpoint, on prepared pictures."""
    from dpfc_cli.backbones.family import Wanted
    from dpfc_cli.backbones.hub import Local
    from dpfc_cli.backbones.vision_transformer.transformer import Transformer
    from dpfc_cli.geometry import Geometry

    square, shape = Geometry(resize=size, crop=size), (size, size, 3)
    wanted = Wanted(name=name, pool=pool, preprocess="native", batch=batch, precision=precision)
    placed = {"image_shape": shape, "geometry": square}
    return Transformer(Wanted(**{**vars(wanted), **placed}), tiny(name), Local(id="tiny", path=Path(file), sha256=""))
