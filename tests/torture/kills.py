"""Commands are killed at random moments: `python -m tests.torture.kills`.

A signal (SIGKILL, SIGINT, SIGTERM) comes after a random part of the time that the command takes, or SIGKILL comes at a
random system call, or in the middle of a random write; the last two are the same in every run with one seed. The
ledger is also charged many times in a row, and killed there. After each kill the folder is looked at without dpfc
(`witness`), and the same command must work again: an extraction or an import then ends with the same bytes as one that
was not killed. A training goes on under its charge, and no release has two answers.
"""

import argparse
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.torture import campaign, machine, scenes, witness
from tests.torture.campaign import Case
from tests.torture.machine import FAULTS, SIGNALS
from tests.torture.scenes import JOBS, Scenes
from tests.torture.witness import LEDGER

WAYS = ("call", "write", *SIGNALS)
"""SIGKILL before a system call, SIGKILL in the middle of a write, or a signal after some time."""
CHARGES = 12
"""Of one run that only charges and settles."""
NAMES = ("extract", "import", "zero-shot", "train", "steps", "tune", "start", "evaluate", "budget", "cap", "ledger")


def cases(seed: int, count: int, jobs: list[str], ways: list[str]) -> Iterator[Case]:
    """Kills drawn by chance. moment: the part of the run, in time or in calls, after which it is killed."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        job, way = rng.choice(jobs), rng.choice(ways)
        yield {"job": job, "what": way, "moment": round(rng.random(), 6), "seed": seed, "number": number}


def _only(fact: object, ledger: object) -> list[Any]:
    return [fact]


def charge_often(place: Path) -> None:
    """Charge and settle, and note each charge that is promised."""
    from dpfc_cli.ledger.facts import Charge, new_id
    from dpfc_cli.ledger.file import append, read
    from dpfc_cli.training.charge import Receipt, settle

    path = Path(LEDGER)
    first = read(path).all(Charge)[0]
    with (place / "charged").open("ab", buffering=0) as notes:
        for number in range(CHARGES):
            fact = replace(first, id=new_id(), head=f"{number}.safetensors")
            receipt = Receipt(charge=fact, ledger=append(path, partial(_only, fact), "The charge"))
            notes.write(f"{fact.id}\n".encode())
            if number % 3 == 1:
                settle(receipt, "written", 0, fact.head, "0" * 64)
            elif number % 3 == 2:
                settle(receipt, "stopped")


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What a kill breaks."""
    job = case["job"]
    if job == "ledger":
        return _ledger(scene, case, place)
    reference = scene.reference(job)
    scene.fresh(job, place)
    plant = partial(scenes.plant_trace, place) if JOBS[job].charges else None
    ended = machine.run(place, scene.line(job), plant=plant, **_kill(case, reference.ended))
    killed = ended.signal is not None
    wrong = scenes.judged(job, reference, place, ended, fault=False, killed=killed)
    return wrong + scenes.second(scene, job, place)


def _kill(case: Case, ended: machine.Ended) -> dict[str, Any]:
    """How `machine.run` is told of a kill."""
    if case["what"] in SIGNALS:
        return {"stop": (case["moment"] * ended.seconds, SIGNALS[case["what"]])}
    fault = FAULTS["kill" if case["what"] == "call" else "torn write"]
    calls = sum(kind in fault.kinds for kind, _ in ended.calls)
    return {"fault": fault, "at": 1 + int(case["moment"] * calls)}


def _ledger(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What was charged stays; at most one more is there, and no other fact changes."""
    scene.fresh("budget", place)
    before, run = witness.look(place / "work").facts, partial(charge_often, place)
    if "ledger" not in scene.references:
        ended = machine.run(place, run, watch=True)
        assert ended.code == 0, ended.err
        after = witness.look(place / "work")
        scene.references["ledger"] = scenes.Reference(ended=ended, before=after, after=after)
        scene.fresh("budget", place)
        (place / "charged").unlink(missing_ok=True)
    ended = machine.run(place, run, **_kill(case, scene.references["ledger"].ended))
    seen = witness.look(place / "work")
    promised = (place / "charged").read_text().split() if (place / "charged").exists() else []
    there = [fact["id"] for fact in seen.facts[len(before) :] if fact["kind"] == "charge"]
    wrong = list(seen.wrong)
    if seen.facts[: len(before)] != before:
        wrong.append("a fact of before was lost or changed")
    if there[: len(promised)] != promised or len(there) > len(promised) + 1:
        wrong.append(f"{len(promised)} were charged, and {len(there)} are there")
    if ended.signal not in (None, signal.SIGKILL, signal.SIGTERM) or (
        ended.signal is None and ended.code not in (0, 1)
    ):
        wrong.append(f"ended by signal {ended.signal}, code {ended.code}")
    again = machine.run(place, run)
    if again.code != 0:
        wrong.append(f"a second run ended with {again.code}: {scenes.first_lines(again.err)}")
    now = witness.look(place / "work")
    if now.facts[: len(seen.facts)] != seen.facts or len(now.kind("charge")) != len(seen.kind("charge")) + CHARGES:
        wrong.append("the ledger did not go on after the kill")
    return wrong + now.wrong


def main() -> int:
    """The campaign."""
    parser = campaign.arguments(str(__doc__), 1000)
    parser.add_argument("--jobs", nargs="+", default=list(NAMES), metavar="JOB", choices=NAMES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), metavar="WAY", choices=WAYS)
    options: argparse.Namespace = parser.parse_args()
    machine.restart_with_shim()
    with machine.scratch() as root:
        campaign.prepared(root)
        scene = scenes.made(root)
        for job in options.jobs:
            if job != "ledger":
                scene.reference(job)
        path = options.results or campaign.RESULTS / "kills.jsonl"
        found = cases(options.seed, options.count, options.jobs, options.ways)
        return campaign.carry_out(found, partial(attempt, scene), options, path, root)


if __name__ == "__main__":
    sys.exit(bool(main()))
