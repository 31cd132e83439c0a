"""Measures what persons as units cost: `python -m bench.persons SET FOLDER`.

The records of SET are given to made-up persons, and a copy of the set with them is written into FOLDER: k records each
(`mixed`: of any classes; `class`: all of one class; `alike`: of one class, and nearest to one another), or between 1
and 100 records each (`zipf`, as Pareto with exponent 1). The table says, for each ε, the test accuracy of the default
method when a person's records are bounded together; with one record of each person; with group privacy (the whole
training at μ/k); and with each record as a unit, which protects less.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import cells
from bench.cells import Cell, said
from bench.sets import Data, load
from dpfc_cli.privacy.accounting import default_delta, epsilon_for, mu_for

EPSILONS = (0.5, 1.0, 2.0, 8.0)
KINDS = ("mixed", "class", "alike")
MOST = 100
"""Records of one person, where numbers differ."""


def sizes_of(n: int, k: int | None, rng: np.random.Generator) -> np.ndarray:
    """How many records each person has: k, or between 1 and `MOST`."""
    if k is not None:
        return np.full(n // k, k)
    found = np.minimum(np.floor(rng.pareto(1.0, size=n) + 1), MOST).astype(np.int64)
    return found[np.cumsum(found) <= n]


def order_of(data: Data, sizes: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows of persons of these sizes, person after person, and the person of each row."""
    rows = rng.permutation(len(data.x))
    if kind != "mixed":
        rows = rows[np.argsort(data.y[rows], kind="stable")]
    if kind == "alike":
        rows = np.concatenate([_near(data.x, rows[data.y[rows] == j], int(sizes[0])) for j in range(data.m)])
    # Classes are cut at multiples of a person only by chance, so persons at their ends may have two classes.
    return rows[: sizes.sum()], np.repeat(np.arange(len(sizes)), sizes)


def _near(x: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    """The rows in an order in which each k that follow one another are near: greedily, from the first that is left."""
    left, found = rows, []
    while len(left):
        inner = x[left] @ x[left[0]]
        near = np.argsort(-inner, kind="stable")[:k]
        found.append(left[near])
        left = np.delete(left, near)
    return np.concatenate(found)


def make(data: str, folder: Path, kind: str, k: int | None, seed: int = 0) -> None:
    """Write copies of a set into a folder: with persons, and with one record of each person."""
    known, rng = load(data), np.random.default_rng(seed)
    sizes = sizes_of(len(known.x), k, rng)
    rows, persons = order_of(known, sizes, kind, rng)
    name, first = name_of(data, kind, k), np.flatnonzero(np.diff(persons, prepend=-1))
    for place, taken in ((folder / name, rows), (folder / f"{name}-one-each", rows[first])):
        place.mkdir(parents=True, exist_ok=True)
        arrays = {"train_x": known.x[taken], "train_y": known.y[taken], "test_x": known.test_x, "test_y": known.test_y}
        if taken is rows:
            arrays["train_groups"] = persons
        for each, values in arrays.items():
            np.save(place / f"{each}.npy", values)


def name_of(data: str, kind: str, k: int | None) -> str:
    """The folder of a set with persons."""
    return f"{Path(data).name}-{kind}-{'zipf' if k is None else k}"


def shared(epsilon: float, k: int, n: int) -> float:
    """The ε of a training of n records whose μ is that of ε divided by k: with it, k records have ε together."""
    delta = default_delta(n)
    return epsilon_for(mu_for(epsilon, delta) / k, delta)


def rows_of(
    data: str, n: int, folder: Path, kind: str, k: int | None, epsilons: Sequence[float], method: str = "dp-whitened"
) -> dict[str, list[Cell]]:
    """The rows of the table of one kind of persons. n: the number of records of the set."""
    persons = str(folder / name_of(data, kind, k))
    rows = {
        "persons": [Cell(persons, method, e) for e in epsilons],
        "one each": [Cell(f"{persons}-one-each", method, e) for e in epsilons],
    }
    if k is not None:
        rows["group privacy"] = [Cell(data, method, shared(e, k, n)) for e in epsilons]
    return rows | {"records": [Cell(data, method, e) for e in epsilons]}


def table(rows: Mapping[str, Sequence[Cell]], epsilons: Sequence[float], seeds: int, done: Mapping[str, float]) -> str:
    """Markdown: test accuracy in percent, mean ± standard deviation over seeds."""
    lines = ["| | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |", "| --- |" + " --- |" * len(epsilons)]
    for what, row in rows.items():
        values = ([done[replace(cell, seed=seed).key] for seed in range(seeds)] for cell in row)
        lines.append(f"| {what} | {' | '.join(map(said, values))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--k", default="3,10,zipf", help="records of each person")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--method", default="dp-whitened")
    parser.add_argument("--epsilons", default=",".join(f"{e:g}" for e in EPSILONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=cells.RESULTS)
    args = parser.parse_args()
    epsilons = [float(e) for e in args.epsilons.split(",")]
    tables = {}
    for asked in args.k.split(","):
        for kind in args.kinds.split(","):
            k = None if asked == "zipf" else int(asked)
            if k is not None or kind != "alike":
                make(args.data, args.folder, kind, k)
                n = len(load(args.data).x)
                tables[f"{kind}, {asked}"] = rows_of(args.data, n, args.folder, kind, k, epsilons, args.method)
    wanted = [
        replace(c, seed=s) for rows in tables.values() for row in rows.values() for c in row for s in range(args.seeds)
    ]
    done = cells.run(wanted, args.results, args.workers)
    for title, rows in tables.items():
        print(f"\n**{title}**\n\n{table(rows, epsilons, args.seeds, done)}")


if __name__ == "__main__":
    cells.start(main)
