"""What is shown of evaluations: blocks for people, and values for programs."""

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfc_cli import rounding
from dpfc_cli.cli.blocks import Block, Facts, Table, bar, between
from dpfc_cli.errors import counted, printable
from dpfc_cli.figures.canvas import shortened, told_apart

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import ClassFigures, Comparison, Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation
    from dpfc_cli.evaluation.statistics import Difference
    from dpfc_cli.features.reader import FeatureSet

MOST_CLASSES = 20
"""Of more classes than this only the ten worst and the ten best are shown. --json has all."""
MOST_COLUMNS = 12
"""The confusion matrix of more classes is no table. Then the largest confusions are shown."""
MOST_CONFUSIONS = 10
MOST_NAMED = 10
"""Of more classes without a record than this the first are named."""
LONGEST = 24
"""Characters of a name in a column that cannot be broken."""
COLUMNS = (
    *("head", "features", "split", "method", "claim", "unit", "adjacency", "epsilon", "delta", "n"),
    *("top1", "top1_low", "top1_high", "top5", "top5_low", "top5_high", "mean_average_precision"),
    *("calibration_error", "difference", "difference_low", "difference_high"),
    *("evaluation_epsilon", "evaluation_delta"),
)
"""Of --csv: one row for each head. They are always the same, so files can be joined."""


# For people


def one(path: Path, card: Mapping[str, Any], features: "FeatureSet", result: "Evaluation") -> list[Block]:
    """The figures of one head."""
    from dpfc_cli.trust.statement import brief

    rows = [("method", str(card["method"])), *figures_rows(result), *_records(result, features)]
    blocks: list[Block] = [
        Facts(f"{path} on the {result.split} split of {features.folder}", [*rows, *brief(card)]),
        classes(result),
    ]
    if result.confusions is not None:
        blocks.append(_confusions(result))
    if result.calibration is not None:
        blocks.append(_reliability(result))
    return blocks


def several(
    paths: Sequence[Path], cards: Sequence[Mapping[str, Any]], features: "FeatureSet", found: "Comparison"
) -> list[Block]:
    """The figures of several heads side by side."""
    names = heads_named(paths)
    results = found.evaluations
    ends = min(each.interval[0] for each in results), max(each.interval[1] for each in results)
    ranked = results[0].mean_average_precision is not None
    columns = [
        *("head", "method", "delta", "epsilon", "top-1", "95 % interval"),
        *(["mean AP"] if ranked else []),
    ]
    rows = []
    for name, card, each in zip(names, cards, results, strict=True):
        row = [
            name,
            str(card["method"]),
            "–" if card["delta"] is None else rounding.delta(card["delta"]),
            _epsilon(card),
        ]
        row += rounding.accuracy(each.top1, each.interval, each.n)
        if each.mean_average_precision is not None:
            row.append(rounding.percentage(each.mean_average_precision, each.n))
        rows.append(row)

    def range_of(i: int, width: int) -> str:
        return between(results[i].interval, results[i].top1, ends, width)

    title = f"{counted(len(results), 'head')} on the {results[0].split} split of {features.folder}"
    blocks: list[Block] = [
        Table(f"{title} ({counted(results[0].n, 'record')})", columns, rows, left=3, bar=range_of),
        Table(
            f"Top-1 beside that of {names[0]}, in points: paired, on the same records",
            ("head", "difference", "95 % interval", "only it is right", "only the other"),
            [
                (
                    name,
                    *rounding.points(each.gain, each.interval, results[0].n),
                    f"{each.only_this:,}",
                    f"{each.only_other:,}",
                )
                for name, each in zip(names[1:], found.differences, strict=True)
            ],
        ),
    ]
    return blocks


