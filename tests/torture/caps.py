"""Many trainings at once under one cap: `python -m tests.torture.caps`.

In a *race* 8 processes try to charge 1,000 trainings to the ledgers of the same records, as fast as they can. The cap
lets some of them through. Nothing may be charged beyond it, no row may be lost, and each refusal must be right.

The other cases are two whole trainings at once under a cap. Both are killed at random system calls. Then each row must
say what became of it, each head must have its row, the cap must not be passed, and the next training must go on.

What was spent is summed without dpfc, from the rows alone, and compared with the cap by the formula of Balle and Wang.
"""

import json
import math
import random
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, get_args

import numpy as np

from dpfc_cli.privacy.accounting import mu_for
from tests.torture import campaign, machine, scenes, witness
from tests.torture.campaign import Case
from tests.torture.machine import FAULTS
from tests.torture.scenes import OWN, Scenes

LARGER = "larger"
"""A set that has the records of the others and some more."""
RACES = {
    **{"one ledger": ("blobs",), "two ledgers": ("blobs", "again"), "three ledgers": ("blobs", "again", "other")},
    "sets that share records": ("blobs", LARGER),
}
DELTA = 1e-5
TIGHT = {1.3: "one of them fits", 3.0: "both of them fit"}
"""Caps of two trainings of ε = 1, after one of 0.5."""
EPSILONS = (0.05, 0.1, 0.2, 0.4)
"""Of the trainings in a race."""


def cases(seed: int, count: int, processes: int, attempts: int) -> Iterator[Case]:
    """The races, then kills drawn by chance. moments: the parts of the runs, in calls, after which they are killed."""
    for name in RACES:
        # Some of the tries fit, and some do not.
        cap = 1 + 3 * attempts / 1000
        yield {"job": "race", "what": name, "cap": cap, "processes": processes, "attempts": attempts, "seed": seed}
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        cap = rng.choice(list(TIGHT))
        moments = [round(rng.random(), 6) for _ in range(2)]
        yield {"job": "killed", "what": TIGHT[cap], "cap": cap, "moments": moments, "seed": seed, "number": number}


def delta_spent(epsilon: float, mu: float) -> float:
    """δ(ε) of a μ-GDP mechanism, by its definition."""
    normal = NormalDist()
    return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * normal.cdf(-mu / 2 - epsilon / mu)


def spent(rows: dict[str, list[dict[str, Any]]]) -> float:
    """Σ 1/σ² of all rows of all ledgers."""
    releases = [release for each in rows.values() for row in each for release in json.loads(row["releases"])]
    return math.fsum(release["times"] / release["sigma"] ** 2 for release in releases)


def passed(rows: dict[str, list[dict[str, Any]]], cap: float) -> list[str]:
    """Whether the rows have passed a cap. δ is computed with an error of 1e-11 of it, and slack is 1e-9."""
    found = delta_spent(cap, math.sqrt(spent(rows)))
    return [f"delta = {found} of {DELTA} is spent"] if found > DELTA else []


def with_cap(scene: Scenes, cap: float, place: Path) -> None:
    """A working folder as for a training, with a cap."""
    kept = scene.root / f"capped-{cap}"
    if not kept.exists():
        scene.fresh("train", kept)
        line = ("budget", *OWN, "--cap", str(cap), "--delta", str(DELTA), "--by", "an officer", "--note", "a campaign")
        ended = machine.run(kept, line)
        assert ended.code == 0, ended.err
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kept, place)


def beside(place: Path, name: str) -> Path:
    """A place of its own for another process in the same working folder."""
    other = place / name
    other.mkdir()
    (other / "work").symlink_to(place / "work")
    return other


