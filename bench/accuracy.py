"""Compares the default method with the paper's methods: `make bench-accuracy`.

It writes bench/tables/accuracy.md, and prints the table of docs/accuracy.md.

It is one table of feature sets × methods × ε × seeds. The default is untuned. The paper's methods also appear tuned,
with independent noise and exact accounting. For each set and ε a search on the test labels finds their options:

1. From the defaults, one option after the other is changed as long as that helps: learning rate, damping and clipping
   norm of gradients are made larger or smaller; the other loss, three times the steps, and features that are clipped
   instead of normalised are tried. A search ends only where no such change of the best point helps. So no best point
   lies at an edge.
2. The three best points get one more seed. The best of the three gets the seeds of the table.

The split of the budget and the bias feature are not tuned. Results are kept in a file and never computed twice. So a
run that was stopped continues, and a further set, method or seed costs only its own cells. All trainings are simulated
(`bench.simulation`).
"""

import argparse
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import cells, synthetic
from bench.cells import Cell, top1
from bench.sets import load
from dpfc_cli.methods import METHODS, AnyMethod
from dpfc_cli.privacy import accounting

EPSILONS = (0.1, 1.0, 8.0)
UNTUNED = ("dp-whitened",)
TUNED = ("dp-fc", "dp-momentum")
BASELINES = ("dp-whitened", "dp-ls")
"""The non-private baselines. The better one shows what is possible. They take minutes; an optimum may take hours."""
FINALISTS, FINAL_SEEDS = 3, 2
"""How many of the best settings are tried with how many seeds. With one seed, the luckiest would be picked."""
SEARCH_SEED = 1000
STEPS = (10, 30)
"""Numbers of steps that a search tries. The paper has 10."""
FACTORS = {"learning_rate": 2.0, "gradient_clip": 2.0, "damping": 3.0, "negative_weight": 3.0}
"""A search makes an option larger or smaller by this factor at a time, beginning at its default."""
ORDER = ("loss", *FACTORS, "steps", "feature_clip")
Point = tuple[tuple[str, int], ...]
"""A point of a search: how often each option was made larger, in the order of `moves`."""


def untuned(data: str, row: str, epsilon: float | None) -> Cell:
    """The cell of a method at its defaults."""
    return Cell(data, row, epsilon, variant="" if epsilon is None else "simulated")


def searched(data: str, row: str, epsilon: float) -> Cell:
    """The cell that stands for the search of a method."""
    return Cell(data, row, epsilon, seed=SEARCH_SEED, variant="search")


def moves(method: AnyMethod) -> dict[str, range]:
    """What a search may change, and how often from the default."""
    return {name: range(-12, 13) if name in FACTORS else range(2) for name in ORDER if name in method.declared}


def placed(cell: Cell, point: Point) -> Cell:
    """The training at a point of a search."""
    method, data, places = METHODS[cell.method], load(cell.data), dict(point)
    assert cell.epsilon is not None
    mu = accounting.mu_for(cell.epsilon, accounting.default_delta(data.facts.n))
    given: dict[str, Any] = {}
    if "steps" in places:
        given["steps"] = STEPS[places["steps"]]
    if places.get("loss"):
        given["loss"] = "softmax"
    if places.get("feature_clip"):
        given["feature_clip"] = float(np.median(np.linalg.norm(data.x.astype(np.float32), axis=1)))
    # The default learning rate follows the clipping norm, and so do the steps.
    for name in sorted(set(FACTORS) & set(places)):
        given[name] = getattr(method.defaults(data.facts, mu, given), name) * FACTORS[name] ** places[name]
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in given.items()}
    return replace(cell, options=tuple(rounded.items()), variant="simulated")


