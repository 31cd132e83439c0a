"""How good a head is on a feature set, with what stands in the way of believing the figures.

`evaluate` is what `dpfc evaluate` calls. It refuses a head and features that do not fit together, and warns where the
figures mean less than they seem to, or must not be published.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import BEST, average_precisions, score, wilson
from dpfc_cli.trust.statement import hold_out_of

if TYPE_CHECKING:
    from dpfc_cli.training.private_evaluation import PrivateEvaluation

ROWS = 4_096
"""Records scored at a time."""
Interval = tuple[float, float]
Progress = Callable[[str, int, int | None], None]
Blocks = Iterator[tuple[int, np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """How good a head is on the records of one class.

    n: records that have the class as a label; the other figures are None where there are none. top1: the fraction of
    them of which it is the best class, and interval: its 95 % interval. average_precision: None for single labels.
    """

    name: str
    n: int
    top1: float | None
    interval: Interval | None
    average_precision: float | None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a head is on a split. All figures are fractions of 1.

    n: labelled records. top1: the fraction of them of which the best class is a label; top5: of which one of the best
    five classes is, None with five classes or fewer, where it would always be 1. interval, top5_interval: their 95 %
    Wilson intervals, which take the records as drawn independently. mean_average_precision: over the classes that
    occur, None for single labels. per_class: in the order of the classes. private_split: whether the split has the name
    of the one that the head was trained on. warnings: sentences about these figures, for whoever reads them.
    """

    split: str
    n: int
    top1: float
    interval: Interval
    top5: float | None
    top5_interval: Interval | None
    mean_average_precision: float | None
    per_class: tuple[ClassFigures, ...]
    private_split: bool
    warnings: tuple[str, ...]

    @property
    def chance(self) -> tuple[float, float] | None:
        """Top-1 and top-5 of guesses that know nothing. None for records with several labels."""
        m = len(self.per_class)
        return None if self.mean_average_precision is not None else (1 / m, min(BEST / m, 1.0))


@overload
def evaluate(
    head: Head, features: FeatureSet, split: str = "test", *, progress: Progress | None = None
) -> Evaluation: ...


@overload
def evaluate(
    head: Head,
    features: FeatureSet,
    split: str = "test",
    *,
    epsilon: float,
    delta: float | None = None,
    by: str | None = None,
    purpose: str | None = None,
    progress: Progress | None = None,
) -> "PrivateEvaluation": ...


@overload
def evaluate(
    head: Head,
    features: FeatureSet,
    split: str = "test",
    *,
    epsilon: float | None,
    delta: float | None = None,
    by: str | None = None,
    purpose: str | None = None,
    progress: Progress | None = None,
) -> "Evaluation | PrivateEvaluation": ...


def evaluate(
    head: Head,
    features: FeatureSet,
    split: str = "test",
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    by: str | None = None,
    purpose: str | None = None,
    progress: Progress | None = None,
) -> "Evaluation | PrivateEvaluation":
    """Score a head on a labelled split.

    Without `epsilon` the figures come from the raw records, without noise: they are no part of the head's guarantee.
    With it they are noisy, and they protect the records of the split. They are charged to the ledger of the set.

    Args:
        head: the head, as `Head.load` or a training gives it.
        features: a feature set of the same backbone and classes.
        split: which of its splits.
        epsilon: ε to spend on the records of the split, 1e-4 to 100. Default: exact figures, which protect nothing.
        delta: δ. Default: min(1e-5, 1/n).
        by: whose evaluation it is, for the ledger. Default: the name of the account that runs the program.
        purpose: what it is for, for the ledger.
        progress: told the stage, the records scored so far, and how many there are.

    Returns:
        The figures, and warnings about them.

    Raises:
        UserError: the head and the features do not fit together; the card of the head contradicts itself; the set has
            no such split, or a damaged one; or no record of it has a label. With `epsilon` also: a value is out of
            range, a cap does not allow it, the ledger cannot be written, or the head was trained on these records
            without a guarantee. Nothing was charged then, unless a note says so.

    Example:
        >>> found = evaluate(Head.load("heads/eps1.safetensors"), open_features("digits-scattering"))
        >>> print(f"{found.top1:.0%}, between {found.interval[0]:.0%} and {found.interval[1]:.0%}")

    """
    for name, value, kind in (("head", head, Head), ("features", features, FeatureSet)):
        if not isinstance(value, kind):
            raise UserError(
                f"{parameter(name)} is a {type(value).__name__}, not a {kind.__name__}.",
                "Use Head.load and open_features to open what is on disk.",
                parameter=name,
            )
    charged = {"delta": delta, "by": by, "purpose": purpose}
    idle = next((name for name, value in charged.items() if value is not None and epsilon is None), None)
    if idle is not None:
        raise UserError(
            f"{parameter(idle)} has no meaning without {parameter('epsilon')}: exact figures spend nothing and have no "
            "row in the ledger.",
            f"Give {parameter('epsilon')}, or leave it out.",
            code="conflict",
            parameter=idle,
        )
    head.refuse_contradictions()
    features.split(split)
    _check_fit(head, features)
    private_split = split == head.card["features"]["split"]
    warnings = _warnings(head, features, split, private_split, noisy=epsilon is not None)
    features.verify(split)
    if epsilon is not None:
        from dpfc_cli.training import private_evaluation

        ready = private_evaluation.prepare(
            head, features, split, epsilon=epsilon, delta=delta, by=by, purpose=purpose, warnings=warnings
        )
        told = (lambda done, total: progress("Evaluating", done, total)) if progress else None
        return private_evaluation.release(ready, told)
    return replace(figures(head, features, split, private_split, progress), warnings=warnings)


