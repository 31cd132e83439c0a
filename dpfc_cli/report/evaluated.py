"""What is said of evaluations: documents, and rows of CSV."""

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli import rounding
from dpfc_cli.errors import counted
from dpfc_cli.evaluation.statistics import Measure
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger import caps
from dpfc_cli.records.card import Card
from dpfc_cli.records.figures import Figures, Measured, ReleasedSubgroup
from dpfc_cli.records.statement import SEEDED, brief, claimed
from dpfc_cli.report.account import released_before
from dpfc_cli.show.document import Block, Document, Rows, Section, Table, Words, shortened, told_apart
from dpfc_cli.structs import Json, encoded

if TYPE_CHECKING:
    from dpfc_cli.evaluation.exact import Comparison, Evaluation
    from dpfc_cli.evaluation.private import PrivateEvaluation

MOST_CLASSES = 100
"""Of more classes than this only the ten worst and the ten best are shown. --json has all."""
WORST = 5
"""So many classes are in a short rendering."""
MOST_COLUMNS = 12
"""The confusion matrix of more classes is no table. Then the largest confusions are shown."""
MOST_CONFUSIONS = 10
MOST_NAMED = 10
"""Of more classes without a record than this the first are named."""
MOST_PAIRED = 5
"""Of more heads than this a short rendering has no differences to the first."""
LONGEST = 24
"""Characters of a name in a column that cannot be broken."""
COLUMNS = (
    *("head", "features", "split", "method", "claim", "unit", "adjacency", "epsilon", "delta", "n"),
    *("seed", "seeded_epsilon", "seeded_delta"),
    *("top1", "top1_low", "top1_high", "top5", "top5_low", "top5_high", "mean_average_precision"),
    *("auroc", "auroc_low", "auroc_high", "balanced_accuracy", "balanced_accuracy_low", "balanced_accuracy_high"),
    *("calibration_error", "difference", "difference_low", "difference_high"),
    *("seeds", "seeds_top1", "seeds_top1_deviation"),
    *("evaluation_epsilon", "evaluation_delta"),
)
"""Of --csv: one row for each head. They are always the same, so files can be joined."""
SEEDS = ("head", "seeds", "epsilon", "top-1, mean", "deviation")
EXACT = "Exact figures, not protected"
_TOO_WIDE = (
    "Where there is a dash the noise says nothing about the class: an interval is wider than half of all values. A "
    "larger epsilon or more records would help."
)
_CHOICE = "The best of several heads on the same records looks better than it is. Choose it on other records."
_NO_CLASSES = (
    "Figures per class are not released: with this epsilon their noise is larger than what the choice of the records "
    "changes."
)


def one(path: Path, card: Card, features: FeatureSet, result: "Evaluation", before: Sequence[Figures] = ()) -> Document:
    """The exact figures of a head. before: what evaluations have released of it."""
    claim, *more = brief(card)
    rest = Rows([("method", card.method), *more], full=True)
    sections = [Section("", [*warned(result.warnings), *exact(result, features, [claim]), rest])]
    if result.subgroups is not None:
        others = result.n - sum(each.n for each in result.subgroups.values())
        sections.append(Section("", [subgroups(result.subgroups, "records", others)]))
    if not result.private_split:
        sections.append(Section("", [against_the_rest(result)], full=result.threshold is None))
    if result.confusions is not None:
        sections.append(Section("", [_confusions(result)], full=True))
    if result.calibration is not None:
        sections.append(Section("", _reliability(result), full=True))
    sections.append(Section("", released_before(before, full=False)))
    values = {"head": str(path), "features": str(features.folder), **cost_of(card), **figures_json(result)}
    values["released"] = [{"figures": encoded(each), "sha256": each.sha256} for each in before]
    [name] = heads_named([path])
    return Document(
        title=f"{EXACT}: {name} on the {result.split} split of {features.name}", sections=sections, values=values
    )


