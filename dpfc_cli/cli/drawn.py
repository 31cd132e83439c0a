"""Evaluations as figures: which panels there are of which figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.figures import accuracy, canvas, confusion, reliability

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Evaluation
    from dpfc_cli.features.reader import FeatureSet


def check(plot: Path, features: "FeatureSet", split: str, cards: Sequence[Mapping[str, Any]], noisy: bool) -> None:
    """Refuse a figure that cannot be drawn, or must not be, before any record is read.

    Args:
        plot: the file.
        features: the set to score on.
        split: which of its splits.
        cards: of the heads.
        noisy: whether the figures are released with noise.

    """
    canvas.check(plot)
    why = None
    if noisy:
        why = f"with {parameter('epsilon')} neither confusions nor probabilities are released"
    elif any(card["features"]["split"] == split for card in cards):
        why = f"a head was trained on a split of this name, '{split}', and a figure would show more than its accuracy"
    elif len(cards) == 1 and features.manifest.labels_per_record > 1:
        why = "confusions and the reliability of one head are known for records with one label"
    if why is not None:
        raise UserError(
            f"There is nothing to draw: {why}.", f"Leave out {parameter('plot')}.", code="conflict", parameter="plot"
        )


def one(path: Path, features: "FeatureSet", found: "Evaluation") -> canvas.Drawing:
    """What one head confuses, and whether its probabilities are right."""
    assert found.confusions is not None
    assert found.calibration is not None
    names = [each.name for each in found.per_class]
    numbers = {name: i for i, name in enumerate(names)}
    cells = [(numbers[each.label], numbers[each.predicted], each.n) for each in found.confusions]
    bins = [
        reliability.Bin(each.low, each.high, each.n / found.n, each.probability, each.right, *each.interval or ())
        for each in found.calibration.bins
    ]
    error, chance = (100 * each for each in (found.calibration.error, found.calibration.by_chance))
    return canvas.draw(
        confusion.panel(names, cells),
        reliability.panel(bins, title=f"Reliability (error {error:.1f} %, by chance {chance:.1f} %)"),
        title=_title(canvas.shortened(path.name), features, found),
    )


def several(
    cards: Sequence[Mapping[str, Any]], names: Sequence[str], features: "FeatureSet", found: Sequence["Evaluation"]
) -> canvas.Drawing:
    """Accuracy against ε: a line for each method, and a level for each head without a guarantee."""
    lines: dict[tuple[str, int], list[int]] = {}
    for i, card in enumerate(cards):
        if card["epsilon"] is not None:
            # Heads of one method at one ε are of several lines.
            run = next(
                k
                for k in range(len(cards))
                if all(cards[j]["epsilon"] != card["epsilon"] for j in lines.get((card["method"], k), []))
            )
            lines.setdefault((card["method"], run), []).append(i)
    series = [
        accuracy.Series(
            method if not run else f"{method}, {run + 1}",
            [cards[i]["epsilon"] for i in held],
            [found[i].top1 for i in held],
            [found[i].interval[0] for i in held],
            [found[i].interval[1] for i in held],
        )
        for (method, run), held in lines.items()
    ]
    levels = [
        accuracy.Level(f"{name}: no guarantee", each.top1, *each.interval)
        for name, card, each in zip(names, cards, found, strict=True)
        if card["epsilon"] is None
    ]
    return canvas.draw(accuracy.panel(series, levels), title=_title("Accuracy", features, found[0]))


def _title(what: str, features: "FeatureSet", found: "Evaluation") -> str:
    return f"{what} on the {found.split} split of {canvas.shortened(features.name)} ({found.n:,} records)"