def charge_often(place: Path, sets: tuple[str, ...], number: int, attempts: int, seed: int) -> None:
    """Try to charge trainings, and note what became of each try."""
    from dpfc_cli.errors import UserError
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.training import ledger
    from dpfc_cli.training.account import account_of
    from dpfc_cli.training.calibrate import calibrate
    from dpfc_cli.training.charge import charge
    from dpfc_cli.training.check import Checked
    from dpfc_cli.training.request import Privacy, Request

    rng = random.Random(f"{seed} {number}")
    opened = {name: FeatureSet(Path("features", name)) for name in sets}
    known = {name: account_of(ledger.ledger_path(each.folder)) for name, each in opened.items()}
    with (place / "tried").open("ab", buffering=0) as notes:
        for tried in range(attempts):
            name, epsilon = rng.choice(sets), rng.choice(EPSILONS)
            request = Request(
                features=opened[name],
                folder=Path("heads"),
                privacy=Privacy(epsilon=epsilon),
                method="dp-ls",
                by=f"process {number}",
                purpose=f"try {tried}",
            )
            calibrated = calibrate(request.chosen, request.facts, {}, request.privacy)
            path = Path("heads", f"{number}-{tried}.safetensors")
            checked = Checked(request=request, calibrated=calibrated, path=path, account=known[name])
            said: dict[str, Any] = {"set": name, "epsilon": epsilon}
            try:
                charged = charge(checked)
            except UserError as error:
                notes.write(json.dumps({**said, "refused": error.code}).encode() + b"\n")
                continue
            state = rng.choice(get_args(ledger.State)[:3])
            if state != "charged":
                ledger.settle(charged.receipt, state, None, "0" * 64 if state == "written" else None)
            charged.temporary.unlink()
            row = {"id": charged.receipt.number, "who": request.by, "purpose": request.purpose, "state": state}
            notes.write(json.dumps({**said, "row": row}).encode() + b"\n")


def make_larger(folder: Path) -> None:
    """A set that has the training records of `blobs` and one more."""
    from dpfc_cli.extraction.importing import import_features
    from dpfc_cli.features.reader import FeatureSet

    blobs = FeatureSet(folder / "blobs")
    x, y = blobs.arrays("train")
    np.savez(folder.parent / "larger.npz", train_x=np.vstack([x, x[:1] + 1]), train_y=np.append(y, y[0]))
    import_features(folder.parent / "larger.npz", folder / LARGER, classes=blobs.classes, labels_per_record=1)


def race(case: Case, place: Path) -> list[str]:
    """What processes break that train at once in a working folder with a cap."""
    sets, before = RACES[case["what"]], witness.look(place / "work").rows
    features = place / "work" / "features"
    for name in sets[1:]:
        make_larger(features) if name == LARGER else shutil.copytree(features / "blobs", features / name)
    places = [beside(place, f"process-{number}") for number in range(case["processes"])]
    each = case["attempts"] // case["processes"]
    waiting = [
        machine.started(other, partial(charge_often, other, sets, number, each, case["seed"]))
        for number, other in enumerate(places)
    ]
    ends = [ended(None, 3600.0) for ended in waiting]
    wrong = [f"a process ended with {end.code}: {end.err[-300:]}" for end in ends if end.code != 0]
    seen = witness.look(place / "work")
    wrong += seen.wrong + passed(seen.rows, case["cap"])
    tried = [json.loads(line) for other in places for line in (other / "tried").read_text().splitlines()]
    if len(tried) != each * len(places):
        wrong.append(f"{len(tried)} tries are noted of {each * len(places)}")
    made = [try_ for try_ in tried if "row" in try_]
    for name in sets:
        path = f"features/{name}.ledger.sqlite"
        rows = seen.rows.get(path, [])[len(before.get(path, [])) :]
        noted = {try_["row"]["id"]: try_["row"] for try_ in made if try_["set"] == name}
        new = {row["id"]: {key: row[key] for key in ("id", "who", "purpose", "state")} for row in rows}
        if noted != new:
            wrong.append(f"{name}: {len(noted)} rows were promised, and {len(new)} are there")
    refused = [try_ for try_ in tried if "refused" in try_]
    if {try_["refused"] for try_ in refused} - {"over-cap"}:
        wrong.append(f"refused for another reason: { {try_['refused'] for try_ in refused} }")
    # Sums only grow, so what was refused does not fit now, either.
    for epsilon in {try_["epsilon"] for try_ in refused}:
        if delta_spent(case["cap"], math.hypot(math.sqrt(spent(seen.rows)), mu_for(epsilon, DELTA))) <= DELTA:
            wrong.append(f"epsilon = {epsilon} was refused, and fits")
    if not (made and refused):
        wrong.append("the cap was not reached")
    left = DELTA - delta_spent(case["cap"], math.sqrt(spent(seen.rows)))
    print(
        f"{case['what']}: {len(tried):,} tries, {len(made):,} charged, {len(refused):,} refused, "
        f"{left / DELTA:.2%} of delta left",
        flush=True,
    )
    return wrong