def several(paths: Sequence[Path], cards: Sequence[Card], features: FeatureSet, found: "Comparison") -> Document:
    names, results = heads_named(paths), found.evaluations
    ranked, n = results[0].mean_average_precision is not None, results[0].n
    rows, values = [], []
    for name, path, card, each, gain in zip(names, paths, cards, results, (None, *found.differences), strict=True):
        figures = rounding.percentage(each.top1, n, each.interval, more=1), rounding.interval(each.interval, n)
        rows.append([name, card.method, *claimed(card.epsilon, card.delta, card.seeded), *figures])
        if each.mean_average_precision is not None:
            rows[-1].append(rounding.percentage(each.mean_average_precision, each.n))
        rows[-1].append("–" if each.auroc is None else rounding.area(each.auroc.value, each.auroc.interval, n)[0])
        difference = {"difference": None if gain is None else asdict(gain)}
        values.append({"head": str(path), **cost_of(card), **figures_json(each), **difference})
    columns = [
        "head",
        "method",
        "delta",
        "epsilon",
        "top-1",
        "95 % interval",
        *(["mean AP"] if ranked else []),
        "AUROC",
    ]
    pairs = [
        (name, *rounding.points(gain.gain, gain.interval, n), f"{gain.only_this:,}", f"{gain.only_other:,}")
        for name, gain in zip(names[1:], found.differences, strict=True)
    ]
    beside = ("head", "difference", "95 % interval", "only it is right", "only the other")
    seeds, means = [], []
    for held in but_for_the_seed(cards):
        if len(held) > 1:
            top1 = [results[i].top1 for i in held]
            mean, deviation = statistics.mean(top1), statistics.stdev(top1)
            at = cards[held[0]].seeded
            assert at is not None
            seeds.append({"heads": [str(paths[i]) for i in held], "top1": mean, "top1_deviation": deviation})
            shown = (rounding.percentage(each, n, results[held[0]].interval, more=1) for each in (mean, deviation))
            means.append((f"{names[held[0]]} …", str(len(held)), rounding.epsilon(at.epsilon), *shown))
    warnings = []
    for warning in found.warnings:
        about = [name for name, result in zip(names, results, strict=True) if warning in result.warnings]
        warnings.append(warning if len(about) == len(names) else f"{', '.join(about)}: {warning}")
    blocks = [
        *warned(warnings),
        *([Table(SEEDS, means, title="Heads that differ in their seed alone")] if means else []),
        Table(columns, rows, left=3, title="Each head" if means else "", more=("AUROC",)),
        *([Words(SEEDED)] if any(card.seeded for card in cards) else []),
        Table(
            *(beside, pairs),
            title=f"Top-1 beside that of {names[0]}, in points: paired, on the same records",
            full=len(names) > MOST_PAIRED,
        ),
        Words(_CHOICE),
    ]
    return Document(
        title=f"{EXACT}: {counted(len(names), 'head')} on the {results[0].split} split of {features.name} "
        f"({counted(n, 'record')})",
        sections=[Section("", blocks)],
        values={"features": str(features.folder), "heads": values, "seeds": seeds, "warnings": warnings},
    )


def private(path: Path, card: Card, features: FeatureSet, result: "PrivateEvaluation") -> Document:
    """What was released, and what was spent for it. Nothing else of the records is shown."""
    figures, spent, left = result.figures, result.spent.epsilon(result.delta), caps.left(result.spent, result.delta)
    bound = "" if result.spent.exact else " (an upper bound)"
    whom = f"for one {result.spent.unit}, with all trainings of the same people"
    total = f"{rounding.cost(spent, result.delta)}{bound} {whom}"
    [name] = heads_named([path])
    paid = f"{rounding.cost(result.epsilon, result.delta)} for one {result.unit}"
    return Document(
        title=f"Released with {paid}: {name} on the {result.split} split of {features.name}",
        sections=[Section("", [*warned(result.warnings), *released(figures, [("spent so far", total)])])],
        values={
            **{"head": str(path), "features": str(features.folder), **cost_of(card)},
            **{"figures": encoded(figures), "sha256": result.sha256},
            **{"warnings": result.warnings, "spent": spent, "left": None if left is None else left[0]},
        },
    )


