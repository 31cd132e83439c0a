"""How good a head of several sites is, on features that lie in NumPy files.

    python -m bench.federation FOLDER --epsilon 1 --seeds 5 --sizes 0.2,0.2,0.2,0.2,0.2

With --apart each site trains alone: the mean of their accuracies, and those of averaged scores and probabilities.
With --colluding T the ε are those of masks, while at most T of the other sites collude. Pads cancel, so none are made.

FOLDER has train_x.npy, train_y.npy, test_x.npy and test_y.npy. The noise comes from seeds: nothing here is private.
"""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from dpfc_cli.federation import plan as plans
from dpfc_cli.federation.coordinator import Part, Sums
from dpfc_cli.federation.plan import Federation
from dpfc_cli.ledger.facts import new_id
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.chain import run
from dpfc_cli.privacy.curator import Curator, NonPrivate, Unprotected
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Oracle
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.privacy.queries import Query

DELTA = 1e-5


def local(oracle: Oracle) -> Part:
    """A site of this process."""

    def part(number: int, part: int, query: Query) -> np.ndarray:
        assert part == 0, "answers in pieces need sockets"
        return oracle.release(query)

    return part


def stream_of(x: np.ndarray, y: np.ndarray) -> BlockStream:
    return lambda rows: ((at, x[at : at + rows], y[at : at + rows, None]) for at in range(0, len(x), rows))


def plan_of(
    sizes: list[int], d: int, m: int, epsilons: list[float], method: str = "dp-whitened", colluding: int = 0
) -> Federation:
    """A plan of sites of these sizes. colluding: with masks; 0 without."""
    features = {"backbone": {}, "dim": d, "dtype": "float32", "preparation": None}
    sites = [
        plans.Part(name=f"site-{i}", n=n, epsilon=e, key=f"{i:064x}")
        for i, (n, e) in enumerate(zip(sizes, epsilons, strict=True))
    ]
    known: dict[str, Any] = {"id": new_id(), "method": method, "options": {}, "adjacency": "zero-out", "k": 1}
    known["colluding"] = colluding or max(1, len(sizes) - 1)
    classes = tuple(f"class {j}" for j in range(m))
    return Federation(**known, sites=tuple(sites), classes=classes, features=features, delta=DELTA)


def accuracy(plan: Federation, parts: list[Any], test: Any, seed: int | None, weights: Any = None) -> float:
    """The accuracy on `test` of the head of these parts. seed: of the noise; None: none."""
    sites: list[Part] = []
    for i, (claim, (x, y)) in enumerate(zip(plan.claims, parts, strict=True)):
        records = Unprotected(stream_of(x, y))
        assert claim.mechanism is not None
        if seed is None:
            sites.append(local(NonPrivate(claim.facts, records, claim.plan, shelf=InMemory())))
        else:
            bits = SeededBits(1000 * seed + i)
            sites.append(local(Curator(claim.mechanism, records, bits, shelf=InMemory())))
    solver = plan.solver
    assert solver.mechanism is not None
    oracle = Sums(solver.mechanism, sites, weights or plan.weights)
    head = solver.method.solve(oracle, solver.facts, solver.options)
    scores = run(head.chain, test[0].astype(np.float32), np) @ head.weight + head.bias
    return float(np.mean(scores.argmax(axis=1) == test[1]))


def apart(plan: Federation, parts: list[Any], test: Any, seed: int) -> list[float]:
    """The accuracy of heads that each site trains alone: their mean, their averaged scores, averaged probabilities."""
    made = []
    for i, (claim, (x, y)) in enumerate(zip(plan.claims, parts, strict=True)):
        assert claim.mechanism is not None
        records = Unprotected(stream_of(x, y))
        oracle = Curator(claim.mechanism, records, SeededBits(1000 * seed + i), shelf=InMemory())
        head = claim.method.solve(oracle, claim.facts, claim.options)
        made.append(run(head.chain, test[0].astype(np.float32), np) @ head.weight + head.bias)
    sizes = [len(y) for _, y in parts]
    scores = sum(n * each for n, each in zip(sizes, made, strict=True))
    probabilities = sum(n * softmax(each, axis=1) for n, each in zip(sizes, made, strict=True))
    right = [float(np.mean(each.argmax(axis=1) == test[1])) for each in (*made, scores, probabilities)]
    return [float(np.mean(right[:-2])), *right[-2:]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epsilon", default="1")
    parser.add_argument("--sizes", default="0.2,0.2,0.2,0.2,0.2")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--by-class", action="store_true", help="each site has its own classes")
    parser.add_argument("--method", default="dp-whitened")
    parser.add_argument("--colluding", type=int, default=0)
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    x, y, *test = (np.load(given.folder / f"{name}.npy") for name in ("train_x", "train_y", "test_x", "test_y"))
    x, y, m = x.astype(np.float32), y.astype(np.int32), int(y.max()) + 1
    fractions = np.cumsum([float(each) for each in given.sizes.split(",")])
    epsilons = [float(each) for each in given.epsilon.split(",")]
    epsilons = epsilons * len(fractions) if len(epsilons) == 1 else epsilons
    if given.colluding:
        honest = len(epsilons) - given.colluding
        epsilons = [epsilon_for(math.sqrt(honest) * mu_for(each, DELTA), DELTA) for each in epsilons]
    found = []
    for seed in range(given.seeds):
        order = np.random.default_rng(seed).permutation(len(x))
        order = order[np.argsort(y[order], kind="stable")] if given.by_class else order
        cuts = np.split(order, np.rint(fractions[:-1] * len(x)).astype(int))
        plan = plan_of([len(each) for each in cuts], x.shape[1], m, epsilons, given.method, given.colluding)
        parts = [(x[each], y[each]) for each in cuts]
        found.append(apart(plan, parts, test, seed) if given.apart else [accuracy(plan, parts, test, seed)])
        print(f"seed {seed}: {np.round(np.multiply(100, found[-1]), 2)}", flush=True)
    weights = ", ".join(f"{each:.3g}" for each in plan.weights)
    print(f"mean {np.round(100 * np.mean(found, axis=0), 2)}, weights {weights}")


if __name__ == "__main__":
    main()
