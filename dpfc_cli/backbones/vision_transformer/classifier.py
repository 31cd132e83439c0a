"""The classifier that a Vision Transformer was trained with: of AugReg, DeiT, and others that still have it."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.backbones.backbone import Progress
from dpfc_cli.backbones.family import Classifier, Options
from dpfc_cli.backbones.tensors import check_shape, tensors
from dpfc_cli.backbones.vision_transformer.checkpoint import pool_of
from dpfc_cli.backbones.vision_transformer.dialects import OUTER, classifiers, places, recognise
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.backbones.weights import check_width, find, place
from dpfc_cli.errors import UserError, parameter


def load(name: str, options: Options, expected: str | None, progress: Progress | None) -> Classifier:
    """Read the classifier of a model of the table. See `dpfc_cli.backbones.classifier`."""
    model = MODELS[name]
    where, pin = place(model, options.weights)
    if model.text is not None and where == f"hf:{model.home}":
        raise UserError(
            f"The model {name} has no classifier: it was trained on captions.",
            f"Make the vectors of the names of the classes: {parameter('source')} text.",
            code="missing",
            parameter="model",
        )
    located, digest = find(where, pin, progress, expected)
    rows, pool = read(located.files, located.id, options.pool)
    check_width(model, rows.shape[1] // (2 if pool == "cls+mean" else 1), located.id)
    return Classifier(rows=rows, labels=_labels(located.config, len(rows)), pool=pool, id=located.id, sha256=digest)


def read(files: tuple[Path, ...], source: str, pool: str | None) -> tuple[np.ndarray, str]:
    """The weights of a checkpoint's own classifier. Its bias is not read: class vectors have none.

    Args:
        files: the files that hold the checkpoint.
        source: what messages call it.
        pool: the pooling of the features; None: the one that the checkpoint was trained with.

    Returns:
        A row for each class, over the feature; and the pooling. The classifier of a DINOv2 takes the class token and
        the mean of the patches' tokens, one behind the other. Of its rows this is the part that belongs to the pooling.

    Raises:
        UserError: there is no classifier of this feature in the checkpoint, or it is damaged.

    """
    with ExitStack() as stack:
        readers = tensors(files, stack)
        dialect, prefix = recognise(readers, source)
        where = places(dialect, prefix, readers, source)
        outer = {place.name: name for name, place in where.items() if place.block == OUTER}
        norm = next((outer[name] for name in ("fc_norm.weight", "norm.weight") if name in outer), None)
        found = next((name for name in classifiers(dialect, prefix) if name in readers), None)
        if found is None or norm is None:
            raise UserError(
                f"'{source}' has no classifier of its own.",
                "Use a checkpoint that was trained as a classifier and still has its last layer.",
                code="missing",
                source=source,
            )
        between = next((name for name in readers if "pre_logits" in name), None)
        if between is not None:
            raise UserError(
                f"'{source}' has a layer between the feature and its classifier ('{between}').",
                "Use another checkpoint: rows over that layer say nothing about the feature.",
                code="unsupported",
                source=source,
                tensor=between,
            )
        raw, width = readers[found](), readers[norm]().size
    rows = (raw.T if dialect.layout == "flax" else raw).astype(np.float64)
    double = prefix.startswith("dinov2")
    check_shape(source, found, rows, (len(rows) if rows.ndim else 0, width * (1 + double)))
    trained = pool_of(outer)
    if pool not in (None, trained) and not (double and pool in ("mean", "cls+mean")):
        raise UserError(
            f"The classifier of '{source}' was trained on the pooling '{trained}', the features have '{pool}'.",
            f"Extract features with {parameter('pool')} {trained}.",
            code="conflict",
            source=source,
            trained=trained,
            pool=pool,
        )
    pool = pool or trained
    if double and pool != "cls+mean":
        rows = np.split(rows, 2, axis=1)[pool == "mean"]
    if not np.isfinite(rows).all() or not rows.any():
        raise UserError(
            f"The classifier of '{source}' is empty: its weights ('{found}') are zeros, or no numbers.",
            "Use another checkpoint.",
            code="damaged",
            source=source,
            tensor=found,
        )
    return rows, pool


def _labels(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """The names of the classifier's classes, as a config.json by transformers states them; None if it does not."""
    named = config.get("id2label")
    if not isinstance(named, dict) or len(named) != count:
        return None
    return tuple(str(named.get(str(row), "")) for row in range(count))
