"""Measures what persons as units cost: `python -m bench.persons SET FOLDER`.

The records of SET are given to made-up persons, and a copy of the set with them is written into FOLDER: k records each
(`mixed`: of any classes; `class`: all of one class; `alike`: of one class, and nearest to one another), or between 1
and 100 records each (`zipf`, as Pareto with exponent 1). The table says, for each ε, the test accuracy of the default
method when a person's records are bounded together; with one record of each person; with group privacy (the whole
training at μ/k); and with each record as a unit, which protects less.
"""

import argparse
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


def made(data: str, folder: Path, kind: str, k: int | None, seed: int = 0) -> dict[str, Path]:
    """Copies of a set: with persons, and with one record of each person."""
    known, rng = load(data), np.random.default_rng(seed)
    sizes = sizes_of(len(known.x), k, rng)
    rows, persons = order_of(known, sizes, kind, rng)
    name = f"{Path(data).name}-{kind}-{'zipf' if k is None else k}"
    first = np.flatnonzero(np.diff(persons, prepend=-1))
    found = {"persons": folder / name, "one each": folder / f"{name}-one-each"}
    for what, place in found.items():
        taken = rows if what == "persons" else rows[first]
        place.mkdir(parents=True, exist_ok=True)
        arrays = {"train_x": known.x[taken], "train_y": known.y[taken], "test_x": known.test_x, "test_y": known.test_y}
        if what == "persons":
            arrays["train_groups"] = persons
        for each, values in arrays.items():
            np.save(place / f"{each}.npy", values)
    return found


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
    seeds = range(args.seeds)
    tables: dict[str, dict[str, list[list[Cell]]]] = {}
    for k in args.k.split(","):
        for kind in args.kinds.split(","):
            if (k, kind) == ("zipf", "alike"):
                continue
            places = made(args.data, args.folder, kind, None if k == "zipf" else int(k))
            asked = {what: (str(place), epsilons) for what, place in places.items()}
            if k != "zipf":
                asked["group privacy"] = (args.data, [shared(args.data, e, int(k)) for e in epsilons])
            asked["records"] = (args.data, epsilons)
            tables[f"{kind}, {k}"] = {
                what: [[Cell(place, args.method, e, s) for s in seeds] for e in budgets]
                for what, (place, budgets) in asked.items()
            }
    wanted = [cell for rows in tables.values() for row in rows.values() for each in row for cell in each]
    done = cells.run(wanted, args.results, args.workers)
    for title, rows in tables.items():
        print(f"\n**{title}**\n\n| | {' | '.join(f'ε = {e:g}' for e in epsilons)} |")
        print(f"| --- |{' --- |' * len(epsilons)}")
        for what, row in rows.items():
            print(f"| {what} | {' | '.join(said([done[cell.key] for cell in each]) for each in row)} |")


def shared(data: str, epsilon: float, k: int) -> float:
    """The ε of a training whose μ is that of ε divided by k: with it, k records have ε together."""
    delta = default_delta(len(load(data).x))
    return epsilon_for(mu_for(epsilon, delta) / k, delta)


if __name__ == "__main__":
    main()