def kept(path: Path, features: FeatureSet, figures: Sequence[Figures]) -> Document:
    """What evaluations have released of a head, the newest first: the ledger has kept it."""
    [name] = heads_named([path])
    sections = []
    for each in reversed(figures):
        paid = rounding.cost(each.epsilon, each.delta)
        said = f"Released with {paid}: {name} on the {each.split} split of {each.features}"
        sections.append(Section(said, released(each)))
    return Document(
        title="",
        sections=sections or [Section("", [Words(f"No evaluation with an epsilon has released anything of {name}.")])],
        values={
            **{"head": str(path), "features": str(features.folder), "warnings": []},
            "released": [{"figures": encoded(each), "sha256": each.sha256} for each in figures],
        },
    )


def released(figures: Figures, more: Sequence[tuple[str, str]] = ()) -> list[Block]:
    """Figures of a private evaluation. more: facts beside them."""
    n, unit = figures.n, figures.unit
    found = [("top-1", figures.top1, figures.interval if figures.tells_accuracy else None)]
    found.append(("top-5", figures.top5, figures.top5_interval))
    if (balanced := figures.balanced_accuracy) is not None:
        found.append(("balanced accuracy", balanced.value, balanced.interval))
    rows = [(name, rounding.with_interval(value, ends, n)) for name, value, ends in found if ends is not None]
    rows += (
        []
        if figures.auroc is None
        else [("AUROC, mean of classes", rounding.area_with_interval(figures.auroc.value, figures.auroc.interval, n))]
    )
    rows.append((f"{unit}s, about", f"{n:,}"))
    rows.append(("this cost", f"{rounding.cost(figures.epsilon, figures.delta)} for one {unit} of that split"))
    blocks: list[Block] = [Rows([*rows, *more])]
    if figures.per_class is not None:
        shown = [(each.name, each.n, each.top1, each.interval) for each in figures.per_class]
        blocks.append(_by_class(shown, "top-1", f"{unit}s, about"))
    elif figures.tells_accuracy:
        blocks.append(Words(_NO_CLASSES))
    if figures.subgroups is not None:
        named = {f"{each.column} = {each.value}": each for each in figures.subgroups}
        blocks.append(subgroups(named, f"{unit}s, about"))
    if figures.ranks is not None:
        at = "" if figures.threshold is None else f", at a probability of {figures.threshold:g}"
        ranks = [
            (each.name, each.n, n - each.n, each.sensitivity, each.specificity, each.auroc) for each in figures.ranks
        ]
        blocks.append(_against_the_rest(ranks, n, at))
        if any(each.auroc.value is None for each in figures.ranks):
            blocks.append(Words(_TOO_WIDE))
    return blocks


def exact(result: "Evaluation", features: FeatureSet, more: Sequence[tuple[str, str]] = ()) -> list[Block]:
    """The accuracies, beside what guesses would reach, and the classes. more: facts beside them."""
    return [Rows([*figures_rows(result), *_records(result, features), *more]), classes(result)]


def warned(warnings: Sequence[str]) -> list[Block]:
    return [Words(warning, strong=True) for warning in warnings]