def killed(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What kills of two trainings break."""
    with_cap(scene, case["cap"], place)
    before = witness.look(place / "work")
    calls = len(scene.reference("train").ended.calls)
    places = [beside(place, name) for name in ("one", "other")]
    waiting = [
        machine.started(
            other,
            scene.line("train"),
            fault=FAULTS["kill"],
            at=1 + int(moment * calls),
            plant=partial(scenes.plant_trace, other),
        )
        for other, moment in zip(places, case["moments"], strict=True)
    ]
    ends = [ended(None, 120.0) for ended in waiting]
    seen = witness.look(place / "work")
    wrong = seen.wrong + _rows(before, seen, case)
    for other, end in zip(places, ends, strict=True):
        wrong += scenes.ending(end, fault=False)
        if end.code == 2 and "does not fit under the cap" not in end.err:
            wrong.append(f"refused: {scenes.first_lines(end.err)}")
        if (other / "read").exists() and seen.rows == before.rows:
            wrong.append("records were read, and no row was written")
    done = sum(end.code == 0 for end in ends)
    if sum(row["state"] == "written" for row in _new(before, seen)) < done:
        wrong.append("a training ended well, and its row does not say so")
    wrong += [f"left behind: {path}" for path in seen.strange if not witness.LEFT_BY_KILLS.fullmatch(path)]
    return wrong + _goes_on(scene, case, place, before, seen)


def _new(before: witness.Seen, seen: witness.Seen) -> list[dict[str, Any]]:
    return [row for name, rows in seen.rows.items() for row in rows[len(before.rows.get(name, [])) :]]


def _rows(before: witness.Seen, seen: witness.Seen, case: Case) -> list[str]:
    """Whether rows stay, say what became of the trainings, and do not pass the cap."""
    wrong = passed(seen.rows, case["cap"])
    for name, rows in before.rows.items():
        if seen.rows.get(name, [])[: len(rows)] != rows:
            wrong.append("a row of before was lost or changed")
    heads = {name: digest for name, digest in seen.heads.items() if name not in before.heads and name[0] != "."}
    new = _new(before, seen)
    if len(new) > 3 or {row["state"] for row in new} - {"charged", "written", "stopped"}:
        wrong.append(f"rows say {[row['state'] for row in new]}")
    for row in new:
        if row["state"] == "written" and heads.get(row["head"]) != row["sha256"]:
            wrong.append("a row says that a head was written which is not there")
    for name in heads:
        if not any(row["head"] == name and row["state"] in ("charged", "written") for row in new):
            wrong.append(f"head {name} has no row")
    return wrong


def _goes_on(scene: Scenes, case: Case, place: Path, before: witness.Seen, seen: witness.Seen) -> list[str]:
    """Whether budget can be asked, and the next training is charged if it fits and refused if not."""
    told = machine.run(place, ("budget", *OWN, "--json"))
    wrong = [] if told.code == 0 else [f"budget ended with {told.code}: {scenes.first_lines(told.err)}"]
    again = machine.run(place, scene.line("train"))
    now = witness.look(place / "work")
    wrong += now.wrong + _rows(before, now, case)
    fits = len(_new(before, seen)) < (1 if case["cap"] == min(TIGHT) else 5)
    if any(row["state"] in ("charged", "stopped") and "dp-ls" in row["method"] for row in _new(before, seen)):
        # It goes on under the row of the one that was stopped.
        if again.code != 0 or _new(seen, now):
            wrong.append(f"the training that was stopped did not go on, {again.code}: {scenes.first_lines(again.err)}")
    elif again.code != (0 if fits else 2) or len(_new(seen, now)) != fits:
        wrong.append(f"the next training ended with {again.code}: {scenes.first_lines(again.err)}")
    return wrong


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What a case breaks."""
    if case["job"] == "killed":
        return killed(scene, case, place)
    with_cap(scene, case["cap"], place)
    return race(case, place)


def main() -> int:
    """The campaign."""
    parser = campaign.arguments(str(__doc__), 200)
    parser.add_argument("--processes", type=int, default=8, help="of a race (default: %(default)s)")
    parser.add_argument("--attempts", type=int, default=1000, help="of a race, in all (default: %(default)s)")
    options = parser.parse_args()
    machine.restart_with_shim()
    with machine.scratch() as root:
        campaign.prepared(root)
        scene = scenes.made(root)
        if options.count:
            scene.reference("train")
        path = options.results or campaign.RESULTS / "caps.jsonl"
        found = list(cases(options.seed, options.count, options.processes, options.attempts))
        for cap in {case["cap"] for case in found}:
            with_cap(scene, cap, root / "made")
        return campaign.carry_out(found, partial(attempt, scene), options, path, root)


if __name__ == "__main__":
    sys.exit(bool(main()))
