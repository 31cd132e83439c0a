"""What several sites reach together and apart: the tables of federation.md, in docs/extensions/ and bench/tables/.

    python -m bench.federation FOLDER… --sites 5 20 --epsilon 1 0.5 4 --seeds 5

FOLDER has train_x.npy, train_y.npy, test_x.npy and test_y.npy. What the file of results has is not computed again.
Without a FOLDER the results are printed as tables. All is simulated (`bench.simulation`): nothing here is private.

The rivals of one plan have the same records, and each site spends the same ε. Heads that are *apart* are trained by
each site alone, and their scores or probabilities are averaged. In each round of *FedAvg* each site takes private steps
from the common head (DP-GD), and the heads are averaged. Averages are by records. FedAvg's rate, rounds, steps and
weights are those that do best on the test labels, which nobody with private data could choose.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from bench import cells
from bench.sets import Data, load
from bench.simulation import Simulated
from dpfc_cli import rounding
from dpfc_cli.extensions.federation import plan as plans
from dpfc_cli.extensions.federation.coordinator import Part, Sums
from dpfc_cli.extensions.federation.plan import Federation
from dpfc_cli.ledger.facts import new_id
from dpfc_cli.methods import first_order
from dpfc_cli.methods.linear import start
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.privacy.chain import Clip, run
from dpfc_cli.privacy.oracle import Oracle, Plan
from dpfc_cli.privacy.queries import Gradient, Query

RESULTS = Path("bench/results/federation.jsonl")
DELTA = 1e-5
LEAST = 50
"""The records of the smallest site."""
RATES = (20.0, 60.0, 200.0)
"""Of FedAvg. They are compared at the first of the shapes."""
SHAPES = ({"rounds": 50, "steps": 2}, {"rounds": 10, "steps": 10}, {"rounds": 20, "steps": 1})
"""Rounds of FedAvg, and steps in each."""
SQUARED = {**SHAPES[0], "power": 2}
"""Heads are averaged by squares of the numbers of records: the best weights for what has equal noise."""


def local(oracle: Oracle) -> Part:
    """A site of this process."""

    def part(number: int, part: int, query: Query) -> np.ndarray:
        assert part == 0, "answers in pieces need sockets"
        return oracle.release(query)

    return part


def plan_of(
    sizes: list[int], d: int, m: int, epsilons: list[float], method: str = "dp-whitened", colluding: int = 0
) -> Federation:
    """A plan of sites of these sizes. colluding: with masks; 0 without."""
    features = plans.Recipe(backbone={}, dim=d, dtype="float32", preparation=None)
    sites = [
        plans.Part(name=f"site-{i}", n=n, epsilon=e, key=f"{i:064x}")
        for i, (n, e) in enumerate(zip(sizes, epsilons, strict=True))
    ]
    known: dict[str, Any] = {"id": new_id(), "method": method, "options": {}, "adjacency": "zero-out", "k": 1}
    known["colluding"] = colluding or max(1, len(sizes) - 1)
    classes = tuple(f"class {j}" for j in range(m))
    return Federation(**known, sites=tuple(sites), classes=classes, features=features, delta=DELTA)


def even(y: np.ndarray, sites: int, chance: np.random.Generator) -> list[np.ndarray]:
    return np.array_split(chance.permutation(len(y)), sites)


def by_classes(y: np.ndarray, sites: int, chance: np.random.Generator) -> list[np.ndarray]:
    order = chance.permutation(len(y))
    return np.array_split(order[np.argsort(y[order], kind="stable")], sites)


def dirichlet(y: np.ndarray, sites: int, chance: np.random.Generator) -> list[np.ndarray]:
    """The parts of each class are drawn, until the smallest site has `LEAST` records."""
    while True:
        parts = chance.dirichlet([0.1] * sites, int(y.max()) + 1)
        owners = (parts.cumsum(axis=1)[y] < chance.random((len(y), 1))).sum(axis=1).clip(max=sites - 1)
        if np.bincount(owners, minlength=sites).min() >= LEAST:
            return [np.flatnonzero(owners == i) for i in range(sites)]


def one_large(y: np.ndarray, sites: int, chance: np.random.Generator) -> list[np.ndarray]:
    order = chance.permutation(len(y))
    large = len(y) * 4 // 5
    return [order[:large], *np.array_split(order[large:], sites - 1)]


SPLITS = {"even": even, "by classes": by_classes, "Dirichlet 0.1": dirichlet, "one has 80 %": one_large}
EQUAL = ("even", "by classes")
"""Splits in which all sites have as many records."""


class Trial:
    """Sites with the records of one split, and the noise of one seed."""

    def __init__(self, data: str, split: str, sites: int, epsilon: float, seed: int) -> None:
        self.data, self._seed = load(data), seed
        cuts = SPLITS[split](self.data.y, sites, np.random.default_rng(seed))
        test = self.data.test_x, self.data.test_y, self.data.m
        self._parts = [Data(self.data.x[cut], self.data.y[cut], *test) for cut in cuts]
        self.sizes = [len(cut) for cut in cuts]
        self.plan = plan_of(self.sizes, self.data.facts.d, self.data.m, [epsilon] * sites)

    def oracles(self, releases: Plan) -> list[Simulated]:
        return [
            Simulated(part, releases, claim.noise.mu, 1000 * self._seed + i)
            for i, (part, claim) in enumerate(zip(self._parts, self.plan.claims, strict=True))
        ]

    def scores(self, head: Solution) -> np.ndarray:
        return np.asarray(run(head.chain, self.data.test_x.astype(np.float32), np) @ head.weight + head.bias)

    def right(self, scores: np.ndarray) -> float:
        """In percent."""
        return round(100 * float(np.mean(scores.argmax(axis=1) == self.data.test_y)), 2)


def one_plan(**of: Any) -> float:
    trial = Trial(**of)
    plan, solver = trial.plan, trial.plan.solver
    sums = Sums(solver.noise, [local(each) for each in trial.oracles(solver.plan)], plan.weights)
    return trial.right(trial.scores(solver.method.solve(sums, solver.facts, solver.options)))


def one_place(data: str, sites: int, colluding: int, epsilon: float, seed: int) -> float:
    """The whole set, with the noise of all sites of which so many collude. It does not matter who has which records."""
    mu = mu_for(epsilon, DELTA) * math.sqrt((sites - colluding) / sites)
    return one_plan(data=data, split="even", sites=1, epsilon=epsilon_for(mu, DELTA), seed=seed)


def apart(**of: Any) -> list[float]:
    """Of heads that each site trains alone: their mean accuracy, that of averaged scores, and of probabilities."""
    trial = Trial(**of)
    made = [
        trial.scores(claim.method.solve(oracle, claim.facts, claim.options))
        for claim, oracle in zip(trial.plan.claims, trial.oracles(trial.plan.solver.plan), strict=True)
    ]
    several = (np.average(each, axis=0, weights=trial.sizes) for each in (made, [softmax(s, axis=1) for s in made]))
    return [round(statistics.mean(map(trial.right, made)), 2), *map(trial.right, several)]


def fed_avg(rate: float, rounds: int, steps: int, power: int = 1, **of: Any) -> float:
    """Records have length 1, and their gradients 0.5 at most. Heads are averaged by numbers of records to a power."""
    trial = Trial(**of)
    releases = first_order.plan(trial.data.facts, first_order.Planned(steps=rounds * steps, loss="softmax"))
    oracles, chain = trial.oracles(releases), (Clip(1e-30),)
    theta = start(trial.data.facts, "softmax", 1.0)
    for _ in range(rounds):
        heads = []
        for oracle, size in zip(oracles, trial.sizes, strict=True):
            own = theta
            for _ in range(steps):
                query = Gradient(chain, own, clip=first_order.GRADIENT_CLIP, constant=1.0, loss="softmax")
                own = own - rate / size * oracle.release(query)
            heads.append(own)
        theta = np.average(heads, axis=0, weights=np.power(trial.sizes, float(power)))
    return trial.right(trial.scores(Solution(chain=chain, weight=theta[:-1], bias=theta[-1])))


class Kept:
    """The results in a file. folder: of the sets; what is missing is computed and kept. None: it is NaN."""

    def __init__(self, results: Path, folder: Path | None) -> None:
        self._results, self._folder, self._done = results, folder, cells.read(results)

    def of(self, work: Callable[..., Any], **of: Any) -> Any:
        key = json.dumps({"way": work.__name__, **of}, sort_keys=True)
        if key not in self._done and self._folder is not None:
            self._done[key] = work(**{**of, "data": str(self._folder / of["data"])})
            cells.keep(self._results, key, self._done[key])
            print(self._done[key], key, flush=True)
        return self._done.get(key, math.nan)

    def mean(self, seeds: int, work: Callable[..., Any], **of: Any) -> np.ndarray:
        """Of the results of all seeds. NaN if one is missing."""
        found = [self.of(work, **of, seed=seed) for seed in range(seeds)]
        return np.asarray(math.nan if any(each is math.nan for each in found) else np.mean(found, axis=0))

    def tuned(self, seeds: int, **of: Any) -> float:
        """FedAvg with the options that do best at the first seed."""

        def first(options: dict[str, Any]) -> float:
            return float(self.of(fed_avg, **of, **options, seed=0))

        shapes = SHAPES if of["split"] in EQUAL else (*SHAPES, SQUARED)
        rate = max(RATES, key=lambda rate: first({"rate": rate, **shapes[0]}))
        best = max(shapes, key=lambda shape: first({"rate": rate, **shape}))
        return float(self.mean(seeds, fed_avg, **of, rate=rate, **best))

    def summed(self, seeds: int, colluding: int, **of: Any) -> float:
        """The sum of all sites, of which so many collude. All others: it is the sum without masks."""
        return float(self.mean(seeds, one_place, colluding=colluding, **of))

    def joint(self, seeds: int, split: str, **of: Any) -> float:
        """One plan without masks."""
        if split in EQUAL:
            return self.summed(seeds, of["sites"] - 1, **of)
        return float(self.mean(seeds, one_plan, split=split, **of))

    def apart(self, seeds: int, split: str, **of: Any) -> np.ndarray:
        """As `apart`."""
        return np.broadcast_to(self.mean(seeds, apart, split=split, **of), 3)


SETS = {"cifar10-vit-ti16": "CIFAR-10", "cifar100-vit-ti16": "CIFAR-100", "clinc150-minilm": "CLINC150"}
RIVALS = ("scores", "probabilities", "FedAvg")


def said(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}"


def rivals(kept: Kept, seeds: int, **of: Any) -> list[float]:
    """What sites that do not share a plan reach: see `RIVALS`."""
    return [*kept.apart(seeds, **of)[1:], kept.tuned(seeds, **of)]


def lines(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table in Markdown."""
    columns = list(head)
    yield from (f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))


