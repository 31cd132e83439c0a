"""The figures of heads on a split: how good each is, what it confuses, and how the heads differ.

The figures come from the raw records, without noise. What may be asked of which records is decided elsewhere
(`dpfc_cli.evaluation`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpfc_cli.errors import GUARDED, missing, printable
from dpfc_cli.evaluation.statistics import (
    Calibration,
    Difference,
    Measure,
    auroc_interval,
    calibration,
    difference,
    mean,
)
from dpfc_cli.features.reader import Blocks, FeatureSet
from dpfc_cli.heads.head import Scorer, as_probabilities
from dpfc_cli.heads.metrics import BEST, Interval, Ranked, Scores, labelled, ranked, wilson
from dpfc_cli.progress import Progress
from dpfc_cli.rounding import percentage, with_interval
from dpfc_cli.show.document import Told

ROWS = 4_096
"""Records scored at a time."""


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """How good a head is on the records of one class.

    n: records that have the class as a label; the other figures are None where there are none. top1: the fraction of
    them of which it is the best class, and interval: its 95 % interval. average_precision: None for single labels.
    sensitivity: the fraction of them of which the class is said, and specificity: of all others, the fraction of which
    it is not said (see `Evaluation.threshold`). auroc: the area under the ROC curve, one class against the rest. These
    three are None for a private split, too.
    """

    name: str
    n: int
    top1: float | None
    interval: Interval | None
    average_precision: float | None
    sensitivity: Measure | None = None
    specificity: Measure | None = None
    auroc: Measure | None = None


class Confused(NamedTuple):
    """n records with this label, whose best class is `predicted`. If both are the same, the head is right."""

    label: str
    predicted: str
    n: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation(Told):
    """How good a head is on a split. All figures are fractions of 1.

    n: labelled records. top1: the fraction of them of which the best class is a label; top5: of which one of the best
    five classes is, None with five classes or fewer, where it would always be 1. interval, top5_interval: their 95 %
    Wilson intervals (see `figures`). mean_average_precision: over the classes that occur, None for single labels.
    per_class: in the order of the classes. private_split: whether the split has the name of the one that the head was
    trained on. warnings: sentences about these figures, for whoever reads them. confusions: the cells of the confusion
    matrix that are not 0, by label and predicted class in the order of the classes. calibration: whether the softmax of
    the scores is the probability to be right. Both are None for records with several labels, and for a private split.
    auroc: the mean over the classes that occur. threshold: the probability from which on a class is said; None: of each
    record the best class is said, or with several labels all classes from 1/2 on. balanced_accuracy: the mean over the
    classes of the sensitivity; with several labels or a threshold, of that and the specificity. Intervals are of 95 %.
    subgroups: the same of the records with each value of a column, of those that have some; None if nobody asked.
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
    confusions: tuple[Confused, ...] | None = None
    calibration: Calibration | None = None
    auroc: Measure | None = None
    balanced_accuracy: Measure | None = None
    threshold: float | None = None
    subgroups: Mapping[str, "Evaluation"] | None = None

    def told(self) -> dict[str, str]:
        shown = with_interval(self.top1, self.interval, self.n)
        return {"split": printable(self.split), "records": f"{self.n:,}", "top-1": f"{shown}, exact and not protected"}

    @property
    def chance(self) -> tuple[float, float] | None:
        """Top-1 and top-5 of guesses that know nothing. None for records with several labels."""
        m = len(self.per_class)
        return None if self.mean_average_precision is not None else (1 / m, min(BEST / m, 1.0))


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Told):
    """Several heads on the same records of a split.

    evaluations: of each head, in the order given. differences: of each head but the first, to the first one.
    """

    evaluations: tuple[Evaluation, ...]
    differences: tuple[Difference, ...]

    def told(self) -> dict[str, str]:
        first = self.evaluations[0]
        ends = (percentage(pick(each.top1 for each in self.evaluations), first.n) for pick in (min, max))
        figures = f"{' to '.join(ends)}, exact and not protected"
        return {**first.told(), "heads": f"{len(self.evaluations)}", "top-1": figures}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of all heads, each once."""
        return tuple(dict.fromkeys(warning for each in self.evaluations for warning in each.warnings))


class _Watched:
    """One head, while records go by."""

    def __init__(self, head: Scorer, detailed: bool) -> None:
        self.head, self.detailed = head, detailed
        self.scores = Scores(len(head.classes))
        self._cells: list[np.ndarray] = []
        self._probabilities: list[np.ndarray] = []
        self._right: list[np.ndarray] = []

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Score a block of labelled records: whether each is right."""
        scores = self.head.scores(x)
        best, right = self.scores.add(scores, y)
        if self.detailed:
            self._cells.append(y[:, 0].astype(np.int64) * len(self.head.classes) + best)
            self._probabilities.append(as_probabilities(scores, several=False).max(axis=1))
            self._right.append(right)
        return right

    def evaluation(
        self, split: str, found: Ranked, several: bool, private_split: bool, share: float, threshold: float | None
    ) -> Evaluation:
        """The figures. share: of the records, as `figures` says."""
        scores, names = self.scores, self.head.classes
        top5 = len(names) > BEST
        per_class = tuple(
            _class_figures(scores, found, names[j], j, several, share, not private_split) for j in range(len(names))
        )
        hits = [each.sensitivity for each in per_class]
        alone = not several and threshold is None
        if not alone:
            # Of one class they are of different records.
            hits = [mean([each.sensitivity, each.specificity], independent=True) for each in per_class if each.n]
        confusions = calibrated = None
        if self.detailed:
            cells, counts = np.unique(np.concatenate(self._cells), return_counts=True)
            confusions = tuple(
                Confused(names[cell // len(names)], names[cell % len(names)], n)
                for cell, n in zip(cells.tolist(), counts.tolist(), strict=True)
            )
            calibrated = calibration(np.concatenate(self._probabilities), np.concatenate(self._right), share)
        return Evaluation(
            split=split,
            n=scores.n,
            top1=scores.top1 / scores.n,
            interval=wilson(scores.top1, scores.n, share),
            top5=scores.top5 / scores.n if top5 else None,
            top5_interval=wilson(scores.top5, scores.n, share) if top5 else None,
            # Every record scored has a label, so one class at least occurs.
            mean_average_precision=float(np.nanmean(found.precision)) if several else None,
            per_class=per_class,
            private_split=private_split,
            warnings=(),
            confusions=confusions,
            calibration=calibrated,
            auroc=mean([each.auroc for each in per_class]),
            balanced_accuracy=mean(hits, independent=alone),
            threshold=threshold,
        )


def figures(
    heads: Sequence[Scorer],
    features: FeatureSet,
    split: str,
    private_split: bool,
    progress: Progress | None = None,
    detailed: bool = False,
    threshold: float | None = None,
) -> tuple[tuple[Evaluation, ...], tuple[Difference, ...]]:
    """The figures of each head, and the differences of the later ones to the first, on a split that was verified.

    The records are read once for all heads, and once more to rank them. Of the cards only the classes are looked at,
    which must be those of the features. private_split: whether the records are private ones. detailed: with confusions
    and calibration, if the records have one label each. threshold: see `Evaluation`. UserError: no record has a label.

    Intervals take the persons as drawn independently, if they are known, and all records of one as equal. Then n
    records tell as much as n²/Σs² persons of one record each (Kish 1965), where s are the numbers of records of the
    persons. Records of one person are not always equal, so the intervals are wide enough.
    """
    facts = features.split(split)
    n, stream = facts.n, features.stream(split, groups=facts.groups is not None)
    of_person = np.zeros(facts.groups or 0, np.int64)
    several = features.manifest.labels_per_record > 1
    watched = [_Watched(head, detailed and not several) for head in heads]
    gained, lost = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64)
    for _, x, y, *persons in labelled(_counted("Evaluating", stream(ROWS), n, progress)):
        for each in persons:
            of_person += np.bincount(each, minlength=len(of_person))
        right = np.stack([each.add(x, y) for each in watched])
        gained += (right & ~right[0]).sum(axis=1)
        lost += (~right & right[0]).sum(axis=1)
    if not watched[0].scores.n:
        raise missing(
            f"No record of the split '{split}' of '{features.folder}' has a label."
            f"{f' {GUARDED}' if private_split else ''}",
            "Evaluate on a split with labels.",
            parameter="split",
        )
    scored = watched[0].scores.n
    share = 1.0 if facts.groups is None else scored / float(np.square(of_person, dtype=np.float64).sum())
    ranks = ranked(heads, lambda: _counted("Ranking the records", stream(ROWS), n, progress), n, several, threshold)
    evaluations = [
        head.evaluation(split, found, several, private_split, share, threshold)
        for head, found in zip(watched, ranks, strict=True)
    ]
    differences = tuple(difference(int(gained[i]), int(lost[i]), scored, share) for i in range(1, len(heads)))
    return tuple(evaluations), differences


def _class_figures(
    scores: Scores, ranks: Ranked, name: str, j: int, several: bool, share: float, more: bool
) -> ClassFigures:
    """Of the class j. more: not its accuracy alone."""
    n, others, hits = (int(each[j]) for each in (ranks.positives, ranks.negatives, scores.hits))
    auroc = float(ranks.auroc[j])

    def part(count: int, of: int) -> Measure | None:
        return Measure(int(count) / of, wilson(int(count), of, share)) if of and more else None

    return ClassFigures(
        name=name,
        n=n,
        top1=hits / n if n else None,
        interval=wilson(hits, n, share) if n else None,
        average_precision=float(ranks.precision[j]) if several and n else None,
        sensitivity=part(ranks.found[j], n),
        specificity=part(ranks.spared[j], others),
        auroc=Measure(auroc, auroc_interval(auroc, n * share, others * share)) if n and others and more else None,
    )


def _counted(stage: str, blocks: Blocks, n: int, progress: Progress | None) -> Blocks:
    for start, x, *others in blocks:
        yield start, x, *others
        if progress:
            progress(stage, start + len(x), n)
