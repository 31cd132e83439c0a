"""How good the default is: feature sets × methods × ε × seeds, in one table. `make bench-accuracy`.

The default and the recipe it grew from are untuned. The paper's methods have independent noise and exact accounting,
the paper's number of steps, and the step sizes, dampings and clipping norms that did best on the test labels, for every
ε: the methods' grid first, then at its best point two other norms for gradients, and features that are clipped instead
of normalised; the three best of all with a seed more; and the best of those is run with others. Budget split, the
bias's constant and the loss are not tuned.

Results are kept in a file and never computed twice, so a run that is stopped goes on, and a further set, method or seed
costs its own cells only.
"""

import argparse
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench import ablation, cells, reproduction, synthetic
from bench.cells import Cell
from bench.sets import load
from dpfc_cli.methods import METHODS

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
UNTUNED = ("dp-whitened", "recipe", "dp-fc", "dp-ls")
TUNED = ("dp-fc:10", "dp-ls:1", "dp-adam:10", "dp-newton:1")
TWINS = ("dp-whitened", "dp-ls")
"""Without privacy, the better of these stands for what can be had: minutes, where an optimum may take hours."""
ROOM = 3.0
"""Points below that from which a method counts as having something to gain."""
FINALISTS, FINAL_SEEDS = 3, 2
"""How many of a grid are tried with how many seeds before one is picked: one seed alone picks the luckiest."""
GRADIENT_CLIPS = (0.4, 2.5)
"""Factors of the default, tried at the best point of the grid; the default η makes up for them."""


def untuned(data: str, row: str, epsilon: float | None) -> Cell:
    """The cell of a method at its defaults, or of the recipe."""
    if row == "recipe":
        return ablation.variant(Cell(data, "dp-whitened", epsilon), ())
    return Cell(data, row, epsilon)


def others(best: Cell) -> list[Cell]:
    """A cell of a grid with each of the other norms that gradients and features may be clipped at."""
    made: list[dict[str, float]] = []
    method, data = METHODS[best.method], load(best.data)
    if "gradient_clip" in method.options.__dataclass_fields__:
        default, eta = method.defaults(data.facts, 1.0, {}), best.given["eta"]
        for factor in GRADIENT_CLIPS:
            # A step is as long as η times the norm, but for Adam's.
            scaled = {"gradient_clip": default.gradient_clip * factor}
            made.append(scaled if best.method == "dp-adam" else {**scaled, "eta": eta / factor})
    made.append({"clip": float(np.median(np.linalg.norm(data.x.astype(np.float32), axis=1)))})
    rounded = ({name: float(f"{value:.4g}") for name, value in options.items()} for options in made)
    return [replace(best, options=tuple({**best.given, **options}.items())) for options in rounded]


def tune(
    sets: Sequence[str], rows: Sequence[str], epsilons: Sequence[float], seeds: int, done: dict[str, float]
) -> Iterator[list[Cell]]:
    """What a tuned table needs, in stages. Each stage is asked for when `done` has the results of the one before."""
    start = [reproduction.base(s, _row(r), e) for s in sets for r in rows for e in epsilons]
    yield [point for cell in start for point in reproduction.grid(cell)]
    yield [other for cell in start for other in _tried(cell, done)]
    yield [again for cell in start for each in finalists(cell, done) for again in _again(each)]
    yield [replace(picked(cell, done), seed=seed) for seed in range(seeds) for cell in start]


def _tried(cell: Cell, done: dict[str, float]) -> list[Cell]:
    """A cell's grid, and its best point with the other norms. KeyError while the grid is not complete."""
    points = reproduction.grid(cell)
    return [*points, *others(max(points, key=lambda c: done[c.key]))]


def finalists(cell: Cell, done: dict[str, float]) -> list[Cell]:
    """The best of all that was tried with one seed, best first. KeyError while one is missing."""
    return sorted(_tried(cell, done), key=lambda c: -done[c.key])[:FINALISTS]


def _again(cell: Cell) -> list[Cell]:
    return [replace(cell, seed=cell.seed + i) for i in range(FINAL_SEEDS)]


def picked(cell: Cell, done: dict[str, float]) -> Cell:
    """The finalist whose mean is best, at seed 0. KeyError while one is missing."""
    best = max(finalists(cell, done), key=lambda c: statistics.mean(done[again.key] for again in _again(c)))
    return replace(best, seed=0)


def _row(text: str) -> reproduction.Row:
    method, _, steps = text.partition(":")
    return method, int(steps)


@dataclass(frozen=True)
class Wanted:
    """A table: which sets, which untuned rows (the default first), which tuned ones (METHOD:STEPS), ε and seeds."""

    sets: Sequence[str]
    rows: Sequence[str]
    tuned: Sequence[str]
    epsilons: Sequence[float]
    seeds: int


