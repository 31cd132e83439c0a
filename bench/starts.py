"""Measures what a public start is worth: `python -m bench.starts SET PUBLIC`, or `SET --hostile FOLDER`.

SET is a folder with `{train,test}_{x,y}.npy` and `class_vectors.npy` (m × d), the public vectors of its classes. The
table says, for each ε, the test accuracy of the default method without anything public, and what it gains from the
start (`--public-head`), with the mean of the records in PUBLIC (`--public-features`), and with both. Below it stand
the vectors alone and the optimum without noise.

With `--hostile` the table says what wrong starts cost instead, beside the right one.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench import cells
from bench.cells import Cell
from bench.public import table
from bench.sets import load

METHOD = "dp-whitened"
EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0)
VECTORS = "class_vectors.npy"

RESULTS = Path("bench/results/starts.jsonl")


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1. Rows of zeros stay."""
    lengths = np.sqrt(np.square(vectors.astype(np.float64)).sum(axis=1, keepdims=True))
    return np.asarray(vectors / np.maximum(lengths, np.finfo(float).tiny))


def alone(data: str) -> float:
    """The test accuracy of the vectors alone, in percent: what one has without a private record, not even their mean.

    A class without a vector is never predicted.
    """
    vectors, records = unit(np.load(Path(data) / VECTORS)), load(data)
    scores = np.where(vectors.any(axis=1), unit(records.test_x) @ vectors.T, -np.inf)
    return float(100 * (scores.argmax(axis=1) == records.test_y).mean())


def hostile(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Starts that are wrong, by name."""
    rng = np.random.default_rng(0)
    rng.permutation(len(vectors))  # as when the stored results were drawn
    known, half = np.flatnonzero(vectors.any(axis=1)), vectors.copy()
    chosen = rng.permutation(known)[: len(known) // 2]
    half[chosen] = vectors[np.roll(chosen, 1)]
    return {"random": rng.normal(size=vectors.shape), "half-permuted": half}


def rows_of(
    data: str, public: str | None, folder: Path | None = None, epsilons: Sequence[float] = EPSILONS
) -> dict[str, list[Cell]]:
    """The rows of the table of one set. folder: of the wrong starts, for the table of what they cost."""
    plain = [Cell(data, METHOD, epsilon, variant="simulated") for epsilon in epsilons]
    started = [replace(cell, start=str(Path(data) / VECTORS)) for cell in plain]
    if folder is not None:
        wrong = {
            name: [replace(cell, start=str(folder / f"{name}.npy")) for cell in plain]
            for name in hostile(np.zeros((2, 2)))
        }
        return {"no start": plain, "right": started} | wrong
    if public is None:
        return {"no start": plain, "start": started}
    informed, both = ([replace(cell, public=public) for cell in before] for before in (plain, started))
    return {"no start": plain, "start": started, "public features": informed, "both": both}


def summary(rows: dict[str, list[Cell]], seeds: int, done: dict[str, float]) -> Iterator[str]:
    """Markdown: rows of docs/extensions/starts.md, which has means alone."""
    for row, run in rows.items():
        means = [statistics.mean(done[replace(cell, seed=seed).key] for seed in range(seeds)) for cell in run]
        yield f"| {row} | {' | '.join(f'{each:.1f}' for each in means)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", help="folder")
    parser.add_argument("public", nargs="?", help="folder of other records, which nobody needs to protect")
    parser.add_argument("--hostile", type=Path, help="measure wrong starts, and keep them in this folder")
    parser.add_argument("--rows", nargs="+", help="only these rows of the table")
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    rows = rows_of(given.data, given.public, given.hostile, given.epsilons)
    if unknown := set(given.rows or rows) - set(rows):
        parser.error(f"--rows: {', '.join(sorted(unknown))}? There are: {', '.join(map(repr, rows))}")
    rows = {name: rows[name] for name in given.rows or rows}
    if given.hostile:
        given.hostile.mkdir(parents=True, exist_ok=True)
        for name, vectors in hostile(np.load(Path(given.data) / VECTORS)).items():
            np.save(given.hostile / f"{name}.npy", vectors)
    optimum = Cell(given.data, METHOD, None)
    wanted = [replace(cell, seed=seed) for row in rows.values() for cell in row for seed in range(given.seeds)]
    done = cells.run([optimum, *wanted], given.results, given.workers)
    print("\n".join([*table(rows, given.epsilons, given.seeds, done), *summary(rows, given.seeds, done)]))
    print(f"The vectors alone: {alone(given.data):.1f}. Without noise: {done[optimum.key]:.1f}.")


if __name__ == "__main__":
    cells.start(main)
