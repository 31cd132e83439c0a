"""Makes the paper's Tables 2 to 4 and Figure 1 on other feature sets. Every cell is a training of the product.

    python -m bench.reproduction SET…
    python -m bench.reproduction SET… --results bench/results/cells.jsonl --out bench/tables/reproduction.md

The second line makes the project's own page.
"""

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import cells, paper
from bench.cells import Cell
from bench.sets import load
from dpfc_cli.extensions.plots.drawing import svg
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import factors, scaled
from dpfc_cli.privacy import accounting
from dpfc_cli.report.picture import Curves, Level, Picture, Series

ROWS = tuple(paper.TABLES["cifar10"])
ROW_NAMES = {f"{method}:{epochs}": (method, epochs) for method, epochs in ROWS}
PHASES = {
    "default": "Defaults",
    "tuned": "Options chosen on the test labels",
    "published": "As published, with the zCDP conversion; learning rate, λ and α chosen on the test labels",
    "conversion": "Defaults, the zCDP conversion of ε",
    "shared": "Defaults, the zCDP conversion, noise shared by classes and steps (not private)",
}
CHOSEN = ("tuned", "published")
"""The phases with a grid."""
GRID_SEED = 1000
BIAS = {"dp-newton": 0.2, "dp-fc": 0.2, "dp-adam": 1.0}
"""The value of the bias feature of each row: 1 is the paper's. The defaults of `dpfc train` are others by now."""
DOCS = Path(__file__).parents[1] / "docs"
Row = tuple[str, int]


def base(data: str, row: Row, epsilon: float | None, phase: str = "default") -> Cell:
    """The cell of a row at its defaults, or as published; seed 0."""
    method, epochs = row
    if phase == "published":
        steps = {"steps": epochs} if "steps" in METHODS[method].declared else {}
        preset = METHODS[method].taken({"as_published": True, **steps})
        return Cell(data, method, epsilon, options=tuple(preset.items()), conversion="zcdp" if epsilon else "exact")
    given = (("steps", epochs), ("bias_feature", BIAS[method])) if method in BIAS else ()
    return Cell(data, method, epsilon, options=given)


def grid(cell: Cell) -> list[Cell]:
    """The cell at every point of its method's grid."""
    method, facts = METHODS[cell.method], load(cell.data).facts
    assert cell.epsilon is not None
    found = accounting.zcdp_mu if cell.conversion == "zcdp" else accounting.mu_for
    mu = found(cell.epsilon, paper.delta_of(facts.n))
    points = (scaled(method, facts, mu, cell.given, point) for point in factors(method, cell.given))
    return [replace(cell, seed=GRID_SEED, options=tuple(point.items())) for point in points]


def picked(cell: Cell, results: dict[str, float]) -> Cell | None:
    """The best point of the grid. None if the grid is not complete."""
    points = grid(cell)
    if any(p.key not in results for p in points):
        return None
    return replace(max(points, key=lambda p: results[p.key]), seed=0)


def runs(cell: Cell, count: int) -> list[Cell]:
    """The runs of a cell. Without privacy nothing is random, so there is one."""
    return [replace(cell, seed=seed) for seed in range(count if cell.epsilon is not None else 1)]


def variant(cell: Cell, phase: str) -> Cell:
    """A default cell, changed for the table of a phase."""
    if cell.epsilon is None or phase in ("default", *CHOSEN):
        return cell
    return replace(cell, conversion="zcdp", noise="shared" if phase == "shared" else "independent")


def table(data: str, phase: str, results: dict[str, float], count: int) -> Iterator[str]:
    """The table of a phase in Markdown: mean ± standard deviation, or – where runs are missing; no row without any."""

    def figure(cell: Cell) -> str:
        best = picked(cell, results) if phase in CHOSEN and cell.epsilon is not None else variant(cell, phase)
        values = [results.get(run.key) for run in runs(best, count)] if best else []
        return cells.said([] if None in values else [value for value in values if value is not None])

    rows = {row: [figure(base(data, row, epsilon, phase)) for epsilon in paper.EPSILONS] for row in ROWS}
    # Without privacy most phases are one.
    return _table({row: found for row, found in rows.items() if any(each != "–" for each in found[1:])})