def released(path: Path, features: "FeatureSet", result: "PrivateEvaluation") -> list[Block]:
    """What was released, and what was spent for it. Nothing else of the records is shown."""
    spent = result.spent.epsilon(result.delta)
    rows = [("top-1", _released(result.top1, result.interval, result.noise, result.n))]
    if result.top5_interval is not None:
        rows.append(("top-5", _released(result.top5, result.top5_interval, result.top5_noise, result.n)))
    kind = f"{result.unit}s"
    bound = "" if result.spent.exact else " (an upper bound)"
    cost = f"{rounding.cost(result.epsilon, result.delta)} for one {result.unit}"
    total = f"epsilon = {rounding.epsilon(spent)}{bound} at the same delta for one {result.spent.unit}, with "
    total += "all trainings of the same people that the ledger has"
    blocks: list[Block] = [
        Facts(
            f"{path} on the {result.split} split of {features.folder}, with noise",
            [*rows, (f"{kind} (noisy)", f"{result.n:,}"), ("this cost", cost), ("spent so far", total)],
        )
    ]
    if result.per_class is not None:
        found, title = list(result.per_class), "Top-1 per class, with noise"
        found.sort(key=lambda each: each.top1 or 0)
        if len(found) > MOST_CLASSES:
            found, title = found[:10] + found[-10:], f"{title}: the ten worst and the ten best"
        blocks.append(
            Table(
                title,
                ("class", f"{kind} (noisy)", "top-1", "95 % interval"),
                [(r.name, f"{r.n:,}", *rounding.accuracy(r.top1, r.interval, r.n)) for r in found],
                bar=lambda i, width: bar(found[i].top1 or 0, width),
            )
        )
    return blocks


def figures_rows(result: "Evaluation", beside_chance: bool = False) -> list[tuple[str, str]]:
    """The accuracies of an evaluation. beside_chance: and what guesses would reach."""
    figures = [("top-1", result.top1, result.interval), ("top-5", result.top5, result.top5_interval)]
    chance = result.chance if beside_chance else None
    guessed = ("", "") if chance is None else tuple(f", by chance {100 * fraction:.2g} %" for fraction in chance)
    rows = [
        (name, f"{rounding.with_interval(figure, interval, result.n)}{by_chance}")
        for (name, figure, interval), by_chance in zip(figures, guessed, strict=True)
        if interval
    ]
    if result.mean_average_precision is not None:
        rows.append(("mean average precision", rounding.percentage(result.mean_average_precision, result.n)))
    return rows


def classes(result: "Evaluation") -> Table:
    """The accuracy per class, the worst first."""
    # The best class can match only one of several labels, so there the ranking counts.
    ranked = result.mean_average_precision is not None
    said = "average precision" if ranked else "top-1"

    def figure(found: "ClassFigures") -> float:
        return (found.average_precision if ranked else found.top1) or 0.0

    # Of two that are equally bad the larger one hurts more.
    rows = sorted((each for each in result.per_class if each.n), key=lambda each: (figure(each), -each.n))
    title = f"{said.capitalize()} per class, the worst first"
    if len(rows) > MOST_CLASSES:
        rows, title = rows[:10] + rows[-10:], f"{said.capitalize()} per class: the ten worst and the ten best"
    columns = ("class", "records", said) if ranked else ("class", "records", said, "95 % interval")
    shown = [(each.name, f"{each.n:,}", *_class_figures(each, ranked)) for each in rows]
    return Table(title, columns, shown, bar=lambda i, width: bar(figure(rows[i]), width))


def heads_named(paths: Sequence[Path]) -> list[str]:
    """Short names: of the files, without the ending that all have; whole paths where these would be the same."""
    names = [path.name.removesuffix(".safetensors") for path in paths]
    return names if len(set(names)) == len(set(paths)) else [str(path) for path in paths]


def _records(result: "Evaluation", features: "FeatureSet") -> list[tuple[str, str]]:
    """How many records the figures are of, and what is missing."""
    n = features.split(result.split).n
    said = f"{result.n:,}" if n == result.n else f"{result.n:,} of {n:,}; the others have no label"
    if features.manifest.grouped_by is not None:
        said += ". Intervals take them as independent: for several of one person they are too narrow"
    rows = [("records", said)]
    missing = [each.name for each in result.per_class if not each.n]
    if missing:
        more = ", …" if len(missing) > MOST_NAMED else ""
        names = ", ".join(shortened(name) for name in missing[:MOST_NAMED])
        of = f"{len(missing):,} of {len(result.per_class):,}"
        rows.append(("classes without records", f"{of}, nothing is known of them: {names}{more}"))
    if result.calibration is not None:
        rows.append(("probabilities", _calibrated(result)))
    return rows


def _calibrated(result: "Evaluation") -> str:
    found = result.calibration
    assert found is not None
    mean, right, error, chance = (
        rounding.percentage(each, result.n, result.interval)
        for each in (found.probability, result.top1, found.error, found.by_chance)
    )
    bins = f"expected calibration error in {len(found.bins)} bins of one width {error}, by chance alone {chance}"
    return f"{mean} on average, where {right} are right; {bins}"


