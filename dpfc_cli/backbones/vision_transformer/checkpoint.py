"""Checkpoints of Vision Transformers: the parameters of `vit`, and the classifier that they were trained with.

From a file that also holds a text tower, only the vision tower is read.
"""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.backbones.checkpoint import (
    ROWS,
    Checkpoint,
    Parameters,
    check_shape,
    gathered,
    misshapen,
    places,
    recognise,
    tensors,
)
from dpfc_cli.backbones.family import Classifier, Wanted
from dpfc_cli.backbones.stated import stated
from dpfc_cli.backbones.vision_transformer.dialects import DIALECTS, classifiers
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import conflict, damaged, missing, parameter, unsupported

KIND = "Vision Transformer"
Shapes = dict[str, tuple[int, ...]]


def read(file: Path, source: str, dtype: np.dtype[Any]) -> Parameters:
    """Read a checkpoint. For the arguments see `gathered`. Raises UserError if a tensor is unknown, missing, of the
    wrong shape or damaged.
    """
    found = gathered(file, source, DIALECTS, KIND, dtype)
    return checked(found, _outer_shapes(found), found.need("patch.weight").shape[-1])


def checked(found: Checkpoint, outer: Shapes, width: int) -> Parameters:
    """The parameters, if there are exactly these tensors outside blocks and those of blocks of this width, with their
    shapes. UserError otherwise.
    """
    numbers = {name.partition(".")[0] for name in found.arrays if name[0].isdigit()}
    scales = {name.partition(".")[2] for name in found.arrays if name.endswith((".scale1", ".scale2"))}
    hidden = len(found.need("0.fc2.weight"))
    # A gated MLP has twice as many units in its first layer.
    first = 2 * hidden if found.need("0.fc1.weight").shape[-1] == 2 * hidden else hidden
    shapes = _norm("norm1", width) | _norm("norm2", width) | _transformed(width, first, hidden)
    shapes |= dict.fromkeys(scales, (width,))
    depth = len(numbers)
    found.check(outer | {f"{i}.{name}": shape for i in range(depth) for name, shape in shapes.items()})
    own = {name: array for name, array in found.arrays.items() if name in outer}
    blocks = [found.under(i) for i in range(depth)]
    return Parameters(dialect=found.dialect.name, outer=own, blocks=blocks, heads=found.heads)


def _outer_shapes(found: Checkpoint) -> Shapes:
    """The tensors outside blocks that a Vision Transformer must have, as the others show, and their shapes."""
    there, patch, position = found.arrays, found.need("patch.weight"), found.need("position")
    width = patch.shape[-1]
    if patch.ndim != 4 or patch.shape[0] != patch.shape[1] or patch.shape[2] != 3:
        raise unsupported(
            f"The patches of '{found.source}' have the shape {patch.shape}, not (size, size, 3 colours, width).",
            "Use another checkpoint: dpfc runs Vision Transformers on square patches of colour pictures.",
        )
    besides = len(position) - int(len(position) ** 0.5) ** 2
    if besides:
        found.need("cls")
    ahead = sum(len(there[name]) for name in ("cls", "dist") if name in there)
    if besides not in (0, ahead, ahead + len(there.get("registers", ()))):
        raise misshapen(found.source, "position", position.shape)
    shapes: Shapes = {name: (len(there[name]), width) for name in ROWS if name in there}
    shapes |= {"patch.weight": patch.shape} | _norm("fc_norm" if "fc_norm.weight" in there else "norm", width)
    # The patches of CLIP have no bias.
    if any(name.startswith("prenorm") for name in there):
        shapes |= _norm("prenorm", width)
    else:
        shapes["patch.bias"] = (width,)
    if any(name.startswith("map.") for name in there):
        hidden = len(found.need("map.fc2.weight"))
        inner = _norm("norm", width) | _transformed(width, hidden, hidden)
        shapes |= {"map.probe": (1, width)} | {f"map.{name}": shape for name, shape in inner.items()}
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _transformed(width: int, first: int, hidden: int) -> Shapes:
    """The shapes of attention and MLP."""
    return {
        "qkv.weight": (width, 3 * width),
        "qkv.bias": (3 * width,),
        "out.weight": (width, width),
        "out.bias": (width,),
        "fc1.weight": (width, first),
        "fc1.bias": (first,),
        "fc2.weight": (hidden, width),
        "fc2.bias": (width,),
    }


