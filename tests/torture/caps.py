"""Many charges at once under caps: `python -m tests.torture.caps`.

Four sets are of two populations, and of one of them nothing is said. Caps are drawn by chance: for each population, for
both, or for all. Then 8 processes try to charge 1,000 trainings and evaluations to the one ledger, as fast as they can.
Nothing may be charged beyond a cap, no fact may be lost, and each refusal must be right.

What was spent is summed without dpfc, from the facts alone, and compared with the caps by the formula of Balle and
Wang.
"""

import json
import math
import random
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.privacy.accounting import mu_for
from tests.torture import campaign, machine, witness
from tests.torture.campaign import Case
from tests.torture.witness import Seen

SETS = {"east": "east", "east-again": "east", "west": "west", "unsaid": None}
"""Sets and their populations."""
DELTA = 1e-5
EPSILONS = (0.05, 0.1, 0.2, 0.4)


def cases(seed: int, count: int, processes: int, attempts: int) -> Iterator[Case]:
    """Caps drawn by chance: some of the tries fit, and some do not. caps: for which set each is set, and its ε."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        names = rng.choice([("east",), ("unsaid",), ("east", "west"), ("east", "west", "unsaid")])
        caps = {name: round(rng.uniform(0.5, 1 + 3 * attempts / 1000), 3) for name in names}
        yield {
            **{"job": "race", "what": "+".join(names), "caps": caps, "processes": processes},
            **{"attempts": attempts, "seed": seed, "number": number},
        }


def made(place: Path, caps: Mapping[str, float]) -> None:
    """The sets with their caps."""
    from dpfc_cli.extraction.importing import import_features
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.ledger.caps import set_cap

    for number, (name, population) in enumerate(SETS.items()):
        rng, parts = np.random.default_rng(number), dict[str, Any]()
        for split, n in (("train", 60), ("test", 30)):
            parts |= {f"{split}_x": rng.normal(size=(n, 4)).astype("f4"), f"{split}_y": np.arange(n) % 3}
        np.savez(place / "raw.npz", **parts)
        folder = place / "work" / "features" / name
        import_features(place / "raw.npz", folder, classes=3, labels_per_record=1, population=population)
    for name, epsilon in caps.items():
        set_cap(FeatureSet(place / "work" / "features" / name), epsilon, delta=DELTA)


def spent(seen: Seen, population: str) -> float:
    """The μ² of a population: of each set that is of it or may be, the split on which most was spent."""
    own = {fact["set"] for fact in seen.kind("set") if fact["population"] in (population, None)}
    splits: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for charge in seen.kind("charge"):
        if charge["set"] in own:
            splits.setdefault(charge["set"], {}).setdefault(charge["split"], []).append(charge)
    return math.fsum(max(map(witness.spent, each.values())) for each in splits.values())


def passed(seen: Seen) -> list[str]:
    """The caps that are passed. δ is computed with an error of 1e-11 of it, and slack is 1e-9."""
    return [
        f"delta = {found} of {cap['delta']} is spent on {name}"
        for cap in seen.kind("cap")
        for name in ("east", "west")
        if cap["population"] in (name, None)
        and (used := spent(seen, name))
        and (found := witness.delta_spent(cap["epsilon"], math.sqrt(used))) > cap["delta"]
    ]


def charge_often(place: Path, number: int, attempts: int, seed: str) -> None:
    """Try to charge trainings and evaluations, and note what became of each try."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.training.calibrate import calibrate
    from dpfc_cli.training.card import charge_of_training
    from dpfc_cli.training.charge import pay
    from dpfc_cli.training.request import Request

    rng = random.Random(f"{seed} {number}")
    opened = {name: FeatureSet(Path("features", name)) for name in SETS}
    with (place / "tried").open("ab", buffering=0) as notes:
        for tried in range(attempts):
            name, epsilon, split = rng.choice(list(SETS)), rng.choice(EPSILONS), rng.choice(("train", "train", "test"))
            features = opened[name]
            request = Request(features=features, folder=Path("heads"), epsilon=epsilon, delta=DELTA, method="dp-ls")
            calibrated = calibrate(request.chosen, request.facts, {}, request.privacy)
            fact = charge_of_training(calibrated, features, f"{tried}.safetensors", f"process {number}", f"try {tried}")
            fact = replace(fact, split=split)
            said: dict[str, Any] = {"set": name, "epsilon": epsilon, "split": split, "charge": fact.id}
            try:
                pay(calibrated, features, fact, again=True)
            except UserError as error:
                said["refused"] = error.code
            notes.write(json.dumps(said).encode() + b"\n")


