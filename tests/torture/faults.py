"""Every system call of every small command fails once, in every way: `python -m tests.torture.faults`.

The commands run on a few records. A run without faults shows which calls a command makes on its files. Then the k-th
one fails, for every k, with every error that it can fail with; or it reads or writes less than it should; or the
process is killed there. Some faults last: a full disk, one that became read-only, one that is gone. After each run the
folder is looked at without dpfc (`witness`), and the same command must work again.
"""

import random
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture import campaign, machine, scenes
from tests.torture.campaign import Case
from tests.torture.machine import FAULTS
from tests.torture.scenes import JOBS, Scenes

CLOCK = {"a year back": -31_536_000, "a day ahead": 86_400, "before 1970": -2_000_000_000}


def cases(scene: Scenes, jobs: list[str], faults: list[str]) -> Iterator[Case]:
    """All faults of all calls of the jobs."""
    for job in jobs:
        calls = scene.reference(job).ended.calls
        for name in faults:
            number = sum(kind in FAULTS[name].kinds for kind, _ in calls)
            yield from ({"job": job, "what": name, "at": at} for at in range(1, number + 1))
        for name in CLOCK if set(faults) == set(FAULTS) else ():
            yield from ({"job": job, "what": name, "at": at} for at in (1, 2, 3))


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What a fault breaks."""
    job, name = case["job"], case["what"]
    reference = scene.reference(job)
    scene.fresh(job, place)
    fault, step = FAULTS.get(name), (case["at"], CLOCK[name]) if name in CLOCK else (0, 0)
    plant = partial(scenes.plant_trace, place, same_ids=True) if JOBS[job].charges else None
    ended = machine.run(place, scene.line(job), fault=fault, at=case["at"], step=step, plant=plant)
    if name in CLOCK:
        # The date of the charge and of the card is that of the clock. All else is as without the step.
        return [
            each
            for each in scenes.judged(job, reference, place, ended, fault=False, killed=False)
            if "not what" not in each
        ]
    wrong = scenes.judged(job, reference, place, ended, fault=ended.signal is None, killed=ended.signal is not None)
    if not JOBS[job].reads:
        wrong += scenes.second(scene, job, place)
    return wrong


def main() -> int:
    """The campaign."""
    parser = campaign.arguments(str(__doc__), None)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), metavar="JOB", help=f"of {', '.join(JOBS)}")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    options = parser.parse_args()
    machine.restart_with_shim()
    with machine.scratch() as root:
        campaign.prepared(root)
        scene = scenes.made(root, seeded=True)
        found = list(cases(scene, scenes.words(options.jobs), options.faults))
        random.Random(options.seed).shuffle(found)
        path = options.results or campaign.RESULTS / "faults.jsonl"
        return campaign.carry_out(
            found[: options.count], lambda case, place: attempt(scene, case, place), options, path, root
        )


if __name__ == "__main__":
    sys.exit(bool(main()))
