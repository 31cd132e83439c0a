"""Makes docs/accuracy.svg, the picture of the README: `make picture`.

Its results are trainings of the product with seeds. Those that are not in the file are computed, on the sets in FOLDER.
The heads that are adapted to what they predict are those of bench/results/unlabelled.jsonl (`bench.unlabelled`).
"""

import argparse
import json
import statistics
from pathlib import Path

from bench.cells import Cell, run
from dpfc_cli.extensions.plots.drawing import svg
from dpfc_cli.report.picture import Curves, Level, Picture, Series

EPSILONS, SEEDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0), range(5)
SETS = {"cifar10-vit-ti16": "CIFAR-10", "cifar100-vit-ti16": "CIFAR-100"}


RESULTS = Path("bench/results/picture.jsonl")
ADAPTED, KEPT = "cifar100-vit-ti16", Path("bench/results/unlabelled.jsonl")


def cells(data: str, epsilon: float | None) -> list[Cell]:
    """The trainings of a set at an ε; None: without noise, where one is enough."""
    return [Cell(data, "dp-whitened", epsilon, seed) for seed in (SEEDS if epsilon else (0,))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="features")
    folder = parser.parse_args().folder
    wanted = [each for data in SETS for epsilon in (*EPSILONS, None) for each in cells(f"{folder}/{data}", epsilon)]
    done = run(wanted, RESULTS, 1)

    def top1(data: str, epsilon: float | None) -> list[float]:
        return [done[each.key] / 100 for each in cells(data, epsilon)]

    found = {name: {epsilon: top1(data, epsilon) for epsilon in EPSILONS} for data, name in SETS.items()}
    adapted: dict[float, list[float]] = {}
    for line in map(json.loads, KEPT.read_text().splitlines()):
        if line["set"] == ADAPTED:
            adapted.setdefault(line["epsilon"], []).append((line["head"] + line["together"]) / 100)
    found[f"{SETS[ADAPTED]}, predict --adapt"] = dict(sorted(adapted.items()))
    series = []
    for name, at in found.items():
        mean, low, high = ([of(each) for each in at.values()] for of in (statistics.mean, min, max))
        series.append(Series(name, tuple(at), mean, low, high, band=True))
    levels = [Level(f"{name} without noise", top1(data, None)[0]) for data, name in SETS.items()]
    title = "dpfc with its defaults, ViT-Ti/16, delta = 1e-5"
    Path("docs/accuracy.svg").write_bytes(svg(Picture(title, Curves(series, levels))))


if __name__ == "__main__":
    main()
