"""Measures what public records are worth to the default method: `python -m bench.public PRIVATE PUBLIC`.

PRIVATE and PUBLIC are two feature sets of dpfc. The table has three rows: without public records; with their mean
(`--public-features`); and with the options that did best in private trainings on them (`--tune-on`), which the
product's own `tuning` chooses for every ε. Differences are paired by seed.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import cells
from bench.accuracy import EPSILONS
from bench.cells import Cell
from dpfc_cli.extensions.planning import tuning
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import scaled
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.training.calibrate import calibrate

METHOD = METHODS["dp-whitened"]


def tuned(private: str, public: str, epsilon: float) -> Cell:
    """The cell with the options that the product chooses on the public set. Its trials are kept beside that set."""
    mine = FeatureSet(Path(private))
    calibrated = calibrate(METHOD, facts_of(mine), {}, Privacy(epsilon=epsilon))
    trials = tuning.prepare(calibrated, mine, FeatureSet(Path(public)))
    chosen: Any = tuning.tune(calibrated, trials).parts["tuning"]
    assert calibrated.guarantee is not None
    options = scaled(METHOD, calibrated.facts, calibrated.guarantee.mu, {}, chosen["chosen"])
    return Cell(private, METHOD.name, epsilon, options=tuple(options.items()))


def table(rows: dict[str, list[Cell]], epsilons: Sequence[float], seeds: int, done: dict[str, float]) -> Iterator[str]:
    """Markdown: mean ± standard deviation of the first row, and gains of the others on it, ± standard error."""
    yield "| | " + " | ".join(f"ε = {e:g}" for e in epsilons) + " |"
    yield "| ---" * (len(epsilons) + 1) + " |"
    values = {name: [[done[replace(c, seed=s).key] for s in range(seeds)] for c in row] for name, row in rows.items()}
    plain, *_ = values.values()
    for name, row in values.items():
        said = [cells.said(v) if v is p else cells.gain(v, p) for v, p in zip(row, plain, strict=True)]
        yield f"| {name} | {' | '.join(said)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("private", help="folder of a feature set")
    parser.add_argument("public", help="folder of another one from the same backbone")
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=cells.RESULTS)
    given = parser.parse_args()
    plain = [Cell(given.private, METHOD.name, e) for e in given.epsilons]
    rows = {
        "alone": plain,
        "public features": [replace(cell, public=given.public) for cell in plain],
        "tuned on": [tuned(given.private, given.public, e) for e in given.epsilons],
    }
    wanted = [replace(cell, seed=seed) for row in rows.values() for cell in row for seed in range(given.seeds)]
    done = cells.run(wanted, given.results, given.workers)
    print("\n".join(table(rows, given.epsilons, given.seeds, done)))
    print({f"{cell.epsilon:g}": cell.given for cell in rows["tuned on"]})


if __name__ == "__main__":
    cells.start(main)