def figures_rows(result: "Evaluation") -> list[tuple[str, str]]:
    """The accuracies of an evaluation, and what guesses would reach."""
    figures = [("top-1", result.top1, result.interval), ("top-5", result.top5, result.top5_interval)]
    rows = [(name, rounding.with_interval(figure, ends, result.n)) for name, figure, ends in figures if ends]
    if result.mean_average_precision is not None:
        rows.append(("mean average precision", rounding.percentage(result.mean_average_precision, result.n)))
    if (found := result.balanced_accuracy) is not None:
        rows.append(("balanced accuracy", rounding.with_interval(found.value, found.interval, result.n)))
    if result.auroc is not None:
        rows.append(
            ("AUROC, mean of classes", rounding.area_with_interval(result.auroc.value, result.auroc.interval, result.n))
        )
    if result.chance is not None:
        largest = max(result.per_class, key=lambda each: each.n)
        always = rounding.percentage(largest.n / result.n, result.n)
        by_chance = " and ".join(f"{100 * part:.2g} %" for part in result.chance[: 1 + (result.top5 is not None)])
        rows.append(
            ("guesses reach", f"{by_chance} by chance; {always} as '{shortened(largest.name)}', the largest class")
        )
    return rows


def classes(result: "Evaluation") -> Table:
    """The accuracy per class, the worst first, and what each is taken for."""
    # The best class can match only one of several labels, so there the ranking counts.
    if result.mean_average_precision is not None:
        found = [(each.name, each.n, each.average_precision, None) for each in result.per_class if each.n]
        return _by_class(found, "average precision", "records")
    taken: dict[str, str] = {}
    for cell in sorted(result.confusions or (), key=lambda cell: cell.n):
        if cell.label != cell.predicted:
            taken[cell.label] = f"{shortened(cell.predicted, LONGEST)} ({cell.n:,})"
    shown = [(each.name, each.n, each.top1, each.interval) for each in result.per_class if each.n]
    return _by_class(shown, "top-1", "records", None if result.confusions is None else taken)


def against_the_rest(result: "Evaluation") -> Table:
    """How well each class is told from the others, the worst first."""
    several = result.mean_average_precision is not None
    at = f"at a probability of {result.threshold or 0.5:g}" if several or result.threshold else "as the head decides"
    found = [
        (each.name, each.n, result.n - each.n, each.sensitivity, each.specificity, each.auroc)
        for each in result.per_class
    ]
    return _against_the_rest(found, result.n, f", {at}")


def subgroups(found: "Mapping[str, Evaluation | ReleasedSubgroup]", counted_as: str, rest: int = 0) -> Table:
    """How good the head is on the records with each value of a column. rest: how many have none of these values."""
    rows = []
    for value, each in found.items():
        top1 = None if each.top1 is None else rounding.with_interval(each.top1, each.interval, each.n)
        area = each.auroc and rounding.area_with_interval(each.auroc.value, each.auroc.interval, each.n)
        rows.append((value, f"{each.n:,}", top1 or "–", area or "–"))
    if rest:
        rows.append(("none of these", f"{rest:,}", "–", "–"))
    return Table(("subgroup", counted_as, "top-1", "AUROC, mean of classes"), rows, title="Each subgroup")


Shown = Measure | Measured | None


def _against_the_rest(found: Sequence[tuple[str, int, int, Shown, Shown, Shown]], n: int, at: str) -> Table:
    """A table of (name, records, others, sensitivity, specificity, AUROC) per class, the worst first."""
    rows = []
    for name, own, others, *rates, auroc in sorted(found, key=lambda each: (each[-1] and each[-1].value) or 2.0):
        counts = zip(rates, (own, others), strict=True)
        said = [None if of is None else rounding.accuracy(of.value, of.interval, m) for of, m in counts]
        said.append(None if auroc is None else rounding.area(auroc.value, auroc.interval, n))
        rows.append((name, *("–" if each is None else f"{each[0]} ({each[1]})" for each in said)))
    kept = [i for i in range(4) if i in (0, 3) or any(row[i] != "–" for row in rows)]
    columns, *shown = ([row[i] for i in kept] for row in (("class", "sensitivity", "specificity", "AUROC"), *rows))
    return Table(columns, shown, title=f"Each class against the rest{at} (95 % intervals)")


