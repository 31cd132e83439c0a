"""Equal trainings on one ledger, in random order: `python -m tests.torture.twins`.

Two to four equal commands (`dpfc train`, a method of several steps) are begun one after the other. Each is a whole
command in a process of its own: the command line, the checks, the ledger, the answers, the noise and the head. Only the
sums over the records are zeros, the devices are not checked, and a ledger that is held is waited for 0.2 seconds. So a
command takes a tenth of a second. It runs through, or it is killed, interrupted or paused at a random system call.
Others begin while it is paused, then it goes on. The ledger may be held by another program meanwhile. Between commands,
locks may be deleted and answers taken out of the ledger, and the ledger may be put back from an older copy. All clocks
are equal.

Then the folder must show what is promised. The rules are computed without dpfc (`witness`).
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.torture import campaign, machine, scenes, witness
from tests.torture.campaign import Case
from tests.torture.machine import FAULTS, PAUSE, Ended, Fault, Running
from tests.torture.scenes import Scenes
from tests.torture.witness import Seen

WHAT = ("plain", "files", "older")
"""What else happens: nothing; to locks and answers; to the ledger, too."""
HOW: dict[str, Fault | None] = {"through": None, "kill": FAULTS["kill"], "ctrl-c": FAULTS["ctrl-c"], "pause": PAUSE}
JOB = "steps"
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
except sqlite3.OperationalError:
    pass
print(flush=True)
sys.stdin.read()
"""
"""Another program that holds a ledger, if nobody else does, until its input ends."""


def cases(seed: int, count: int) -> Iterator[Case]:
    """Schedules drawn by chance."""
    for number in range(count):
        yield {"job": "twins", "what": WHAT[number % len(WHAT)], "seed": seed, "number": number}


def plant(place: Path) -> None:
    """In a child: no sums, little patience with a ledger that is held, and notes of all answers that a method sees."""
    from dpfc_cli.ledger import file
    from dpfc_cli.privacy import curator
    from dpfc_cli.privacy.oracle import planned
    from dpfc_cli.privacy.queries import Query

    def no_sum(self: Any, query: Query, sample: np.ndarray | None = None) -> np.ndarray:
        return np.zeros(planned(query, self._facts, 1.0).shape)

    def connected(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0.2, isolation_level=None)

    curator.Curator._sum = no_sum  # type: ignore[method-assign]
    file._connected = connected
    scenes.plant_trace(place)


