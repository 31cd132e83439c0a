"""Pictures as values. What draws them is added by `dpfc.documents` (`outputs.writer`)."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.evaluation.exact import Evaluation
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.records.card import Card
from dpfc_cli.report.evaluated import but_for_the_seed, heads_named
from dpfc_cli.show.document import shortened


@dataclass(frozen=True)
class Series:
    """Points of one kind, joined by a line.

    Attributes:
        label: for the legend.
        epsilons: positive and finite, in any order.
        values: fractions of 1.
        low, high: the ends of an interval for each; None without intervals.
        band: the intervals as a band, in place of error bars.
        dashed: for what is expected or comes from elsewhere.

    """

    label: str
    epsilons: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    band: bool = False
    dashed: bool = False


@dataclass(frozen=True)
class Level:
    """A value that has no ε: of a training without noise, or of guesses. low, high: the ends of its interval."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curves:
    """Accuracy against ε. measure: what the vertical axis shows, in percent. levels: horizontal lines."""

    series: Sequence[Series]
    levels: Sequence[Level] = ()
    measure: str = "top-1 accuracy"


@dataclass(frozen=True)
class Picture:
    """A picture with its title. of: an evaluation shows its confusions, and whether its probabilities are right."""

    title: str
    of: Curves | Evaluation


def of_heads(
    paths: Sequence[Path], cards: Sequence[Card], features: FeatureSet, found: Sequence[Evaluation]
) -> Picture:
    """What one head confuses, and whether its probabilities are right; of several, accuracy against ε."""
    on = f"on the {found[0].split} split of {shortened(features.name)} ({found[0].n:,} records)"
    if len(found) == 1:
        return Picture(f"{shortened(paths[0].name)} {on}", found[0])
    return Picture(f"Accuracy {on}", _curves(heads_named(paths), cards, found))


def _curves(names: Sequence[str], cards: Sequence[Card], found: Sequence[Evaluation]) -> Curves:
    """A line for each method with the same options, and a level for each head without a guarantee. Heads that differ in
    their seed alone are one point.

    Options that are fractions, such as learning rate and damping, may be different at each ε of one line: defaults
    depend on the noise. Switches, words, whole numbers and shares do not.
    """
    epsilons = [(card.seeded or card).epsilon for card in cards]
    lines: dict[tuple[str, bool], dict[tuple[str, int], dict[float, Sequence[int]]]] = {}
    for held in but_for_the_seed(cards):
        card, epsilon = cards[held[0]], epsilons[held[0]]
        if epsilon is not None:
            options = str(sorted((name, each) for name, each in card.options.items() if not isinstance(each, float)))
            of_method = lines.setdefault((card.method, card.seeded is not None), {})
            # Others at one ε are of several lines, too.
            run = next(run for run in itertools.count() if epsilon not in of_method.get((options, run), {}))
            of_method.setdefault((options, run), {})[epsilon] = held
    series, several = [], False
    numbered = [(*of, i, points) for of, each in lines.items() for i, points in enumerate(each.values(), 1)]
    for kind, seeded, number, points in numbered:
        seeds = {made.seed for held in points.values() for i in held if (made := cards[i].seeded)}
        several |= len(seeds) > 1
        told = f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {min(seeds, default='')}"
        label = f"{kind} ({told}, no guarantee)" if seeded else kind
        scores = [[found[i].top1 for i in held] for held in points.values()]
        ends = [
            (min(each), max(each)) if len(seeds) > 1 else found[held[0]].interval
            for each, held in zip(scores, points.values(), strict=True)
        ]
        series.append(
            Series(
                label if number == 1 else f"{label}, {number}",
                list(points),
                [statistics.mean(each) for each in scores],
                [low for low, _ in ends],
                [high for _, high in ends],
                dashed=seeded,
            )
        )
    levels = [
        Level(f"{name}: no guarantee", each.top1, *each.interval)
        for name, epsilon, each in zip(names, epsilons, found, strict=True)
        if epsilon is None
    ]
    return Curves(series, levels, "top-1 accuracy (mean and range of seeds)" if several else "top-1 accuracy")