def table_of_masks(kept: Kept, seeds: int) -> Iterator[str]:
    """What masks are worth where ε with masks is 1."""
    rows = []
    for sites, colluding in ((1, 0), (5, 4), (5, 2), (5, 1), (20, 19), (20, 10), (20, 1)):
        masked = sites > 1 and colluding < sites - 1
        own = epsilon_for(mu_for(1.0, DELTA) * math.sqrt(sites - colluding), DELTA) if masked else 1.0
        of: dict[str, Any] = {"sites": max(sites, 5), "colluding": colluding, "epsilon": 1.0}
        reached = [said(kept.summed(seeds, data=data, **of)) for data in SETS]
        who = ["one place", "–"] if sites == 1 else [str(sites), str(colluding) if masked else "all others"]
        rows.append([*who, rounding.rounded_up(own, 3), "1" if masked else "–", *reached])
    return lines(["sites", "may collude", "ε of each site, whoever colludes", "ε with masks", *SETS.values()], rows)


def table_of_rivals(kept: Kept, seeds: int) -> Iterator[str]:
    """Five sites with ε = 1 each."""
    rows = []
    for data, name in SETS.items():
        for split in SPLITS:
            of: dict[str, Any] = {"data": data, "sites": 5, "epsilon": 1.0, "split": split}
            reached = [*rivals(kept, seeds, **of), kept.joint(seeds, **of)]
            alone = said(float(kept.apart(seeds, **of)[0]))
            best = np.nanmax(reached)
            told = [f"**{said(each)}**" if each == best else said(each) for each in reached]
            rows.append([name if split == "even" else "", split, alone, *told])
    return lines(["set", "split", "alone", *RIVALS, "one plan"], rows)


