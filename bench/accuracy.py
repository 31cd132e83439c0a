"""How good: feature sets × methods × ε × seeds, untuned, as a table. `make bench-accuracy`.

Results are kept in a file and never computed twice, so a run that is stopped goes on, and a further set, method or seed
costs its own cells only.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import synthetic
from bench.cells import Cell, run

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
METHODS = ("dp-whitened", "dp-fc", "dp-ls")


def cells_of(sets: Sequence[Path], methods: Sequence[str], epsilons: Sequence[float], seeds: int) -> list[Cell]:
    """Seed by seed, so that a table of few seeds is whole early; without noise once."""
    private = [Cell(str(s), m, e, seed) for seed in range(seeds) for s in sets for m in methods for e in epsilons]
    return private + [Cell(str(s), m, None) for s in sets for m in methods]


def table(sets: Sequence[Path], methods: Sequence[str], epsilons: Sequence[float], done: dict[str, float]) -> str:
    """Markdown: mean ± standard deviation over the seeds that are done."""
    heads = [*(f"ε = {e:g}" for e in epsilons), "non-private"]
    lines = [f"| | | {' | '.join(heads)} |", "| --- " * (len(heads) + 2) + "|"]
    for place in sets:
        for method in methods:
            row = [_said(str(place), method, epsilon, done) for epsilon in (*epsilons, None)]
            lines.append(f"| {place.name} | `{method}` | {' | '.join(row)} |")
    return "\n".join(lines)


def _said(data: str, method: str, epsilon: float | None, done: dict[str, float]) -> str:
    keys = [Cell(data, method, epsilon, seed).key for seed in range(1000)]
    found = [done[key] for key in keys if key in done]
    if not found:
        return "–"
    return f"{np.mean(found):.1f}" + (f" ± {np.std(found, ddof=1):.1f}" if len(found) > 1 else "")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", type=Path, help="folders of arrays, or feature sets of dpfc")
    parser.add_argument("--synthetic", type=Path, help="also the synthetic family, made in this folder")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--results", type=Path, default=Path("bench-results/accuracy.jsonl"))
    given = parser.parse_args(arguments)
    sets = [*given.sets, *(synthetic.write(given.synthetic) if given.synthetic else ())]
    done = run(cells_of(sets, given.methods, given.epsilons, given.seeds), given.results, given.workers)
    print(table(sets, given.methods, given.epsilons, done))


if __name__ == "__main__":
    main()
