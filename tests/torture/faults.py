"""Every system call of every small command fails once, in every way: `python -m tests.torture.faults`.

The commands run on a few records. A run without faults shows which calls a command makes on its files. Then the k-th
one fails, for every k, with every error that it can fail with; or it reads or writes less than it should; or the
process is killed there, or gets Ctrl-C. Some faults last: a full disk, one that became read-only, one that is gone.
After each run the folder is looked at without dpfc (`witness`), and the same command must work again: an extraction or
an import then ends with the same bytes as one that was not disturbed. A training goes on under its charge, and no
release has two answers.
"""

import random
import sys
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture import campaign, machine, scenes, witness
from tests.torture.campaign import Case
from tests.torture.machine import FAULTS
from tests.torture.scenes import JOBS, Scenes


def cases(scene: Scenes, jobs: list[str], faults: list[str], count: int | None) -> Iterator[Case]:
    """All faults of all calls of the jobs. count: so many in all, on files of all kinds."""
    each = None if count is None else max(1, count // (len(jobs) * len(faults)))
    for job in jobs:
        calls = scene.reference(job).ended.calls
        for name in faults:
            files = [file for kind, file in calls if kind in FAULTS[name].kinds]
            for file in dict.fromkeys(files):
                places = [at for at, other in enumerate(files, 1) if other == file]
                parts = 2 * (len(places) if each is None else max(1, each // len(set(files))))
                chosen = {places[odd * len(places) // parts] for odd in range(1, parts, 2)}
                yield from ({"job": job, "what": name, "at": at} for at in sorted(chosen))


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What a fault breaks."""
    job, fault = case["job"], FAULTS[case["what"]]
    reference = scene.reference(job)
    scene.fresh(job, place)
    ended = machine.run(place, scene.line(job), fault=fault, at=case["at"], plant=scene.plant(job, place))
    killed, seen = ended.signal is not None, witness.look(place / "work")
    given = {"fault": fault.fails and not killed, "leaves": killed or fault.leaves}
    wrong = scenes.judged(job, reference, seen, place, ended, **given)
    return wrong if JOBS[job].reads else wrong + scenes.second(scene, job, place)


def tried(scene: Scenes, options: Namespace) -> int:
    """Try the cases of a campaign: how many broke something."""
    found = list(cases(scene, options.jobs, options.faults, options.count))
    random.Random(options.seed).shuffle(found)
    path = options.results or campaign.RESULTS / "faults.jsonl"
    return campaign.carry_out(found[: options.count], partial(attempt, scene), options, path, scene.root)


def asked(words: list[str]) -> Namespace:
    """The options of a campaign."""
    parser = campaign.arguments(str(__doc__), None)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS, metavar="JOB")
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS, metavar="FAULT")
    return parser.parse_args(words)


def main() -> int:
    """The campaign."""
    options = asked(sys.argv[1:])
    campaign.begun()
    with machine.scratch() as root:
        return tried(scenes.made(root), options)


if __name__ == "__main__":
    sys.exit(bool(main()))
