"""Compares the default method with the paper's methods: `make bench-accuracy`.

It writes bench/tables/accuracy.md, and prints the table of docs/accuracy.md.

It is one table of feature sets × methods × ε × seeds. The default is untuned. The paper's methods also appear tuned,
with independent noise, exact accounting and the paper's number of steps. For each ε they have the learning rate,
damping and clipping norms that did best on the test labels:

1. the method's grid, with one seed;
2. at the best point of the grid two other norms for gradients, and features that are clipped instead of normalised;
3. the three best of all these with one more seed;
4. the best of the three with the seeds of the table.

Budget split, bias feature and loss are not tuned. Results are kept in a file and never computed twice. So a run that
was stopped continues, and a further set, method or seed costs only its own cells.
"""

import argparse
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench import cells, reproduction, synthetic
from bench.cells import Cell
from bench.sets import load
from dpfc_cli.methods import METHODS

EPSILONS = (0.05, 0.1, 0.5, 1.0, 8.0)
UNTUNED = ("dp-whitened", "dp-fc", "dp-ls")
TUNED = ("dp-fc:10", "dp-ls:1", "dp-adam:10")
SIMULATED = ("dp-whitened", "dp-fc")
"""Methods that are simulated (see `bench.simulation`)."""
BASELINES = ("dp-whitened", "dp-ls")
"""The non-private baselines. The better one shows what is possible. They take minutes; an optimum may take hours."""
FINALISTS, FINAL_SEEDS = 3, 2
"""How many of the best settings are tried with how many seeds. With one seed, the luckiest would be picked."""
GRADIENT_CLIPS = (0.4, 2.5)
"""Factors of the default, tried at the best point of the grid. The learning rate is divided by them."""


def untuned(data: str, row: str, epsilon: float | None) -> Cell:
    """The cell of a method at its defaults."""
    return _simulated(Cell(data, row, epsilon))


def middle(data: str, row: str, epsilon: float) -> Cell:
    """The cell in the middle of the grid of a tuned row, METHOD:STEPS."""
    method, _, steps = row.partition(":")
    return _simulated(reproduction.base(data, (method, int(steps)), epsilon))


def _simulated(cell: Cell) -> Cell:
    return replace(cell, variant="simulated") if cell.method in SIMULATED and cell.epsilon is not None else cell


def others(best: Cell) -> list[Cell]:
    """The best cell of a grid, with each of the other norms for clipping gradients and features."""
    made: list[dict[str, float]] = []
    method, data = METHODS[best.method], load(best.data)
    if "gradient_clip" in method.options.__dataclass_fields__:
        default, rate = method.defaults(data.facts, 1.0, {}), best.given["learning_rate"]
        for factor in GRADIENT_CLIPS:
            # The length of a step is the learning rate times the norm, except in DP-Adam.
            scaled = {"gradient_clip": default.gradient_clip * factor}
            made.append(scaled if best.method == "dp-adam" else {**scaled, "learning_rate": rate / factor})
    made.append({"feature_clip": float(np.median(np.linalg.norm(data.x.astype(np.float32), axis=1)))})
    rounded = ({name: float(f"{value:.4g}") for name, value in options.items()} for options in made)
    return [replace(best, options=tuple({**best.given, **options}.items())) for options in rounded]


def tune(
    sets: Sequence[str], rows: Sequence[str], epsilons: Sequence[float], seeds: int, done: dict[str, float]
) -> Iterator[list[Cell]]:
    """The cells of a tuned table, in stages. `done` must have the results of one stage before the next is asked for."""
    start = [middle(s, r, e) for s in sets for r in rows for e in epsilons]
    yield [point for cell in start for point in reproduction.grid(cell)]
    yield [other for cell in start for other in _tried(cell, done)]
    yield [again for cell in start for each in finalists(cell, done) for again in _again(each)]
    yield [replace(picked(cell, done), seed=seed) for seed in range(seeds) for cell in start]


def _tried(cell: Cell, done: dict[str, float]) -> list[Cell]:
    """The grid of a cell, and its best point with the other norms. KeyError if the grid is not complete."""
    points = reproduction.grid(cell)
    return [*points, *others(max(points, key=lambda c: done[c.key]))]


def finalists(cell: Cell, done: dict[str, float]) -> list[Cell]:
    """The best of all cells that were tried with one seed, best first. KeyError if one is missing."""
    return sorted(_tried(cell, done), key=lambda c: -done[c.key])[:FINALISTS]


