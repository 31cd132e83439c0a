"""Checkpoints made from a seed, the same here and where the reference libraries run (`bench/references.py`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpfc_cli.backbones.vision_transformer.transformer import Transformer

DATA = Path(__file__).parent / "data" / "references.json"


def references() -> dict[str, dict[str, Any]]:
    """By case: the library, the names and shapes of its tensors, its configuration, and the features it computed."""
    found: dict[str, dict[str, Any]] = json.loads(DATA.read_text("utf-8"))
    return found


def random_weights(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> dict[str, np.ndarray]:
    """Tensors of a size that keeps activations near 1. RandomState gives the same numbers in all versions of NumPy."""
    random = np.random.RandomState(seed)
    weights = {}
    for name in sorted(shapes):
        shape = tuple(shapes[name])
        values = random.standard_normal(shape)
        leaf = name.replace("/", ".").rpartition(".")[2]
        if leaf in ("weight", "scale", "gamma", "lambda1", "gamma_1", "gamma_2") and len(shape) == 1:
            values = 1 + 0.2 * values
        elif leaf.endswith(("weight", "kernel")) and "position" not in name:
            flax = leaf == "kernel"
            inputs = shape[:-1] if (flax and "out" in name) or (flax and len(shape) != 3) else shape[1:]
            fan = int(np.prod(inputs))
            fan = shape[0] if flax and len(shape) == 3 and "out" not in name else fan
            values /= np.sqrt(fan)
        elif leaf in ("bias", "in_proj_bias"):
            values *= 0.2
        weights[name] = values.astype(np.float32)
    return weights


def pictures(size: int, count: int = 2, seed: int = 1) -> np.ndarray:
    """uint8 (count, size, size, 3)."""
    return np.random.RandomState(seed).randint(0, 256, (count, size, size, 3)).astype(np.uint8)


def write(weights: Mapping[str, np.ndarray], folder: Path, kind: str = "safetensors", config: Any = None) -> Path:
    """The weights as a file, and config.json beside it."""
    from safetensors.numpy import save_file

    file = folder / f"model.{kind}"
    if kind == "npz":
        np.savez(file, allow_pickle=True, **weights)
    else:
        save_file(dict(weights), file)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return file


def build(
    file: Path | str,
    size: int = 16,
    pool: str | None = None,
    batch: int | None = 2,
    precision: str = "float32",
    located_as: str | None = None,
    published: str | None = "cls",
    **facts: Any,
) -> "Transformer":
    """The backbone of a tiny checkpoint, on prepared pictures: mean and std are one half. located_as: where the weights
    seem to come from. published: the pooling that the table says. facts: what the table says of the model beside that,
    its 2 heads and patches of 4.
    """
    from dataclasses import replace

    from dpfc_cli.backbones import hub
    from dpfc_cli.backbones.family import Wanted
    from dpfc_cli.backbones.preprocess import DTYPES
    from dpfc_cli.backbones.vision_transformer import checkpoint, transformer
    from dpfc_cli.backbones.vision_transformer.models import HALF, Model
    from dpfc_cli.geometry import Geometry

    located = hub.locate(str(file))
    located = replace(located, id=located_as or located.id)
    geometry = Geometry(resize=size, crop=size)
    own = {"home": None, "width": None, "depth": None, "patch": 4, "heads": 2, "native": geometry, "pool": published}
    model = Model(**{**own, "mean": HALF, "std": HALF, **facts})
    parameters = checkpoint.read(located.file, located.id, DTYPES[precision])
    return transformer.Transformer(
        Wanted(name="tiny", image_shape=(size, size, 3), preprocess="native", batch=batch, geometry=geometry),
        {},
        parameters,
        transformer.look(model, parameters, located, pool)[0],
        HALF,
        HALF,
    )
