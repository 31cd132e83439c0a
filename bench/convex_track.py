"""The convex track of the benchmark of Mokhtari et al. 2026 (arXiv 2601.17189): `python -m bench.convex_track SET…`
trains the default method on sets, and prints the table of docs/accuracy.md. What the benchmark's own code reached on
them is in the file of results. `--take FOLDER/NAME` makes NAME.npz, for `dpfc import`, of features that its code made.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import cells
from bench.sets import load
from dpfc_cli.heads.metrics import ranked

RESULTS, EPSILONS, SEEDS = Path("bench/results/convex_track.jsonl"), (1.0, 8.0), range(5)


def trainings(data: str, epsilon: float) -> list[cells.Cell]:
    return [cells.Cell(data, "dp-whitened", epsilon, seed, variant="simulated") for seed in SEEDS]


def figures(cell: cells.Cell) -> tuple[float, float]:
    """Those of the benchmark, in percent: top-1 accuracy, and AUROC, each class weighted by its records."""
    data, head = load(cell.data), cells.train(cell)
    (found,) = ranked([head], lambda: cells.stream_of(data.test_x, data.test_y)(8192), len(data.test_y), several=False)
    top1 = (head.scores(data.test_x).argmax(axis=1) == data.test_y).mean()
    return 100 * float(top1), 100 * float(np.average(found.auroc, weights=found.positives))


def table(results: dict[str, Any]) -> Iterator[str]:
    """Markdown, the smallest lead first."""
    yield "| set | ε | as configured | tuned | tuned, with DataNorm | `dpfc` | lead |\n" + "| --- " * 7 + "|"
    rows = []
    for name, epsilon, theirs in ((*json.loads(key).values(), results[key]) for key in results if "benchmark" in key):
        runs = [each["runs"] for each in theirs] + [[results[cell.key] for cell in trainings(name, epsilon)]]
        *others, own = (statistics.mean(top1 for top1, _ in each) for each in runs)
        columns = ["; ".join(map(cells.said, zip(*each, strict=True))) for each in runs]
        rows.append((own - max(others), f"| {name} | {epsilon:g} | {' | '.join(columns)} | {own - max(others):+.1f} |"))
    yield from (row for _, row in sorted(rows))


def take(stem: str) -> None:
    """Of labels that are zeros and ones, records without a 1 get a class of their own, the last: none may lack one."""
    import torch

    made: dict[str, Any] = {}
    for split in ("train", "test"):
        x, y = (torch.load(f"{stem}_{split}_{part}.pt").numpy() for part in "XY")
        if y.ndim > 1:
            ones = np.column_stack([y > 0, ~(y > 0).any(axis=1)])
            y = -np.sort(-np.where(ones, np.arange(ones.shape[1]), -1))[:, :-1]
        made |= {f"{split}_x": x, f"{split}_y": y}
    np.savez(f"{stem}.npz", **made)


if __name__ == "__main__":
    if sys.argv[1] == "--take":
        take(sys.argv[2])
    else:
        wanted = [cell for data in sys.argv[1:] for epsilon in EPSILONS for cell in trainings(data, epsilon)]
        print("\n".join(table(cells.run(wanted, RESULTS, 1, figures))))