@dataclass
class World:
    """A working folder while a schedule runs.

    number: of commands so far. paused: those that stand still. charges: all that the ledger ever had. touched: charges
    whose answers were cut off. older: whether the ledger was put back. wrong: what is broken. steps: what happened in
    its order, with what there was.
    """

    scene: Scenes
    place: Path
    rng: random.Random
    number: int = 0
    paused: list[Running] = field(default_factory=list)
    charges: dict[str, dict[str, object]] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    older: bool = False
    wrong: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    @property
    def ledger(self) -> Path:
        return self.place / "work" / witness.LEDGER

    def look(self) -> Seen:
        """What is there now."""
        seen = witness.look(self.place / "work")
        self.wrong += seen.wrong
        self.charges |= {fact["id"]: fact for fact in seen.kind("charge")}
        return seen

    def answers(self) -> dict[str, Path]:
        """The locks of unfinished trainings, by their charge."""
        return {path.name: path for path in sorted((self.place / "work" / "features" / "ledger.locks").glob("*"))}

    def note(self, what: str) -> None:
        """Note what happens next, and what there is now."""
        facts = [(f["kind"], f["id"][:4], f.get("state", "")) for f in witness.look(self.place / "work").facts[2:]]
        there = [path.name for path in self.answers().values()]
        journal = self.ledger.with_name("ledger.sqlite-journal").exists()
        self.steps.append(f"{what}: {facts} {there}{' journal' * journal}")

    def begin(self, how: str) -> Running:
        """Begin a command."""
        self.number += 1
        own = self.place / f"run-{self.number}"
        own.mkdir()
        (own / "work").symlink_to(self.place / "work")
        at = 1 + self.rng.randrange(len(self.scene.reference(JOB).ended.calls)) if HOW[how] else 0
        return machine.started(own, self.scene.line(JOB), fault=HOW[how], at=at, plant=partial(plant, self.place))

    def end(self, running: Running) -> Ended:
        """Wait for a command that is not paused."""
        ended = running.ended()
        self.note(f"{running.place.name} ended {ended.code} {scenes.first_lines(ended.err)[-60:]}")
        self.wrong += scenes.ending(ended, fault=False)
        return ended

    def command(self, how: str) -> Ended | None:
        """Begin a command, and wait until it ends. None if it was paused."""
        self.note(f"run-{self.number + 1} begins: {how}")
        before, there, alone = self.look(), self.answers(), not self.paused
        running = self.begin(how)
        if running.paused():
            self.paused.append(running)
            return None
        ended, after = self.end(running), self.look()
        charged = [fact["id"] for fact in after.kind("charge") if fact["id"] not in {f["id"] for f in before.facts}]
        waiting = [charge for charge in before.open if charge in there.keys() - self.touched and not self.older]
        if alone and waiting and charged:
            self.wrong.append("charged again, and one was there to go on with")
        if alone and waiting and ended.code == 0 and not set(waiting) - set(after.open):
            self.wrong.append("it ended well, and what was there did not go on")
        if len(charged) > 1 and alone:
            self.wrong.append(f"one command has {len(charged)} charges")
        return ended

    def step(self, what: str) -> None:
        """One thing that happens."""
        kinds = ["command"] * 4 + ["held"] + ["go on"] * 3 * bool(self.paused)
        kinds += {"plain": [], "files": ["file"] * 3, "older": ["file", "back", "back"]}[what]
        match self.rng.choice(kinds):
            case "command":
                self.command(self.rng.choice(list(HOW)))
            case "held":
                self.held()
            case "go on":
                running = self.paused.pop(self.rng.randrange(len(self.paused)))
                self.let_go(running, self.rng.choice([None, signal.SIGKILL, signal.SIGINT]))
            case "file":
                self.damage()
            case "back":
                self.put_back()

    def held(self) -> None:
        """A command while another program holds the ledger, for good or for a moment."""
        if self.ledger.with_name("ledger.sqlite-journal").exists():
            return
        moment = self.rng.choice([0.0, 0.05, 0.1, 1.0])
        self.note(f"run-{self.number + 1} begins: held for {moment} s")
        # By a process of its own: a child would inherit what SQLite knows of its locks.
        line = [sys.executable, "-c", HOLD, str(self.ledger)]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            running = self.begin("through")
            running.waited(moment)
            holder.communicate()
        self.end(running)
        self.look()

    def let_go(self, running: Running, by: int | None) -> None:
        """A paused command goes on, is killed, or gets Ctrl-C."""
        self.note(f"{running.place.name} goes on: {by}")
        if by is not None:
            running.signal(by)
        running.signal(signal.SIGCONT)
        self.end(running)
        self.look()

    def damage(self) -> None:
        """Something happens to the answers of a training."""
        there = self.answers()
        if not there:
            return
        name = self.rng.choice(list(there))
        how = self.rng.choice(["delete", "cut"])
        self.note(f"{how} {name}")
        self.touched.add(name)
        if how == "delete":
            there[name].unlink()
            return
        # It is as it was some answers before.
        with closing(sqlite3.connect(self.ledger, timeout=0.2)) as rows, suppress(sqlite3.Error), rows:
            rows.execute("DELETE FROM answers WHERE charge = ? AND number >= ?", (name, self.rng.randrange(5)))

    def put_back(self) -> None:
        """A copy of the ledger is made, or the last one is put back. Neither in the middle of a write."""
        kept = self.place / "kept.sqlite"
        self.look()
        if self.ledger.with_name("ledger.sqlite-journal").exists():
            return
        if kept.exists() and self.rng.random() < 0.6:
            shutil.copy(kept, self.place / "again.sqlite")
            os.replace(self.place / "again.sqlite", self.ledger)
            self.older = True
            self.note("put back")
        else:
            shutil.copy(self.ledger, kept)
        self.look()


