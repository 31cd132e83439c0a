"""How good class vectors are on a labelled split, as a training would start from them.

Records and vectors have length 1, and the mean of each is subtracted.

This reads records, without noise. It costs nothing only if these records are public. That is the caller's assertion.
What is seen to be false is refused: the training records of a private set.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpfc_cli.backbones import BACKBONES, Progress
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.evaluation.exact import Evaluation, figures
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.methods.whitened import unit_chain
from dpfc_cli.sources.classes import by_name
from dpfc_cli.training.public import check_public, differing, mean_of, protected
from dpfc_cli.training.request import SPLIT


def check(on: FeatureSet, split: str, features: FeatureSet | None) -> list[str]:
    """Refuse to score on private training records, or on other features than those of the set that the vectors are for.

    Returns:
        What to beware of.

    Raises:
        UserError: see above; or the set has no such split, or its ledger is damaged.

    """
    on.split(split)
    if features is not None:
        _refuse(on, differing(features, on))
    check_public(on, "on", split=split, private=features)
    if protected(on, on.splits):
        return [f"'{on.folder}' was trained on with a guarantee. It does not cover these figures of its {split} split."]
    return []


def scored(
    vectors: np.ndarray,
    known: Sequence[str],
    origin: Mapping[str, Any],
    on: FeatureSet,
    split: str,
    progress: Progress | None,
) -> Evaluation:
    """How good the vectors alone are. A class without one has the score 0, as at the start of a training.

    Args:
        vectors: a row for each class.
        known: the names of these classes. Those of the set are matched to them.
        origin: how the vectors were made.
        on: the set to score on, and the split of it.
        split: one of its splits.
        progress: told the stage, the records so far, and how many there are.

    Raises:
        UserError: the vectors do not fit the set, or the set is damaged.

    """
    stated, pool, digest = on.manifest.backbone, origin["pooling"], origin["weights"]["sha256"]
    made = {"dimensions": vectors.shape[1] == on.dim}
    if stated.get("name") in BACKBONES:
        made["pooling"] = stated.get("pooling") == pool
        made["weights"] = (stated.get("weights") or {}).get("sha256") == digest
    _refuse(on, [name for name, fits in made.items() if not fits])
    rows = by_name(on.classes, ((name, row) for row, name in enumerate(known)))
    matched = {column: found[0] for column, found in enumerate(rows.values()) if len(found) == 1}
    if len(matched) < 2:
        raise UserError(
            f"{len(matched)} of the classes of '{on.folder}' have a vector, so nothing can be told apart.",
            f"Score on a set with the same classes: {parameter('on')}.",
            code="conflict",
            parameter="on",
            path=str(on.folder),
        )
    units = vectors[list(matched.values())].astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    weight = np.zeros((on.dim, len(on.classes)))
    weight[:, list(matched)] = (units - units.mean(axis=0)).T
    on.verify(split)
    mean = mean_of(on, split, (lambda *far: progress("Reading the records", *far)) if progress else None)
    chain = unit_chain(mean, float(mean @ mean))
    head = Head(chain=chain, weight=weight, bias=np.zeros(len(on.classes)), card={"classes": list(on.classes)})
    return figures((head,), on, split, split == SPLIT, progress)[0][0]


def _refuse(on: FeatureSet, differ: list[str]) -> None:
    if differ:
        raise UserError(
            f"'{on.folder}' has features of another backbone. They differ in {', '.join(differ)}.",
            f"Score on features that were made as those to be trained on: {parameter('on')}.",
            code="conflict",
            parameter="on",
            path=str(on.folder),
            differ=differ,
        )
