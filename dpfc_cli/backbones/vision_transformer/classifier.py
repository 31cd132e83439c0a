"""The classifier that a Vision Transformer was trained with: of AugReg, DeiT, and others that still have it."""

from collections.abc import Mapping
from typing import Any

from dpfc_cli.backbones.backbone import Progress
from dpfc_cli.backbones.family import Classifier, Options
from dpfc_cli.backbones.vision_transformer import checkpoint
from dpfc_cli.backbones.vision_transformer.weights import find


def load(name: str, options: Options, expected: str | None, progress: Progress | None) -> Classifier:
    """Read the classifier of a model of the table. No other weights are read. See `dpfc_cli.backbones.classifier`."""
    located, digest = find(name, options.weights, progress, expected)
    rows, pool = checkpoint.classifier(located.files, located.id, options.pool)
    labels = _labels(located.config, len(rows))
    return Classifier(rows=rows, labels=labels, pool=pool, id=located.id, sha256=digest)


def _labels(config: Mapping[str, Any], count: int) -> tuple[str, ...] | None:
    """The names of the classifier's classes, as a config.json by transformers states them; None if it does not."""
    named = config.get("id2label")
    if not isinstance(named, dict) or len(named) != count:
        return None
    return tuple(str(named.get(str(row), "")) for row in range(count))
