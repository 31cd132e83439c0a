"""Measures how often the warning is right that noise hides the classes, for a table of docs/extensions/planning.md.

`python -m bench.kept FOLDER` trains on sets of three groups at ten ε, three seeds each, simulated (`bench.simulation`).
FOLDER has the real sets. What a training kept is its accuracy beyond guessing, in parts of the most that was reached at
any ε or without noise. Guessing names the commonest class. The rule (`training.calibrate.kept`) was fitted to the first
group, and is judged on the others.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench import cells, synthetic
from bench.sets import Data, load
from bench.simulation import Simulated
from dpfc_cli.heads.head import Scorer
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import POOR, calibrate, kept

RESULTS = Path("bench/results/kept.jsonl")
EPSILONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = 3
METHOD = METHODS["dp-whitened"]
FITTED, REAL, ASIDE = "made up, fitted to", "real", "made up, kept aside"
PARTS = (
    *(("cifar10-vit-ti16", n) for n in (50_000, 5000, 1000, 300)),
    *(("cifar100-vit-ti16", n) for n in (25_000, 5000, 1000)),
    *(("banking77-minilm", n) for n in (10_003, 2500)),
    *(("clinc150-minilm", n) for n in (18_000, 5000)),
)
"""Real sets, whole and in part."""


@dataclass(frozen=True)
class Row:
    """What a training was expected to keep, and what it kept."""

    expected: float
    kept: float


def drawn(seed: int, largest: float, widest: float) -> synthetic.Family:
    """A family of which each property is drawn. largest: the exponent of 10 of n; widest: that of 2 of d."""
    rng = np.random.default_rng(1000 + seed)
    d, m = int(2 ** rng.uniform(4, widest)), int(min(2 ** rng.uniform(1, 7), 120))
    n = int(10 ** rng.uniform(2.7, largest))
    return synthetic.Family(
        n=max(n, 5 * m),
        d=d,
        m=m,
        decay=float(rng.uniform(0.4, 2)),
        apart=float(rng.uniform(2, 6) + np.log2(m) * 0.3),
        strong=float(rng.choice([0, 0.5, 0.5, 1])),
        offset=float(rng.uniform(0.1, 0.8)),
        zipf=float(rng.choice([0, 0, 0, 0.5, 1])),
        tails=int(rng.choice([0, 0, 0, 4])),
    )


def _made(family: synthetic.Family) -> Data:
    made = synthetic.draw(family)
    return Data(made["train_x"], made["train_y"], made["test_x"], made["test_y"], family.m)


def _part(path: Path, n: int) -> Data:
    data = load(str(path))
    chosen = np.random.default_rng(0).permutation(len(data.x))[:n] if n < len(data.x) else slice(None)
    return replace(data, x=data.x[chosen], y=data.y[chosen])


def sets(folder: Path) -> Iterator[tuple[str, str, Callable[[], Data]]]:
    """The group, the name and the records of each set."""
    for name, family in synthetic.FAMILY.items():
        yield FITTED, name, partial(_made, family)
    for i in range(17):
        yield FITTED, f"drawn-{i}", partial(_made, drawn(i, 4.6, 10))
    for name, n in PARTS:
        yield REAL, f"{name}-{n}", partial(_part, folder / name, n)
    for i in range(100, 125):
        yield ASIDE, f"drawn-{i}", partial(_made, drawn(i, 4.2, 9))


def _accuracy(solution: Solution, data: Data) -> float:
    head = Scorer(chain=solution.chain, weight=solution.weight, bias=solution.bias)
    return float(100 * (head.scores(data.test_x).argmax(axis=1) == data.test_y).mean())


def measured(data: Data) -> dict[str, object]:
    """The accuracies in percent: without noise, of guessing, and of each seed at each ε."""
    facts = data.facts
    records = Unprotected(cells.stream_of(data.x, data.y))
    plain = METHOD.solve(NonPrivate(facts, records), facts, METHOD.defaults(facts, None, {}))
    commonest = np.bincount(data.y, minlength=facts.m).argmax()
    found = {}
    for epsilon in EPSILONS:
        made = calibrate(METHOD, facts, {}, Privacy(epsilon=epsilon))
        assert made.guarantee is not None
        mu = made.guarantee.mu
        runs = (Simulated(data, made.plan, mu, seed) for seed in range(SEEDS))
        found[f"{epsilon:g}"] = [round(_accuracy(METHOD.solve(run, facts, made.options), data), 3) for run in runs]
    return {
        **{"n": facts.n, "m": facts.m, "d": facts.d, "plain": _accuracy(plain, data)},
        **{"guessed": 100 * float((data.test_y == commonest).mean()), "found": found},
    }


def rows(results: Path) -> dict[str, list[Row]]:
    """By group, all trainings that are stored."""
    made: dict[str, list[Row]] = {FITTED: [], REAL: [], ASIDE: []}
    for line in results.read_text().splitlines():
        row = json.loads(line)
        facts = Facts(n=row["n"], m=row["m"], d=row["d"])
        then = {float(epsilon): statistics.mean(runs) for epsilon, runs in row["found"].items()}
        most, guessed = max(row["plain"], *then.values()), row["guessed"]
        for epsilon, accuracy in then.items():
            expected = kept(calibrate(METHOD, facts, {}, Privacy(epsilon=epsilon)))
            made[row["group"]].append(Row(expected, (accuracy - guessed) / (most - guessed)))
    return made


def table(found: dict[str, list[Row]]) -> Iterator[str]:
    """Markdown: what was said, against what came."""
    yield "| trainings | warned, poor | warned, not poor | not warned, poor | not warned, not poor | right | off by |"
    yield "| --- " * 7 + "|"
    for group, each in found.items():
        said, came = [row.expected < POOR for row in each], [row.kept < POOR for row in each]
        pairs = list(zip(said, came, strict=True))
        counts = [str(pairs.count(pair)) for pair in ((True, True), (True, False), (False, True), (False, False))]
        right = sum(warned == poor for warned, poor in pairs) / len(pairs)
        off = statistics.median(abs(row.expected - row.kept) for row in each)
        yield f"| {group}: {len(each)} | {' | '.join(counts)} | {right:.0%} | {100 * off:.0f} points |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the real sets lie as folders of arrays")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    done = {(row["group"], row["set"]) for row in map(json.loads, lines)}
    for group, name, data in sets(given.folder):
        if (group, name) not in done:
            row = {"group": group, "set": name, **measured(data())}
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
    print("\n".join(table(rows(given.results))))


if __name__ == "__main__":
    main()