def table_of_all(kept: Kept, seeds: int) -> Iterator[str]:
    """All numbers of sites and all ε: what is reached on each split with one plan, and by the best rival."""
    rows = []
    for data, name in SETS.items():
        for sites in (5, 20):
            for epsilon in (0.5, 1.0, 4.0):
                of = {"data": data, "sites": sites, "epsilon": epsilon}
                masked = [said(kept.summed(seeds, colluding, **of)) for colluding in (0, 1, sites // 2)]
                told = []
                for split in SPLITS:
                    found = dict(zip(RIVALS, rivals(kept, seeds, split=split, **of), strict=True))
                    best = max(found, key=lambda rival: np.nan_to_num(found[rival]))
                    told.append(f"{said(kept.joint(seeds, split, **of))}; {said(found[best])} {best[0].upper()}")
                rows.append([name, str(sites), f"{epsilon:g}", *masked, *told])
    return lines(["set", "sites", "ε", "one place", "masks, t = 1", "masks, t = half", *SPLITS], rows)


TABLES = (table_of_masks, table_of_rivals, table_of_all)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--sites", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 0.5, 4.0])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    asked = [
        (Kept(RESULTS, folder.parent), {"data": folder.name, "sites": sites, "epsilon": epsilon})
        for epsilon in given.epsilon
        for sites in given.sites
        for folder in given.folders
    ]
    for kept, of in asked:
        for colluding in (0, 1, of["sites"] // 2, of["sites"] - 1):
            kept.summed(given.seeds, colluding, **of)
        for split in SPLITS:
            kept.joint(given.seeds, split, **of)
            kept.apart(given.seeds, split, **of)
    for kept, of in asked:
        for split in SPLITS:
            kept.tuned(given.seeds, split=split, **of)
    if not asked:
        for table in TABLES:
            print("\n".join(table(Kept(RESULTS, None), given.seeds)), end="\n\n")


if __name__ == "__main__":
    main()