def search(cell: Cell) -> dict[str, Any]:
    """The options that a search finds, and how many points it tried."""
    places = moves(METHODS[cell.method])
    found: dict[Point, float] = {}

    def value(point: Point) -> float:
        if point not in found:
            found[point] = top1(placed(cell, point))
        return found[point]

    best, last = tuple(dict.fromkeys(places, 0).items()), None
    while best != last:
        last = best
        for name in places:
            for way in (1, -1):
                while (place := dict(best)[name] + way) in places[name]:
                    there = tuple({**dict(best), name: place}.items())
                    if value(there) <= value(best):
                        break
                    best = there
    finalists = [placed(cell, point) for point in sorted(found, key=lambda point: -found[point])[:FINALISTS]]
    seeds = range(SEARCH_SEED, SEARCH_SEED + FINAL_SEEDS)
    picked = max(finalists, key=lambda each: statistics.mean(top1(replace(each, seed=seed)) for seed in seeds))
    return {"options": picked.given, "tried": len(found)}


def picked(cell: Cell, done: dict[str, Any]) -> Cell:
    """What a search found, at seed 0. KeyError if it was not run."""
    return replace(cell, seed=0, options=tuple(done[cell.key]["options"].items()), variant="simulated")


@dataclass(frozen=True)
class Wanted:
    """What a table shows: sets, untuned rows (the default first), tuned rows, ε, and number of seeds."""

    sets: Sequence[str]
    rows: Sequence[str]
    tuned: Sequence[str]
    epsilons: Sequence[float]
    seeds: int


def table(wanted: Wanted, done: dict[str, Any]) -> Iterator[str]:
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


def _leads(wanted: Wanted, data: str, done: dict[str, Any]) -> list[tuple[float, float] | None]:
    """At each ε, the lead of the default on a set."""
    found = []
    for epsilon in wanted.epsilons:
        own = _values(untuned(data, UNTUNED[0], epsilon), wanted.seeds, done)
        rivals = [_values(untuned(data, row, epsilon), wanted.seeds, done) for row in wanted.rows[1:] if row in METHODS]
        found.append(_lead(own, rivals + [_tuned(data, row, epsilon, wanted.seeds, done) for row in wanted.tuned]))
    return found


def summary(wanted: Wanted, done: dict[str, Any]) -> Iterator[str]:
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


def verdict(wanted: Wanted, done: dict[str, Any]) -> str:
    """How often the default wins, and how large the searches of its rivals were."""
    leads = [lead for data in wanted.sets for lead in _leads(wanted, data, done) if lead is not None]
    won, lost = (sum(sign * gain > error for gain, error in leads) for sign in (1, -1))
    tried = [done.get(searched(s, row, e).key) for s in wanted.sets for row in wanted.tuned for e in wanted.epsilons]
    sizes = [each["tried"] for each in tried if each]
    return (
        f"Of {len(leads)} cells the default wins {won} by more than one standard error and loses {lost}. The "
        f"{len(sizes)} searches tried {statistics.mean(sizes):.0f} settings on average, and up to {max(sizes)}."
    )


def report(wanted: Wanted, done: dict[str, Any]) -> Iterator[str]:
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


def _baseline(data: str, done: dict[str, Any]) -> float:
    """The accuracy of the best non-private baseline that was run."""
    keys = [Cell(data, method, None).key for method in BASELINES]
    return max((done[key] for key in keys if key in done), default=math.nan)


def _values(cell: Cell, seeds: int, done: dict[str, Any]) -> list[float]:
    found = [done.get(replace(cell, seed=seed).key) for seed in range(seeds)]
    return [v for v in found if v is not None]


def _tuned(data: str, row: str, epsilon: float, seeds: int, done: dict[str, Any]) -> list[float]:
    try:
        return _values(picked(searched(data, row, epsilon), done), seeds, done)
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
    parser.add_argument("--tuned", nargs="*", default=TUNED, help="methods that are tuned")
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
    cells.run(first, given.results, given.workers)
    searches = [searched(s, row, e) for e in given.epsilons for s in sets for row in given.tuned]
    done = cells.run(searches, given.results, given.workers, search)
    finals = [replace(picked(each, done), seed=seed) for seed in range(given.seeds) for each in searches]
    done = cells.run(finals, given.results, given.workers)
    wanted = Wanted(sets, given.methods, given.tuned, given.epsilons, given.seeds)
    given.out.write_text("\n".join(report(wanted, done)) + "\n")
    print("\n".join(summary(wanted, done)))


if __name__ == "__main__":
    cells.start(main)
