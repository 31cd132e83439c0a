"""Makes docs/accuracy.svg, the picture of the README: `make picture`.

Its results are trainings of the product with seeds. Those that are not in the file are computed, on the sets in FOLDER.
"""

import argparse
import statistics
from pathlib import Path

from bench.cells import Cell, run
from dpfc_cli.extensions.plots.drawing import svg
from dpfc_cli.report.picture import Curves, Level, Picture, Series

EPSILONS, SEEDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0), range(5)
SETS = {"cifar10-vit-ti16": "CIFAR-10", "cifar100-vit-ti16": "CIFAR-100"}


RESULTS = Path("bench/results/picture.jsonl")


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

    series = []
    for data, name in SETS.items():
        found = [top1(data, epsilon) for epsilon in EPSILONS]
        low, high = [min(each) for each in found], [max(each) for each in found]
        series.append(Series(name, EPSILONS, [statistics.mean(each) for each in found], low, high, band=True))
    levels = [Level(f"{name} without noise", top1(data, None)[0]) for data, name in SETS.items()]
    title = "dpfc with its defaults, ViT-Ti/16, delta = 1e-5"
    Path("docs/accuracy.svg").write_bytes(svg(Picture(title, Curves(series, levels))))


if __name__ == "__main__":
    main()
