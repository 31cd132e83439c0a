"""Two of everything at once: `python -m tests.torture.pairs`.

Two commands begin in one folder, the second one after a random part of the time that the first one takes. Each must end
well, or be refused with a message. Then the folder holds what the two make one after the other: whole sets with the
same bytes, and a row and a head for each training.
"""

import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture import campaign, machine, scenes, witness
from tests.torture.campaign import Case
from tests.torture.scenes import JOBS, LEDGER, Scenes

PAIRS = (
    *(("extract", "extract"), ("import", "import"), ("train", "train"), ("tune", "tune"), ("train", "extract")),
    *(("train", "import"), ("train", "budget"), ("train", "list"), ("tune", "train"), ("extract", "import")),
)


def cases(seed: int, count: int) -> Iterator[Case]:
    """Pairs drawn by chance. moment: the part of the first run after which the second one begins."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        first, second = rng.choice(PAIRS)
        yield {"job": first, "what": second, "moment": round(rng.random() ** 2, 6), "seed": seed, "number": number}


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What two commands break."""
    names = (case["job"], case["what"])
    seconds = [scene.reference(name).ended.seconds for name in names]
    scene.fresh(names[0], place)
    for part in set(JOBS[names[1]].needs) - set(JOBS[names[0]].needs):
        scene.add(part, place)
    before = witness.look(place / "work")
    other = place / "other"
    other.mkdir()
    (other / "work").symlink_to(place / "work")
    first = machine.started(place, scene.line(names[0]))
    time.sleep(case["moment"] * seconds[0])
    second = machine.started(other, scene.line(names[1]))
    ends = [first(None, 120.0), second(None, 120.0)]
    seen = witness.look(place / "work")
    wrong = list(seen.wrong)
    for name, ended in zip(names, ends, strict=True):
        wrong += [f"{name}: {each}" for each in scenes.ending(ended, fault=ended.code == 2)]
        if ended.code == 2 and not {"extract", "import"} & set(names):
            wrong.append(f"{name} was refused: {scenes.first_lines(ended.err)}")
    made = [name for name, ended in zip(names, ends, strict=True) if ended.code == 0]
    if not made:
        wrong.append("neither of the two ended well")
    for name in made:
        if not JOBS[name].charges and not JOBS[name].reads and names not in (("extract", "import"),):
            wanted = scene.reference(name).after.products
            wrong += [f"{path} is not whole" for path in wanted if seen.products.get(path) != wanted[path]]
    trained = sum(JOBS[name].charges for name in made)
    rows = seen.rows.get(LEDGER, [])[len(before.rows.get(LEDGER, [])) :]
    heads = {name: digest for name, digest in seen.heads.items() if name not in before.heads}
    if [(row["state"], heads.get(row["head"])) for row in rows] != [("written", row["sha256"]) for row in rows]:
        wrong.append("rows and heads do not fit together")
    if not len(rows) == len(heads) == trained:
        wrong.append(f"{trained} trainings, {len(rows)} rows and {len(heads)} heads")
    return wrong + [f"left behind: {path}" for path in seen.strange]


def main() -> int:
    """The campaign."""
    options = campaign.arguments(str(__doc__), 300).parse_args()
    machine.restart_with_shim()
    with machine.scratch() as root:
        campaign.prepared(root)
        scene = scenes.made(root)
        path = options.results or campaign.RESULTS / "pairs.jsonl"
        return campaign.carry_out(cases(options.seed, options.count), partial(attempt, scene), options, path, root)


if __name__ == "__main__":
    sys.exit(bool(main()))