def pool_of(outer: Collection[str]) -> str:
    """The pooling that a checkpoint was trained with. outer: the names of its tensors outside blocks."""
    if "map.probe" in outer:
        return "map"
    return "cls" if "cls" in outer and "fc_norm.weight" not in outer else "mean"


def classifier(wanted: Wanted) -> Classifier:
    """Read the classifier of a model of the table. See `dpfc_cli.backbones.classifier`."""
    model = MODELS[wanted.name]
    if model.text is not None and wanted.weights in (None, f"hf:{model.home}"):
        raise missing(
            f"The model {wanted.name} has no classifier: it was trained on captions.",
            f"Make the vectors of the names of the classes: {parameter('source')} text.",
            parameter="model",
        )
    located, digest = model.find(wanted.weights, wanted.progress, wanted.expected)
    rows, pool = _rows(located.file, located.id, wanted.pool, stated(located, model).get("pool"))
    model.check_sizes(located.id, width=rows.shape[1] // (2 if pool == "cls+mean" else 1))
    return Classifier(rows=rows, labels=_labels(located.config, len(rows)), pool=pool, id=located.id, sha256=digest)


def _rows(file: Path, source: str, pool: str | None, trained: str | None) -> tuple[np.ndarray, str]:
    """The weights of a checkpoint's own classifier, a row for each class over the feature, and the pooling.

    Its bias is not read: class vectors have none. The classifier of a DINOv2 takes the class token and the mean of the
    patches' tokens, one behind the other. Of its rows this is the part that belongs to the pooling. pool: None is the
    one that the checkpoint was trained with (trained: as it is stated; None: as the tensors show).
    """
    with ExitStack() as stack:
        readers = tensors(file, stack)
        dialect, prefix = recognise(readers, source, DIALECTS, KIND)
        outer = {to: name for name, to in places(dialect, prefix, readers, source, KIND).items()}
        norm = next((outer[name] for name in ("fc_norm.weight", "norm.weight") if name in outer), None)
        found = next((name for name in classifiers(dialect, prefix) if name in readers), None)
        if found is None or norm is None:
            raise missing(
                f"'{source}' has no classifier of its own.",
                "Use a checkpoint that was trained as a classifier and still has its last layer.",
            )
        between = next((name for name in readers if "pre_logits" in name), None)
        if between is not None:
            raise unsupported(
                f"'{source}' has a layer between the feature and its classifier ('{between}').",
                "Use another checkpoint: rows over that layer say nothing about the feature.",
            )
        raw, width = readers[found](), readers[norm]().size
    rows = (raw.T if dialect.layout == "flax" else raw).astype(np.float64)
    double = prefix.startswith("dinov2")
    check_shape(source, found, rows, (len(rows) if rows.ndim else 0, width * (1 + double)))
    trained = trained or pool_of(outer)
    if pool not in (None, trained) and not (double and pool in ("mean", "cls+mean")):
        raise conflict(
            f"The classifier of '{source}' was trained on the pooling '{trained}', the features have '{pool}'.",
            f"Extract features with {parameter('pool')} {trained}.",
        )
    pool = pool or trained
    if double and pool != "cls+mean":
        rows = np.split(rows, 2, axis=1)[pool == "mean"]
    if not np.isfinite(rows).all() or not rows.any():
        raise damaged(
            f"The classifier of '{source}' is empty: its weights ('{found}') are zeros, or no numbers.",
            "Use another checkpoint.",
        )
    return rows, pool


def _labels(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """The names of the classifier's classes, as a config.json by transformers states them; None if it does not."""
    named = config.get("id2label")
    if not isinstance(named, dict) or len(named) != count:
        return None
    return tuple(str(named.get(str(row), "")) for row in range(count))