def _by_class(
    found: Sequence[tuple[str, int, float | None, tuple[float, float] | None]],
    figure: str,
    counted_as: str,
    taken: Mapping[str, str] | None = None,
) -> Table:
    """A table of (name, records, figure, interval) per class, the worst first. taken: what each is taken for."""
    # Of two that are equally bad the larger one hurts more.
    rows = sorted(found, key=lambda row: (row[2] or 0.0, -row[1]))
    title = f"{figure.capitalize()} per class, the worst first"
    if len(rows) > MOST_CLASSES:
        title = f"{figure.capitalize()} per class: the ten worst and the ten best of {len(rows):,}"
        rows = rows[:10] + rows[-10:]
    ends_of = ["95 % interval"] if figure == "top-1" else []
    columns = ["class", *([] if taken is None else ["mostly taken for"]), counted_as, figure, *ends_of]
    shown = []
    for name, n, value, ends in rows:
        if ends_of:
            figures = [*rounding.accuracy(value, ends, n)]
        else:
            figures = ["–" if value is None else rounding.percentage(value, n)]
        shown.append((name, *([] if taken is None else [taken.get(name, "–")]), f"{n:,}", *figures))
    return Table(columns, shown, left=1 if taken is None else 2, title=title, few=WORST)


def heads_named(paths: Sequence[Path]) -> list[str]:
    """Short names: of the files, without the ending that all have; whole paths where these would be the same."""
    names = [str(path) if str(path).startswith("hf:") else path.name.removesuffix(".safetensors") for path in paths]
    return names if len(set(names)) == len(set(paths)) else [str(path) for path in paths]


def _records(result: "Evaluation", features: FeatureSet) -> list[tuple[str, str]]:
    n = features.split(result.split).n
    said = f"{result.n:,}" if n == result.n else f"{result.n:,} of {n:,}; the rest are null records or have no label"
    rows = [("records", said)]
    if features.manifest.grouped_by is not None:
        rows.append(("intervals", "for persons: as wide as if all records of one were equal"))
    missing = [each.name for each in result.per_class if not each.n]
    if missing:
        more = ", …" if len(missing) > MOST_NAMED else ""
        names = ", ".join(shortened(name) for name in missing[:MOST_NAMED])
        of = f"{len(missing):,} of {len(result.per_class):,}"
        rows.append(("classes without records", f"{of}, nothing is known of them: {names}{more}"))
    return rows


def _reliability(result: "Evaluation") -> list[Block]:
    found = result.calibration
    assert found is not None
    mean, right, error, chance = (
        rounding.percentage(each, result.n, result.interval)
        for each in (found.probability, result.top1, found.error, found.by_chance)
    )
    bins = f"expected calibration error in {len(found.bins)} bins of one width {error}, by chance alone {chance}"
    facts = Rows([("probabilities", f"{mean} on average, where {right} are right; {bins}")])
    rows = []
    for each in found.bins:
        if each.right is None or each.probability is None:
            continue
        name = f"{100 * each.low:.0f}–{100 * each.high:.0f} %"
        figures = rounding.accuracy(each.right, each.interval, each.n)
        rows.append((name, f"{each.n:,}", rounding.percentage(each.probability, 100), *figures))
    columns = ("probability", "records", "mean", "right", "95 % interval")
    title = "How often the best class is right, by its probability (softmax of the scores)"
    table = Table(columns, rows, title=title)
    return [facts, table]


def _confusions(result: "Evaluation") -> Table:
    assert result.confusions is not None
    names = [each.name for each in result.per_class]
    if len(names) > MOST_COLUMNS:
        return _largest(result)
    cells = {(each.label, each.predicted): each.n for each in result.confusions}
    numbered = max(map(len, names)) > 6
    columns = [str(i) if numbered else name for i, name in enumerate(names, 1)]
    told = [f"{i} {name}" if numbered else name for i, name in enumerate(names, 1)]
    rows = [
        (said, *(f"{cells[name, other]:,}" if (name, other) in cells else "·" for other in names))
        for said, name in zip(told, names, strict=True)
    ]
    title = "Confusions: a row for each label, a column for each class that is taken for it"
    return Table(("label", *columns), rows, title=title)