def attempt(scene: Scenes, case: Case, place: Path) -> list[str]:
    """What a schedule breaks."""
    scene.fresh(JOB, place)
    rng = random.Random(f"{case['seed']} {case['number']}")
    world, commands = World(scene, place, rng), rng.randint(2, 4)
    if case["what"] == "older":
        shutil.copy(world.ledger, place / "kept.sqlite")
    world.look()
    while world.number < commands:
        world.step(case["what"])
    while world.paused:
        world.let_go(world.paused.pop(0), None)
    wrong = list(dict.fromkeys([*_judged(world), *world.wrong]))
    for step in world.steps if wrong else ():
        print(step)
    return wrong


def _judged(world: World) -> list[str]:
    """What is wrong at the end of a schedule."""
    wrong, seen = list[str](), world.look()
    work = world.place / "work"
    paths = (work / "heads").glob("[!.]*.safetensors")
    heads = {seen.files.get(str(path.relative_to(work)), str(path)): path for path in paths}
    payers = Counter(str(witness.card(path)["ledger"]["charge"]) for path in heads.values())
    if len(heads) > len(world.charges):
        wrong.append(f"{len(heads)} heads and {len(world.charges)} charges")
    wrong += [f"one charge has {count} heads" for count in payers.values() if count > 1]
    if payers.keys() - world.charges.keys():
        wrong.append("a head has a charge that no ledger ever had")
    charges = {fact["id"]: fact for fact in seen.kind("charge")}
    lost = payers.keys() - charges.keys()
    if lost and not world.older:
        wrong.append("a head has a charge that the ledger lacks")
    for fact in seen.kind("outcome"):
        if (
            fact["state"] == "written"
            and fact["sha256"] not in heads
            and not any(path.name == fact["head"] for path in heads.values())
        ):
            wrong.append("a head was written, and it is not there")
    wrong += scenes.several_answers(world.place)
    wrong += _sums(world, list(charges.values()))
    ended = world.command("through")
    assert ended is not None
    if lost and ended.code == 0 and not any(path.name in ended.err for path in heads.values()):
        wrong.append("a head has a charge that the ledger lacks, and nothing is said")
    if ended.code != 0 and not world.older:
        wrong.append(f"the last command ended with {ended.code}: {scenes.first_lines(ended.err)}")
    return wrong


def _sums(world: World, charges: list[dict[str, object]]) -> list[str]:
    """The ledger's total is what was charged."""
    from dpfc_cli.ledger.file import read

    book, wrong = read(world.ledger), list[str]()
    (account,) = book.accounts(None)
    mine = witness.spent(charges)
    if not world.older and sorted(each.id for each in book.charges) != sorted(map(str, (c["id"] for c in charges))):
        wrong.append("a charge counts several times, or not at all")
    if not world.older and abs(account.used("record") - mine) > 1e-9 * mine:
        wrong.append(f"the ledger says {account.used('record')} and {mine} was spent")
    if mine and not world.older:
        epsilon, delta = account.epsilon(1e-5), witness.delta_spent(account.epsilon(1e-5), mine**0.5)
        if not delta <= 1e-5 < witness.delta_spent(epsilon * (1 - 1e-6), mine**0.5):
            wrong.append(f"epsilon = {epsilon} is said, and delta is {delta} there")
    return wrong


def tried(scene: Scenes, options: Namespace) -> int:
    """Try the schedules of a campaign: how many broke something."""
    scene.reference(JOB)
    path = options.results or campaign.RESULTS / "twins.jsonl"
    found = cases(options.seed, options.count)
    return campaign.carry_out(found, partial(attempt, scene), options, path, scene.root)


def main() -> int:
    """The campaign."""
    options = campaign.arguments(str(__doc__), 2000).parse_args()
    campaign.begun()
    with machine.scratch() as root:
        return tried(scenes.made(root), options)


if __name__ == "__main__":
    sys.exit(bool(main()))
