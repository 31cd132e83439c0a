"""Measures what records without labels, and vectors that say which classes are alike, are worth:
`python -m bench.unlabelled SET… [--wrong SET] [--similarity FILE] [--out FILE]`.

A line of JSON for each head: its accuracy on the test split in percent, and by how many points it changes if it is
adapted to: the whole test split, scored itself (`together`); 2,500, 300 or 50 records of one half, scored on the
other; one half with shares of classes as 1/j; records of another set (`wrong`). `similar`: by how many it changes if it
is trained with `--class-similarity`; `permuted`: with the vectors of other classes; `similar, together`: with both.
Heads are simulated (`bench.simulation`). A line that FILE has already is not made again.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.sets import Data, load
from bench.simulation import Simulated
from dpfc_cli.methods import METHODS
from dpfc_cli.methods.method import Solution
from dpfc_cli.methods.similarity import Similarity
from dpfc_cli.methods.unlabelled import adapt
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import run
from dpfc_cli.training.calibrate import calibrate

METHOD = METHODS["dp-whitened"]
EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 3.0, 8.0)


def trained(data: Data, epsilon: float, seed: int, similarity: np.ndarray | None = None) -> Solution:
    guarantee = calibrate(METHOD, data.facts, {}, Privacy(epsilon=epsilon)).guarantee
    assert guarantee is not None
    options = METHOD.defaults(data.facts, guarantee.mu, {})
    if similarity is not None:
        options = replace(options, similarity=Similarity(vectors=similarity))
    return METHOD.solve(Simulated(data, METHOD.plan(data.facts, options), guarantee.mu, seed), data.facts, options)


def white(head: Solution, x: np.ndarray) -> np.ndarray:
    return np.asarray(run(head.chain, x.astype(np.float32), np), float)


def tilted(labels: np.ndarray, m: int, random: np.random.Generator) -> np.ndarray:
    """Which of these records have shares of classes as 1/j, in a random order of the classes."""
    shares = 1 / (1 + random.permutation(m))
    return np.asarray(random.random(len(labels)) < shares[labels])


def line(data: Data, epsilon: float, seed: int, wrong: Data | None, similarity: np.ndarray | None) -> dict[str, float]:
    head, random = trained(data, epsilon, seed), np.random.default_rng(1000 + seed)
    assert head.evidence is not None
    x, y = white(head, data.test_x), data.test_y
    order = random.permutation(len(y))
    mine, others = order[: len(y) // 2], order[len(y) // 2 :]

    def right(weight: np.ndarray, bias: np.ndarray, rows: np.ndarray) -> float:
        return float(100 * ((x[rows] @ weight + bias).argmax(axis=1) == y[rows]).mean())

    def gain(unlabelled: np.ndarray, rows: np.ndarray) -> float:
        assert head.evidence is not None
        made = adapt(head.weight, head.bias, head.evidence, unlabelled)
        return round(right(made.weight, made.bias, rows) - float(before[rows].mean()), 3)

    before = 100 * ((x @ head.weight + head.bias).argmax(axis=1) == y)
    found = {"head": round(before.mean(), 3), "together": gain(x, order)}
    found |= {str(n): gain(x[mine[:n]], others) for n in (2500, 300, 50)}
    found["shares 1/j"] = gain(x[mine[tilted(y[mine], data.m, random)]], others)
    if wrong is not None:
        found["wrong"] = gain(white(head, wrong.test_x[random.permutation(len(wrong.test_x))[:2500]]), order)
    if similarity is not None:
        for name, vectors in (("permuted", random.permutation(similarity)), ("similar", similarity)):
            head = trained(data, epsilon, seed, vectors)
            found[name] = round(right(head.weight, head.bias, order) - before.mean(), 3)
        found["similar, together"] = gain(x, order)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_argument("--wrong", metavar="SET", help="records of another task, with as many features")
    parser.add_argument("--similarity", metavar="FILE", help="vectors of the classes, in their order (.npy)")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, help="only so many of the training records", metavar="N")
    parser.add_argument("--out", type=Path, default=Path("bench/results/unlabelled.jsonl"))
    given = parser.parse_args(arguments)
    known = [json.loads(each) for each in given.out.read_text().splitlines()] if given.out.exists() else []
    done = {(each["set"], each["epsilon"], each["seed"]) for each in known}
    for name in given.sets:
        data = load(name)
        called = Path(name).name
        if given.first is not None:
            some = np.random.default_rng(0).permutation(len(data.y))[: given.first]
            data = Data(data.x[some], data.y[some], data.test_x, data.test_y, data.m)
            called += f" ({given.first:,})"
        wrong = None if given.wrong is None else load(given.wrong)
        similarity = None if given.similarity is None else np.load(given.similarity)
        for epsilon in given.epsilons:
            for seed in range(given.seeds):
                if (called, epsilon, seed) not in done:
                    found = {
                        "set": called,
                        "epsilon": epsilon,
                        "seed": seed,
                        **line(data, epsilon, seed, wrong, similarity),
                    }
                    with given.out.open("a") as file:
                        file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