def _reliability(result: "Evaluation") -> Table:
    found = result.calibration
    assert found is not None
    rows, parts = [], []
    for each in found.bins:
        if each.right is None or each.probability is None:
            continue
        name = f"{100 * each.low:.0f}–{100 * each.high:.0f} %"
        right = rounding.accuracy(each.right, each.interval, each.n)
        rows.append((name, f"{each.n:,}", rounding.percentage(each.probability, 100), *right))
        parts.append(each.right)
    return Table(
        "How often the best class is right, by its probability (softmax of the scores)",
        ("probability", "records", "mean", "right", "95 % interval"),
        rows,
        bar=lambda i, width: bar(parts[i], width),
    )


def _confusions(result: "Evaluation") -> Table:
    assert result.confusions is not None
    names = [each.name for each in result.per_class]
    if len(names) > MOST_COLUMNS:
        return _largest(result)
    cells = {(each.label, each.predicted): each.n for each in result.confusions}
    numbered = max(map(len, names)) > 6
    columns = [str(i) if numbered else name for i, name in enumerate(names, 1)]
    told = [f"{i} {name}" if numbered else name for i, name in enumerate(names, 1)]
    return Table(
        "Confusions: a row for each label, a column for each class that is taken for it",
        ("label", *columns),
        [
            (said, *(f"{cells[name, other]:,}" if (name, other) in cells else "·" for other in names))
            for said, name in zip(told, names, strict=True)
        ],
    )


def _largest(result: "Evaluation") -> Table:
    assert result.confusions is not None
    sizes = {each.name: each.n for each in result.per_class}
    names = [each.name for each in result.per_class]
    told = dict(zip(names, told_apart(names, LONGEST), strict=True))
    wrong = sorted((each for each in result.confusions if each.label != each.predicted), key=lambda each: -each.n)
    return Table(
        f"The largest of {len(wrong):,} confusions",
        ("label", "taken for", "records", "of the label"),
        [
            (each.label, told[each.predicted], f"{each.n:,}", f"{100 * each.n / sizes[each.label]:.0f} %")
            for each in wrong[:MOST_CONFUSIONS]
        ],
        left=2,
    )


def _class_figures(found: "ClassFigures", ranked: bool) -> tuple[str, ...]:
    """What is shown of a class after its name and its records."""
    if ranked:
        precision = found.average_precision
        return ("–" if precision is None else rounding.percentage(precision, found.n),)
    return rounding.accuracy(found.top1, found.interval, found.n)


def _released(figure: float | None, interval: tuple[float, float], noise: float | None, n: int) -> str:
    by_noise = "" if noise is None else f"; the noise alone: {rounding.noise(noise)}"
    return rounding.with_interval(figure, interval, n, by_noise)


def _epsilon(card: Mapping[str, Any]) -> str:
    return rounding.epsilon(math.inf if card["epsilon"] is None else card["epsilon"])


# For programs


def cost_of(card: Mapping[str, Any]) -> dict[str, Any]:
    """What the head's own training claims."""
    return {name: card[name] for name in ("method", "claim", "epsilon", "delta", "adjacency", "unit")}


def figures_json(result: "Evaluation") -> dict[str, Any]:
    """The figures of an evaluation, for programs."""
    figures = asdict(result)
    figures["per_class"] = [{"class": each.pop("name"), **each} for each in figures["per_class"]]
    if result.confusions is not None:
        figures["confusions"] = [{"class": c.label, "predicted": c.predicted, "n": c.n} for c in result.confusions]
    return figures


def row_of(
    path: Path,
    card: Mapping[str, Any],
    features: "FeatureSet",
    result: "Evaluation | PrivateEvaluation",
    difference: "Difference | None" = None,
) -> dict[str, Any]:
    """The row of a head in --csv, by `COLUMNS`."""
    row = {"head": path, "features": features.folder, "split": result.split, "n": result.n, **cost_of(card)}
    row["epsilon"] = math.inf if card["epsilon"] is None else card["epsilon"]
    row |= _ends("top1", result.top1, result.interval) | _ends("top5", result.top5, result.top5_interval)
    if difference is not None:
        row |= _ends("difference", difference.gain, difference.interval)
    if calibration := getattr(result, "calibration", None):
        row["calibration_error"] = calibration.error
    row["mean_average_precision"] = getattr(result, "mean_average_precision", None)
    if not hasattr(result, "calibration"):
        row |= {"evaluation_epsilon": result.epsilon, "evaluation_delta": result.delta}
    return row


def as_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows on stdout, under a line with the names of the columns. What is not known is empty."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: printable(value) if isinstance(value, str) else value for name, value in row.items()})


def _ends(name: str, value: float | None, interval: tuple[float, float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