def papers(rows: Mapping[Row, Sequence[float | None]]) -> Iterator[str]:
    """The paper's own table."""
    return _table({row: ["≤ 20" if f is None else f"{f}" for f in found] for row, found in rows.items()})


def _table(rows: dict[Row, list[str]]) -> Iterator[str]:
    yield "| method | epochs | NP | " + " | ".join(f"{e:g}" for e in paper.EPSILONS if e) + " |"
    yield "| --- | --- |" + " --- |" * len(paper.EPSILONS)
    for (method, epochs), figures in rows.items():
        yield f"| {method} | {epochs} | {' | '.join(figures)} |"


def report(sets: list[str], results: dict[str, float], count: int, out: Path) -> None:
    """The document, from the results that exist."""
    told: list[str] = []
    shown: set[str] = set()
    for data in sets:
        d, name = load(data), Path(data).name
        told += [
            f"## {name}: {len(d.x):,} × {d.x.shape[1]}, {d.m} classes",
            "",
            f"![DP-FC against ε](figure-1-{name}.svg)",
        ]
        for phase, title in PHASES.items():
            found = list(table(data, phase, results, count))
            if len(found) > 2:
                told += ["", f"### {title}", "", *found]
                shown.add(phase)
        known = next((known for known in ("cifar100", "cifar10", "imagenet") if name.startswith(known)), None)
        for source, tables in (("ImageNet-1k", paper.IMAGENET_1K), ("ImageNet-21k", paper.TABLES)):
            if known in tables:
                title = f"### The paper's figures (ViT-B/16, pre-trained on {source}, all training records)"
                told += ["", title, "", *papers(tables[known])]
        told.append("")
        plot(data, known, results, count, out.parent / f"figure-1-{name}.svg")
    out.write_text("\n".join([*introduction(shown, count, out), *told]), "utf-8")


def introduction(shown: set[str], count: int, out: Path) -> Iterator[str]:
    """What the page says above its tables, which are those of the phases in `shown`."""

    def link(page: str) -> str:
        return os.path.relpath(DOCS / page, out.parent)

    yield "# Reproduction of the paper's tables"
    yield ""
    runs = f"mean ± standard deviation of {count} runs" if count > 1 else "of one run each"
    yield '`make reproduce FEATURES="SET…"` makes such a page of other sets.'
    yield f"[The conclusions]({link('conclusions.md')}) are from such tables of CIFAR-10 and CIFAR-100."
    yield f"All are top-1 test accuracies in percent, {runs}. The columns"
    yield "are ε, at δ = min(1e-5, 1/n). NP is without privacy: one run, because nothing is random, with the epochs of"
    yield "its row (`--steps 10 --non-private`). Every figure is a training by the product's own curator and methods,"
    yield "with noise from a seed. An epoch is one step: a full pass over the records. Defaults were fitted on CIFAR-10"
    yield "and CIFAR-100, among other sets: on a set that nobody has seen they may be worse."
    yield ""
    yield f"The tables differ from the paper [in a few points]({link('reproduction.md')}), but those that are as"
    yield "published. One point is left out here: the eigenvalues of DP-FC's Gram matrix are not shrunk. `dpfc train`"
    yield "shrinks them, and gains 0.5 points by it, on the average of eleven sets. The bias is the weight of a"
    yield "constant feature of 1 in dp-adam, and of 0.2 in dp-newton and dp-fc. Those of `dpfc train` are smaller by"
    yield "now: dp-adam gains up to 4 points by it here, and dp-fc hardly any"
    yield f"([measured]({link('accuracy.md')}#the-bias))."
    yield ""
    if shown & set(CHOSEN):
        yield (
            "Where options are chosen on the test labels, they are from a grid. In factors of the defaults it is: "
            + (
                "; ".join(
                    f"{m}: "
                    + ", ".join(f"{o} × {{{', '.join(f'{v:g}' for v in f)}}}" for o, f in METHODS[m].grid.items())
                    for m in dict.fromkeys(method for method, _ in ROWS)
                )
                + "."
            )
        )
        yield "The grid is run once with another seed, and its best point is chosen **on the test labels**. Nobody with"
        yield "private data can do that. Then it is run with the seeds of the other cells. NP, not tuned, may be lower."
        yield ""
    if "shared" in shown:
        yield "Where noise is shared by steps, dp-adam is not the paper's: its published code draws anew in each step."
        yield ""


