"""Measures how far forecasts are from what then happens, for a table of docs/extensions/planning.md.

A forecast knows the public facts of a set and the records of another one, its stand-in. What then happened is in the
stored results: five private trainings on the set itself. Stand-ins are the other set of the same backbone, or for the
synthetic family another draw of the same family, with other classes.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from bench import cells, synthetic
from bench.cells import Cell
from dpfc_cli.extensions.importing.importing import import_features
from dpfc_cli.extensions.planning import forecast as forecasts
from dpfc_cli.features.reader import FeatureSet

RESULTS = Path("bench/results/forecasts.jsonl")
EPSILONS = (0.1, 1.0, 8.0)
SEEDS = 5
OTHER = "-other"
"""The name of another draw of a family ends so."""


@dataclass(frozen=True)
class Pair:
    """A set by its public facts, and its stand-in. classes_of_stand_in: how many that one has."""

    data: str
    records: int
    classes: int
    on: str
    classes_of_stand_in: int

    @property
    def fewer(self) -> bool:
        """Whether the stand-in has fewer classes."""
        return self.classes_of_stand_in < self.classes


_TEN, _HUNDRED = ("cifar10-vit-ti16", 10), ("cifar100-vit-ti16", 100)
PAIRS = (
    *(Pair(f"{_HUNDRED[0]}{name}", n, 100, *_TEN) for name, n in (("", 25_000), ("-5000", 5000), ("-1000", 1000))),
    *(Pair(f"{_TEN[0]}{name}", n, 10, *_HUNDRED) for name, n in (("", 50_000), ("-5000", 5000), ("-1000", 1000))),
    Pair("clinc150-minilm", 18_000, 150, "banking77-minilm", 77),
    Pair("banking77-minilm", 10_003, 77, "clinc150-minilm", 150),
    *(
        Pair(name, family.n, family.m, name + OTHER, family.m)
        for name, family in synthetic.FAMILY.items()
        if name not in ("most-classes", "wide")
    ),
)


@dataclass(frozen=True)
class Result:
    """A forecast of a pair at one ε: scores in percent, and what then happened."""

    pair: Pair
    epsilon: float
    scores: tuple[float, ...]
    then: tuple[float, ...]

    @property
    def error(self) -> float:
        """What was expected, less what then happened, in points."""
        return statistics.mean(self.scores) - statistics.mean(self.then)

    @property
    def inside(self) -> bool:
        """Whether what then happened, on average, lies in the interval."""
        low, high = forecasts.interval_of([score / 100 for score in self.scores])
        return low <= statistics.mean(self.then) / 100 <= high


def stand_in(name: str, folder: Path, work: Path) -> FeatureSet:
    """The stand-in of that name as a feature set in `work`. folder: where sets lie as arrays."""
    source = folder / name
    if name.endswith(OTHER):
        source = work / "arrays" / name
        source.mkdir(parents=True, exist_ok=True)
        for part, array in synthetic.draw(synthetic.FAMILY[name.removesuffix(OTHER)], seed=1).items():
            np.save(source / f"{part}.npy", array)
    classes = int(np.load(source / "train_y.npy").max()) + 1
    return import_features(source, work / "features" / name, classes=classes).features


def run(folder: Path, work: Path, results: Path) -> None:
    """Append the forecasts that are not there yet."""
    done = read(results)
    for pair in PAIRS:
        missing = [epsilon for epsilon in EPSILONS if (pair.data, pair.on, epsilon) not in done]
        if not missing:
            continue
        found = forecasts.forecast(
            records=pair.records,
            classes=pair.classes,
            on=stand_in(pair.on, folder, work),
            epsilons=missing,
        )
        with results.open("a") as file:
            for each in found.outlooks:
                row = {"data": pair.data, "on": pair.on, "epsilon": each.epsilon}
                file.write(json.dumps({**row, "scores": [round(100 * score, 2) for score in each.scores]}) + "\n")


def read(results: Path) -> dict[tuple[str, str, float], tuple[float, ...]]:
    """The scores of stored forecasts, by set, stand-in and ε."""
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {(row["data"], row["on"], row["epsilon"]): tuple(row["scores"]) for row in rows}


def compared(results: Path = RESULTS, happened: Path = cells.RESULTS) -> list[Result]:
    """Every stored forecast beside what then happened, the worst first."""
    found, then = read(results), cells.read(happened)
    made = [
        Result(
            pair,
            epsilon,
            found[pair.data, pair.on, epsilon],
            tuple(then[Cell(pair.data, "dp-whitened", epsilon, seed).key] for seed in range(SEEDS)),
        )
        for pair in PAIRS
        for epsilon in EPSILONS
        if (pair.data, pair.on, epsilon) in found
    ]
    return sorted(made, key=lambda each: -abs(each.error))


def said(results: Sequence[Result]) -> str:
    """What every forecast says of itself."""
    real = [each for each in results if not each.pair.on.endswith(OTHER)]
    alike, fewer = ([abs(each.error) for each in real if each.pair.fewer is is_] for is_ in (False, True))
    return (
        f"between real sets, in {len(real)} measured cases: {statistics.median(alike):.0f} points in the median and "
        f"{max(alike):.0f} at worst; if the stand-in has fewer classes, {statistics.median(fewer):.0f} and "
        f"{max(fewer):.0f}"
    )


def verdict(results: Sequence[Result]) -> str:
    """How often intervals hold what then happens, and how far off the step from one ε to the next is."""
    held = sum(each.inside for each in results)
    real = [each for each in results if not each.pair.on.endswith(OTHER)]
    drawn = [abs(each.error) for each in results if each.pair.on.endswith(OTHER)]
    errors = {(each.pair, each.epsilon): each.error for each in real}
    steps = [
        abs(errors[pair, high] - errors[pair, low])
        for pair in dict.fromkeys(each.pair for each in real)
        for low, high in pairwise(EPSILONS)
    ]
    return (
        f"{held} of {len(results)} intervals hold what then happened. Between real sets the points are off by "
        f"{statistics.median(map(abs, errors.values())):.1f} in the median, and the steps from one ε to the next by "
        f"{statistics.median(steps):.1f}. For made-up sets, whose stand-in is another draw of their kind, the points "
        f"are off by {statistics.median(drawn):.1f} in the median and {max(drawn):.1f} at worst."
    )


def table(results: Sequence[Result]) -> Iterator[str]:
    """Markdown: a row for each pair of real sets, the worst first."""
    yield f"| records to be trained on | stand-in | {' | '.join(f'ε = {e:g}' for e in EPSILONS)} |"
    yield "| --- " * (len(EPSILONS) + 2) + "|"
    for pair in dict.fromkeys(each.pair for each in results if not each.pair.on.endswith(OTHER)):
        by = {each.epsilon: each for each in results if each.pair == pair}
        shown = [_cell(by[epsilon]) for epsilon in EPSILONS]
        yield f"| {pair.data} | {pair.on} | {' | '.join(shown)} |"


def _cell(each: Result) -> str:
    inside = "" if each.inside else " *"
    return f"{statistics.mean(each.scores):.1f} → {statistics.mean(each.then):.1f} ({each.error:+.1f}){inside}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the sets lie as folders of arrays")
    parser.add_argument(
        "--work", type=Path, default=Path("bench-results/forecast"), help="for feature sets that are made of them"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    run(given.folder, given.work, given.results)
    results = compared(given.results)
    print("\n".join(table(results)), verdict(results), said(results), sep="\n\n")


if __name__ == "__main__":
    main()