def _again(cell: Cell) -> list[Cell]:
    return [replace(cell, seed=cell.seed + i) for i in range(FINAL_SEEDS)]


def picked(cell: Cell, done: dict[str, float]) -> Cell:
    """The finalist with the best mean, at seed 0. KeyError if one is missing."""
    best = max(finalists(cell, done), key=lambda c: statistics.mean(done[again.key] for again in _again(c)))
    return replace(best, seed=0)


@dataclass(frozen=True)
class Wanted:
    """What a table shows: sets, untuned rows (the default first), tuned rows (METHOD:STEPS), ε, and number of seeds."""

    sets: Sequence[str]
    rows: Sequence[str]
    tuned: Sequence[str]
    epsilons: Sequence[float]
    seeds: int


def table(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """Markdown: mean ± standard deviation, and the lead of the first row over the best other one, ± standard error."""
    yield f"| | {' | '.join(f'ε = {e:g}' for e in wanted.epsilons)} |"
    yield "| --- " * (len(wanted.epsilons) + 1) + "|"
    for data in wanted.sets:
        yield f"| **{Path(data).name}**, non-private {_baseline(data, done):.1f} |" + " |" * len(wanted.epsilons)
        found = {
            row: [_values(untuned(data, row, e), wanted.seeds, done) for e in wanted.epsilons] for row in wanted.rows
        }
        rivals = {
            f"{row}, tuned": [_tuned(data, row, e, wanted.seeds, done) for e in wanted.epsilons] for row in wanted.tuned
        }
        for name, row in {**found, **rivals}.items():
            yield f"| {name} | {' | '.join(map(cells.said, row))} |"
        if wanted.tuned:
            untuned_rivals = [found[row] for row in wanted.rows[1:] if row in METHODS]
            pairs = zip(found[wanted.rows[0]], *rivals.values(), *untuned_rivals, strict=True)
            yield f"| {wanted.rows[0]}'s lead | {' | '.join(_shown(_lead(first, best)) for first, *best in pairs)} |"


def _leads(wanted: Wanted, data: str, done: dict[str, float]) -> list[tuple[float, float] | None]:
    """At each ε, the lead of the default on a set."""
    found = []
    for epsilon in wanted.epsilons:
        own = _values(untuned(data, UNTUNED[0], epsilon), wanted.seeds, done)
        rivals = [_values(untuned(data, row, epsilon), wanted.seeds, done) for row in wanted.rows[1:] if row in METHODS]
        found.append(_lead(own, rivals + [_tuned(data, row, epsilon, wanted.seeds, done) for row in wanted.tuned]))
    return found


def summary(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """Markdown: what the default reaches, and its lead over the best of the other rows."""
    yield f"| set | {' | '.join(f'ε = {e:g}' for e in wanted.epsilons)} | non-private |"
    yield "| --- " * (len(wanted.epsilons) + 2) + "|"
    for data in wanted.sets:
        own = [_values(untuned(data, UNTUNED[0], e), wanted.seeds, done) for e in wanted.epsilons]
        pairs = zip(own, _leads(wanted, data, done), strict=True)
        reached = [
            f"{statistics.mean(values):.1f} ({_shown(lead).partition(' ')[0]})" if values else "–"
            for values, lead in pairs
        ]
        yield f"| {Path(data).name} | {' | '.join(reached)} | {_baseline(data, done):.1f} |"


def verdict(wanted: Wanted, done: dict[str, float]) -> str:
    """How often the default wins, and how far the searches of its rivals went."""
    leads = [lead for data in wanted.sets for lead in _leads(wanted, data, done) if lead is not None]
    edges = [
        _at_edge(middle(data, row, epsilon), done)
        for data in wanted.sets
        for epsilon in wanted.epsilons
        for row in wanted.tuned
    ]
    won, lost = (sum(sign * gain > error for gain, error in leads) for sign in (1, -1))
    return (
        f"Of {len(leads)} cells the default wins {won} by more than one standard error and loses {lost}. In "
        f"{sum(edges)} of {len(edges)} searches the best point lies at the edge of its grid."
    )


def _at_edge(cell: Cell, done: dict[str, float]) -> bool:
    best = reproduction.picked(cell, done)
    if best is None:
        return False
    points = [point.given for point in reproduction.grid(cell)]
    searched = set(best.given) - set(cell.given)
    return any(best.given[o] in (min(p[o] for p in points), max(p[o] for p in points)) for o in searched)


def report(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """The document, from the results that exist."""
    yield from (
        "# The default beside the paper's methods",
        "",
        "docs/accuracy.md says what the rows are, and what follows from them. The figures are top-1 test accuracies",
        f"in percent: mean ± standard deviation of {wanted.seeds} runs.",
        "",
        verdict(wanted, done),
        "",
        *table(wanted, done),
        "",
        "## The made-up sets",
        "",
        "n training records, d dimensions, m classes, 4,000 test records (`bench/synthetic.py`). Each class is",
        "normal around its mean. *decay*: eigenvalue k of the covariance is k to the power of minus this.",
        "*separation*: how far class means are from their centre, in standard deviations. *offset*: the part of the",
        "records' mean square that is their mean's.",
        "",
        *made_up(),
    )


def made_up() -> Iterator[str]:
    yield "| set | n | d | m | decay | separation | offset | other |"
    yield "| --- " * 8 + "|"
    for name, each in synthetic.FAMILY.items():
        also = {
            "classes differ in all directions alike": not each.strong,
            "class j has a part ∝ 1/j of the records": each.zipf,
            f"not normal: Student's t, {each.tails} degrees of freedom": each.tails,
            f"rank {each.rank}": each.rank,
        }
        cells_of = (f"{each.n:,}", f"{each.d:,}", each.m, each.decay, each.apart, each.offset)
        said = "; ".join(text for text, holds in also.items() if holds) or "–"
        yield f"| `{name}` | {' | '.join(map(str, cells_of))} | {said} |"


def _baseline(data: str, done: dict[str, float]) -> float:
    """The accuracy of the best non-private baseline that was run."""
    keys = [Cell(data, method, None).key for method in BASELINES]
    return max((done[key] for key in keys if key in done), default=math.nan)


def _values(cell: Cell, seeds: int, done: dict[str, float]) -> list[float]:
    found = [done.get(replace(cell, seed=seed).key) for seed in range(seeds)]
    return [v for v in found if v is not None]


def _tuned(data: str, row: str, epsilon: float, seeds: int, done: dict[str, float]) -> list[float]:
    try:
        return _values(picked(middle(data, row, epsilon), done), seeds, done)
    except KeyError:
        return []


def _lead(first: list[float], rivals: list[list[float]]) -> tuple[float, float] | None:
    """The lead of the first row over the best of its rivals, and its standard error."""
    known = [r for r in rivals if len(r) > 1]
    if len(first) < 2 or not known:
        return None
    best = max(known, key=statistics.mean)
    error = math.sqrt(statistics.variance(first) / len(first) + statistics.variance(best) / len(best))
    return statistics.mean(first) - statistics.mean(best), error


def _shown(lead: tuple[float, float] | None) -> str:
    return "–" if lead is None else f"{lead[0]:+.1f} ± {lead[1]:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sets", nargs="*", help="folders of arrays, or feature sets of dpfc")
    parser.add_argument("--synthetic", type=Path, help="also the synthetic family, made in this folder")
    parser.add_argument("--methods", nargs="+", default=UNTUNED)
    parser.add_argument("--tuned", nargs="*", default=TUNED, help="METHOD:STEPS")
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=cells.RESULTS)
    parser.add_argument("--out", type=Path, default=Path("bench/tables/accuracy.md"))
    given = parser.parse_args(arguments)
    sets = [*given.sets, *map(str, synthetic.write(given.synthetic) if given.synthetic else ())]
    # One seed after the other, so that a table of few seeds is complete early.
    first = [
        replace(untuned(s, m, e), seed=i)
        for i in range(given.seeds)
        for s in sets
        for m in given.methods
        for e in given.epsilons
    ]
    first += [Cell(s, method, None) for s in sets for method in BASELINES]
    done = cells.run(first, given.results, given.workers)
    for stage in tune(sets, given.tuned, given.epsilons, given.seeds, done):
        done |= cells.run(stage, given.results, given.workers)
    wanted = Wanted(sets, given.methods, given.tuned, given.epsilons, given.seeds)
    given.out.write_text("\n".join(report(wanted, done)) + "\n")
    print("\n".join(summary(wanted, done)))


if __name__ == "__main__":
    cells.start(main)