def _largest(result: "Evaluation") -> Table:
    assert result.confusions is not None
    sizes = {each.name: each.n for each in result.per_class}
    names = [each.name for each in result.per_class]
    told = dict(zip(names, told_apart(names, LONGEST), strict=True))
    wrong = sorted((each for each in result.confusions if each.label != each.predicted), key=lambda each: -each.n)
    rows = [
        (each.label, told[each.predicted], f"{each.n:,}", f"{100 * each.n / sizes[each.label]:.0f} %")
        for each in wrong[:MOST_CONFUSIONS]
    ]
    columns = ("label", "taken for", "records", "of the label")
    return Table(columns, rows, left=2, title=f"The largest of {len(wrong):,} confusions")


def but_for_the_seed(cards: Sequence[Card]) -> list[list[int]]:
    """The places of the heads that differ in their seed alone, one of each seed; each other head by itself."""
    found: dict[str, dict[int | None, int]] = {}
    for i, card in enumerate(cards):
        # How far a start was trusted depends on the noise.
        start = card.public_head and card.public_head.sha256
        setting = [card.method, card.options, card.plan, card.facts, card.adjacency, card.features]
        worth = i if card.seeded is None else (card.seeded.epsilon, card.seeded.delta)
        alike = encoded([setting, card.parts, start, worth])
        seeds = found.setdefault(json.dumps(alike, sort_keys=True), {})
        # Heads of one seed are equal.
        seeds.setdefault(None if card.seeded is None else card.seeded.seed, i)
    return [list(seeds.values()) for seeds in found.values()]


# For programs

_COST = ("method", "claim", "epsilon", "delta", "adjacency", "unit")


def cost_of(card: Card) -> dict[str, Json]:
    seeded = {} if card.seeded is None else {"seeded": encoded(card.seeded)}
    return {name: getattr(card, name) for name in _COST} | seeded


def figures_json(result: "Evaluation") -> dict[str, Json]:
    figures = asdict(result)
    if result.subgroups is not None:
        figures["subgroups"] = {value: figures_json(each) for value, each in result.subgroups.items()}
    figures["per_class"] = [{"class": each.pop("name"), **each} for each in figures["per_class"]]
    if result.confusions is not None:
        figures["confusions"] = [{"class": c.label, "predicted": c.predicted, "n": c.n} for c in result.confusions]
    return figures


def rows(values: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """What programs get of an evaluation as a row for each head."""
    groups = {path: group for group in values.get("seeds", ()) for path in group["heads"]}
    for head in values.get("heads", [values]):
        found, gain = head.get("figures", head), head.get("difference")
        row = {**found, **head, "features": values["features"]}
        row["epsilon"] = math.inf if head["epsilon"] is None else head["epsilon"]
        row |= {name if name == "seed" else f"seeded_{name}": said for name, said in head.get("seeded", {}).items()}
        row |= _ends("top1", found["interval"]) | _ends("top5", found["top5_interval"])
        for name in ("auroc", "balanced_accuracy"):
            if (measure := found.get(name)) is not None:
                row |= {name: measure["value"], **_ends(name, measure["interval"])}
        if (group := groups.get(head["head"])) is not None:
            row |= {"seeds": len(group["heads"]), "seeds_top1": group["top1"]}
            row["seeds_top1_deviation"] = group["top1_deviation"]
        if gain is not None:
            row |= {"difference": gain["gain"], **_ends("difference", gain["interval"])}
        if found.get("calibration") is not None:
            row["calibration_error"] = found["calibration"]["error"]
        if found is not head:
            row |= {f"evaluation_{name}": found[name] for name in ("epsilon", "delta")}
        yield row


def _ends(name: str, interval: tuple[float, float] | None) -> dict[str, Json]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}