def plot(data: str, known: str | None, results: dict[str, float], count: int, out: Path) -> None:
    """The paper's Figure 1: DP-FC against ε, with independent noise and with the shared noise of the published code.

    The error bars are one standard deviation of the runs.
    """
    epsilons = [e for e in paper.EPSILONS if e]
    lines = {"default": "DP-FC, independent noise", "shared": "DP-FC, shared noise (not private)"}
    series = []
    for phase, label in lines.items():
        points = []
        for epsilon in epsilons:
            wanted = runs(variant(base(data, ("dp-fc", 10), epsilon), phase), count)
            values = [results[c.key] / 100 for c in wanted if c.key in results]
            if len(values) == len(wanted):
                points.append((epsilon, statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
        if points:
            x, y, spread = (np.array(column) for column in zip(*points, strict=True))
            series.append(Series(label, *(column.tolist() for column in (x, y, y - spread, y + spread))))
    if known:
        figures: Any = paper.TABLES[known]["dp-fc", 10][1:]
        told = "the paper, ViT-B/16 (ImageNet-21k)"
        series.append(Series(told, epsilons, [figure / 100 for figure in figures], dashed=True))
    without = base(data, ("dp-fc", 10), None)
    levels = [Level("non-private, 10 steps", results[without.key] / 100)] if without.key in results else []
    curves = Curves(series, levels, "top-1 test accuracy")
    out.write_bytes(svg(Picture(f"{Path(data).name}, 10 steps", curves)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="folders of feature sets")
    parser.add_argument("--runs", type=int, default=5, help="trainings of each cell, with other noise (default: 5)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES, help="tables (default: all)")
    parser.add_argument("--rows", nargs="+", default=ROW_NAMES, choices=ROW_NAMES, help="METHOD:EPOCHS (default: all)")
    kept, page = (Path("bench-results") / f"reproduction.{ending}" for ending in ("jsonl", "md"))
    text = "keeps each training; what it has is not run again (default: %(default)s)"
    parser.add_argument("--results", type=Path, default=kept, help=text)
    parser.add_argument("--out", type=Path, default=page, help="the page, beside its figures (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.runs < 1:
        parser.error("--runs is the number of trainings of each cell: 1 or more")
    for number, phase in enumerate(args.phases, start=1):
        each = [base(data, ROW_NAMES[row], e, phase) for row in args.rows for data in args.sets for e in paper.EPSILONS]
        private = [cell for cell in each if cell.epsilon is not None]
        first = ", first the grid" if phase in CHOSEN else ""
        print(f"Table {number} of {len(args.phases)}: {PHASES[phase]}{first}", flush=True)
        if phase in CHOSEN:
            wanted = [point for cell in private for point in grid(cell)]
            results = cells.run(wanted, args.results, args.workers)
            wanted = [run for cell in private if (best := picked(cell, results)) for run in runs(best, args.runs)]
            wanted += [cell for cell in each if cell.epsilon is None]
        else:
            wanted = [run for cell in each for run in runs(variant(cell, phase), args.runs)]
        results = cells.run(wanted, args.results, args.workers)
        report(args.sets, results, args.runs, args.out)


if __name__ == "__main__":
    cells.start(main)