def table(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """Markdown: mean ± standard deviation; the first row's lead over the best of the tuned, ± its standard error."""
    yield f"| | {' | '.join(f'ε = {e:g}' for e in wanted.epsilons)} |"
    yield "| --- " * (len(wanted.epsilons) + 1) + "|"
    for data in wanted.sets:
        yield f"| **{Path(data).name}**, non-private {_best_twin(data, done):.1f} |" + " |" * len(wanted.epsilons)
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


def verdict(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """How often the default wins, and what it gains on the recipe, in sentences."""
    cells_of = [(data, epsilon) for data in wanted.sets for epsilon in wanted.epsilons]
    leads, gains = [], []
    for data, epsilon in cells_of:
        own = _values(untuned(data, UNTUNED[0], epsilon), wanted.seeds, done)
        plain = _values(untuned(data, UNTUNED[1], epsilon), wanted.seeds, done)
        rivals = [_values(Cell(data, row, epsilon), wanted.seeds, done) for row in wanted.rows[1:] if row in METHODS]
        lead = _lead(own, rivals + [_tuned(data, row, epsilon, wanted.seeds, done) for row in wanted.tuned])
        if lead is not None:
            leads.append(lead)
        if own and plain and statistics.mean(plain) < _best_twin(data, done) - ROOM:
            gains.append(statistics.mean(own) - statistics.mean(plain))
    edges = [
        _at_edge(reproduction.base(data, _row(row), epsilon), done)
        for data, epsilon in cells_of
        for row in wanted.tuned
    ]
    won, lost = (sum(sign * gain > error for gain, error in leads) for sign in (1, -1))
    yield f"Of {len(leads)} cells `{UNTUNED[0]}` wins {won} by more than one standard error and loses {lost}."
    yield f"The best point lies at the edge of its grid in {sum(edges)} of {len(edges)} searches: wider ones find more."
    if gains:
        yield (
            f"Where the recipe is more than {ROOM:g} points below the best non-private head ({len(gains)} cells), it "
            f"gains {statistics.mean(gains):+.1f} on average over the recipe ({min(gains):+.1f} to {max(gains):+.1f})."
        )


def _at_edge(cell: Cell, done: dict[str, float]) -> bool:
    best = reproduction.picked(cell, done)
    if best is None:
        return False
    points = [point.given for point in reproduction.grid(cell)]
    searched = set(best.given) - set(cell.given)
    return any(best.given[o] in (min(p[o] for p in points), max(p[o] for p in points)) for o in searched)


def report(wanted: Wanted, done: dict[str, float]) -> Iterator[str]:
    """The document, from whatever results there are."""
    yield from (
        "# The default beside the paper's methods",
        "",
        "Made by `make bench-accuracy`. Top-1 test accuracy in percent, mean ± standard deviation of",
        f"{wanted.seeds} runs, δ = min(1e-5, 1/n). "
        "`dp-whitened` is what `dpfc train --epsilon …` does when nothing else is",
        "given; *recipe* is what it grew from ([`whitening.md`](whitening.md)), untuned, too, and so are `dp-fc` and",
        "`dp-ls`. The tuned ones (steps behind the colon) have independent noise, exact accounting and, in every cell,",
        "the step size, damping and clipping norms that did best **on the test labels**: a grid around the defaults,",
        "then other norms, then three finalists with another seed. Nobody with private data can choose like that.",
        "*Lead*: of the default over the best of the paper's, tuned or not, ± standard error. Non-private: the better",
        "head of `dp-whitened` and `dp-ls` without noise.",
        "",
        *verdict(wanted, done),
        "",
        *table(wanted, done),
    )


def _best_twin(data: str, done: dict[str, float]) -> float:
    """The best head without privacy, of those that are known."""
    keys = [Cell(data, method, None).key for method in TWINS]
    return max((done[key] for key in keys if key in done), default=math.nan)


def _values(cell: Cell, seeds: int, done: dict[str, float]) -> list[float]:
    found = [done.get(replace(cell, seed=seed).key) for seed in range(seeds)]
    return [v for v in found if v is not None]


def _tuned(data: str, row: str, epsilon: float, seeds: int, done: dict[str, float]) -> list[float]:
    try:
        return _values(picked(reproduction.base(data, _row(row), epsilon), done), seeds, done)
    except KeyError:
        return []


def _lead(first: list[float], rivals: list[list[float]]) -> tuple[float, float] | None:
    """By how much the first is ahead of the best of its rivals, and the standard error of that."""
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
    parser.add_argument("--out", type=Path, default=Path("docs/accuracy.md"))
    given = parser.parse_args(arguments)
    sets = [*given.sets, *map(str, synthetic.write(given.synthetic) if given.synthetic else ())]
    # Seed by seed, so that a table of few seeds is whole early.
    first = [
        replace(untuned(s, m, e), seed=i)
        for i in range(given.seeds)
        for s in sets
        for m in given.methods
        for e in given.epsilons
    ]
    first += [Cell(s, method, None) for s in sets for method in TWINS]
    done = cells.run(first, given.results, given.workers)
    for stage in tune(sets, given.tuned, given.epsilons, given.seeds, done):
        done |= cells.run(stage, given.results, given.workers)
    wanted = Wanted(sets, given.methods, given.tuned, given.epsilons, given.seeds)
    given.out.write_text("\n".join(report(wanted, done)) + "\n")


if __name__ == "__main__":
    main()