def race(case: Case, place: Path) -> list[str]:
    """What processes break that charge at once in a working folder with caps."""
    before = witness.look(place / "work")
    waiting, each = [], case["attempts"] // case["processes"]
    for number in range(case["processes"]):
        other = place / f"process-{number}"
        other.mkdir()
        (other / "work").symlink_to(place / "work")
        often = partial(charge_often, other, number, each, f"{case['seed']} {case.get('number')}")
        waiting.append(machine.started(other, often))
    ends = [running.ended(3600.0) for running in waiting]
    wrong = [f"a process ended with {end.code}: {end.err[-300:]}" for end in ends if end.code != 0]
    seen = witness.look(place / "work")
    wrong += seen.wrong + passed(seen)
    if seen.facts[: len(before.facts)] != before.facts:
        wrong.append("the ledger lost or changed facts")
    tried = [json.loads(line) for other in waiting for line in (other.place / "tried").read_text().splitlines()]
    refused = [each for each in tried if "refused" in each]
    charged = [each for each in tried if "refused" not in each]
    if len(tried) != each * len(waiting):
        wrong.append(f"{len(tried)} tries are noted of {each * len(waiting)}")
    if {each["charge"] for each in charged} != {fact["id"] for fact in seen.kind("charge")}:
        wrong.append(f"{len(charged)} charges were promised, and {len(seen.kind('charge'))} are there")
    if {each["refused"] for each in refused} - {"over-cap", "busy"}:
        wrong.append(f"refused for another reason: { {each['refused'] for each in refused} }")
    wrong += _refusals(seen, [each for each in refused if each["refused"] == "over-cap"])
    if not (charged and refused):
        wrong.append("no cap was reached")
    print(f"{case['caps']}: {len(tried):,} tries, {len(charged):,} charged, {len(refused):,} refused", flush=True)
    return wrong


def _refusals(seen: Seen, refused: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was refused, and fits. Sums only grow, so what did not fit then does not fit now, either."""
    ids = {fact["name"]: fact["set"] for fact in seen.kind("set")}
    wrong = []
    for name, epsilon, split in {(each["set"], each["epsilon"], each["split"]) for each in refused}:
        release = {"times": 1, "sigma": 1 / mu_for(epsilon, DELTA)}
        more = {"kind": "charge", "set": ids[name], "split": split, "releases": [release]}
        if not passed(Seen(files={}, facts=[*seen.facts, more], wrong=[])):
            wrong.append(f"epsilon = {epsilon} on {split} of {name} was refused, and fits")
    return wrong


def attempt(case: Case, place: Path) -> list[str]:
    """What a case breaks."""
    shutil.rmtree(place, ignore_errors=True)
    (place / "work").mkdir(parents=True)
    ended = machine.run(place, partial(made, place, case["caps"]))
    return race(case, place) if ended.code == 0 else [f"the sets cannot be made: {ended.err[-300:]}"]


def main() -> int:
    """The campaign."""
    parser = campaign.arguments(str(__doc__), 8)
    parser.add_argument("--processes", type=int, default=8, help="of a race (default: %(default)s)")
    parser.add_argument("--attempts", type=int, default=1000, help="of a race, in all (default: %(default)s)")
    options = parser.parse_args()
    campaign.begun()
    with machine.scratch() as root:
        path = options.results or campaign.RESULTS / "caps.jsonl"
        found = cases(options.seed, options.count, options.processes, options.attempts)
        return campaign.carry_out(found, attempt, options, path, root)


if __name__ == "__main__":
    sys.exit(bool(main()))
