"""What each ingredient of DP-Whitened adds to the plain recipe (`bench.recipe`): `python -m bench.ablation SET…`."""

import argparse
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench import cells, recipe
from bench.cells import Cell

EPSILONS = (0.05, 0.5, 4.0)


def variant(cell: Cell, ingredients: Sequence[str]) -> Cell:
    """The cell of dp-whitened with only these ingredients. With all of them it is the product's."""
    if set(ingredients) == set(recipe.INGREDIENTS):
        return cell
    given = {**cell.given, **recipe.options(ingredients)}
    return replace(cell, options=tuple(given.items()), variant="+".join(("recipe", *ingredients)))


def steps() -> list[tuple[str, ...]]:
    """The ingredients of each column: none, the first, the first two, … all."""
    return [recipe.INGREDIENTS[:count] for count in range(len(recipe.INGREDIENTS) + 1)]


def table(sets: Sequence[str], epsilons: Sequence[float], seeds: int, done: dict[str, float]) -> Iterator[str]:
    """Markdown: the recipe, and its gain with the ingredients up to each column, paired by seed, ± standard error."""
    yield "| | ε | recipe | " + " | ".join(f"+ {name}" for name in recipe.INGREDIENTS) + " |"
    yield "| --- | --- |" + " --- |" * (1 + len(recipe.INGREDIENTS))
    for data in sets:
        for epsilon in epsilons:
            rows = []
            for ingredients in steps():
                cell = variant(Cell(data, "dp-whitened", epsilon), ingredients)
                rows.append([done.get(replace(cell, seed=seed).key) for seed in range(seeds)])
            said = [gain(row, rows[0]) for row in rows[1:]]
            yield f"| {Path(data).name} | {epsilon:g} | {_mean(rows[0])} | " + " | ".join(said) + " |"


def _mean(values: Sequence[float | None]) -> str:
    found = [v for v in values if v is not None]
    return f"{statistics.mean(found):.1f}" if found else "–"


def gain(values: Sequence[float | None], others: Sequence[float | None]) -> str:
    """Mean gain of values over others, paired, ± standard error."""
    gains = [a - b for a, b in zip(values, others, strict=True) if a is not None and b is not None]
    if len(gains) < 2:
        return "–"
    return f"{statistics.mean(gains):+.1f} ± {statistics.stdev(gains) / math.sqrt(len(gains)):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="+", help="folders of feature sets")
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=cells.RESULTS)
    given = parser.parse_args()
    wanted = [
        variant(Cell(data, "dp-whitened", epsilon, seed), ingredients)
        for seed in range(given.seeds)
        for data in given.sets
        for epsilon in given.epsilons
        for ingredients in steps()
    ]
    done = cells.run(wanted, given.results, given.workers)
    print("\n".join(table(given.sets, given.epsilons, given.seeds, done)))


if __name__ == "__main__":
    main()