def figures(
    head: Head, features: FeatureSet, split: str, private_split: bool, progress: Progress | None = None
) -> Evaluation:
    """How good a linear classifier is on a split that was verified. Nothing is known of how it was made.

    Args:
        head: the classifier. Of its card only the classes are looked at. They must be those of the features.
        features: the feature set.
        split: which of its splits.
        private_split: whether its records are private ones.
        progress: told the stage, the records scored so far, and how many there are.

    Raises:
        UserError: no record has a label.

    """
    facts = features.split(split)
    stream, m = features.stream(split), len(head.classes)
    scores = score(head, _counted("Evaluating", stream(ROWS), facts.n, progress))
    if not scores.n:
        raise UserError(
            f"No record of the split '{split}' of '{features.folder}' has a label."
            f"{f' {GUARDED}' if private_split else ''}",
            "Evaluate on a split with labels.",
            code="missing",
            parameter="split",
            split=split,
        )
    precisions = np.full(m, np.nan)
    if several := features.manifest.labels_per_record > 1:
        precisions = average_precisions(
            head, lambda: _counted("Ranking the records", stream(ROWS), facts.n, progress), facts.n
        )
    top5 = m > BEST
    return Evaluation(
        split=split,
        n=scores.n,
        top1=scores.top1 / scores.n,
        interval=wilson(scores.top1, scores.n),
        top5=scores.top5 / scores.n if top5 else None,
        top5_interval=wilson(scores.top5, scores.n) if top5 else None,
        # Every record scored has a label, so one class at least occurs.
        mean_average_precision=float(np.nanmean(precisions)) if several else None,
        per_class=tuple(
            _class_figures(name, int(n), int(hits), float(precision))
            for name, n, hits, precision in zip(head.classes, scores.rows, scores.hits, precisions, strict=True)
        ),
        private_split=private_split,
        warnings=(),
    )


def _check_fit(head: Head, features: FeatureSet) -> None:
    manifest = features.manifest
    d, m = head.weight.shape
    if d != manifest.dim or m != len(manifest.classes):
        raise UserError(
            f"The head takes {d} dimensions and knows {m} classes, "
            f"the features have {manifest.dim} and {len(manifest.classes)}.",
            f"Evaluate on features of the same backbone and data set: {parameter('features')}.",
            code="conflict",
            parameter="features",
            head={"dim": d, "classes": m},
            features={"dim": manifest.dim, "classes": len(manifest.classes)},
        )
    if head.classes != manifest.classes:
        raise UserError(
            "The head's classes are not those of the features, or they are in another order.",
            f"Evaluate on features made with the same {parameter('classes')} as those that the head was trained on.",
            code="conflict",
            parameter="features",
        )


def _warnings(head: Head, features: FeatureSet, split: str, private_split: bool, noisy: bool) -> tuple[str, ...]:
    own, hold_out = head.card["features"], hold_out_of(features.manifest)
    facts = head.card.get("facts", {})
    # A set of the same name that was made anew with persons holds out other pictures.
    other_records = facts.get("records", facts.get("n")) not in (None, features.splits.get(own["split"]))
    found = []
    if own["fingerprint"] != features.manifest.fingerprint:
        found.append(
            "these features were made in another way than those that the head was trained on, so the figures may mean "
            "little."
        )
    if private_split:
        meaning = (
            "the figures say how well it fits them, not how good it is on others."
            if noisy
            else "these figures are not differentially private. Do not publish them."
        )
        found.append(f"the head was trained on a split of this name, '{split}'. If these are its records, {meaning}")
    elif hold_out and ((features.name, hold_out) != (own["name"], own.get("hold_out")) or other_records):
        found.append(
            f"this {split} split was held out from training pictures, and the head was trained on another set. If that "
            "set was made from the same pictures, the head has seen some of these."
        )
    return tuple(found)


def _class_figures(name: str, n: int, hits: int, precision: float) -> ClassFigures:
    return ClassFigures(
        name=name,
        n=n,
        top1=hits / n if n else None,
        interval=wilson(hits, n) if n else None,
        average_precision=None if math.isnan(precision) else precision,
    )


def _counted(stage: str, blocks: Blocks, n: int, progress: Progress | None) -> Blocks:
    for start, x, y in blocks:
        yield start, x, y
        if progress:
            progress(stage, start + len(x), n)
