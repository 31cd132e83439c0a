"""Small working folders, the commands that are tried in them, and what must be true of them afterwards."""

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import save_file

from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import ENDINGS
from tests.backbones.tiny import kept
from tests.support import blobs
from tests.torture import machine, witness
from tests.torture.machine import Ended
from tests.torture.witness import LEFT_BY_KILLS, LOCKS, Seen

SCATTERING = ("--model", "scattering", "--pool", "mean", "--image-size", "8")
OWN = ("--features", "blobs")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command that is tried.

    line: its words. needs: what of the template it needs. reads: whether it changes nothing.
    """

    line: tuple[str, ...]
    needs: tuple[str, ...] = ("features", "heads")
    reads: bool = False

    @property
    def charges(self) -> bool:
        """Whether it is a training."""
        return self.line[0] == "train"

    @property
    def seeded(self) -> bool:
        """Whether it is a training that makes the same head each time. It keeps no answers."""
        return "--seed" in self.line


JOBS = {
    "extract": Job(
        line=("extract", "imagefolder:pictures", *SCATTERING, "--classes", "c0,c1,c2", "--out", "set"),
        needs=("pictures",),
    ),
    "import": Job(line=("import", "arrays", "--out", "set", "--classes", "3"), needs=("arrays",)),
    "train": Job(line=("train", "--again", *OWN, "--method", "dp-ls", "--epsilon", "1")),
    "steps": Job(line=("train", "--again", *OWN, "--method", "dp-fc", "--steps", "3", "--epsilon", "1")),
    "seeded": Job(line=("train", "--again", *OWN, "--method", "dp-ls", "--epsilon", "1", "--seed", "5")),
    "tune": Job(
        line=("train", "--again", *OWN, "--tune-on", "open", "--method", "dp-sgd", "--steps", "2", "--epsilon", "1")
    ),
    "start": Job(
        line=(
            "train",
            "--again",
            *OWN,
            "--steps",
            "2",
            "--epsilon",
            "1",
            "--public-head",
            "tiny/vectors.safetensors",
            "--seed",
            "5",
        ),
        needs=("features", "heads", "tiny"),
    ),
    "zero-shot": Job(
        line=(
            *("zero-shot", "--from", "classifier", "--model", "vit-ti16"),
            *("--rows", "tiny/rows.json", "--classes", "c0,c1,c2", "--out", "starts/vectors.safetensors"),
        ),
        needs=("tiny", "starts"),
    ),
    "cap": Job(line=("cap", "9", *OWN, "--by", "an officer", "--note", "a plan")),
    "evaluate": Job(line=("evaluate", "first", *OWN, "--json"), reads=True),
    "budget": Job(line=("budget", *OWN, "--json"), reads=True),
    "statement": Job(line=("statement", "first", "--json"), reads=True),
    "list": Job(line=("list", "--json"), reads=True),
}


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An undisturbed run of a job: how it ended, and what there was before and afterwards."""

    ended: Ended
    before: Seen
    after: Seen


@dataclass(frozen=True)
class Scenes:
    """The template of all working folders, and the reference of each job."""

    root: Path
    references: dict[str, Reference] = field(default_factory=dict)

    def line(self, name: str) -> tuple[str, ...]:
        """The words of a job. -v shows where a defect comes from."""
        return ("-v", *JOBS[name].line)

    def plant(self, name: str, place: Path) -> Callable[[], object] | None:
        """What is planted for a job: see `plant_trace`."""
        return partial(plant_trace, place, same=JOBS[name].seeded) if JOBS[name].charges else None

    def fresh(self, name: str, place: Path) -> None:
        """A working folder for a job, as it is before the job."""
        shutil.rmtree(place, ignore_errors=True)
        (place / "work").mkdir(parents=True)
        for part in JOBS[name].needs:
            shutil.copytree(self.root / "template" / "work" / part, place / "work" / part)

    def reference(self, name: str) -> Reference:
        """The reference of a job, which is run for that the first time."""
        if name not in self.references:
            place = self.root / f"reference-{name}-{os.getpid()}"
            self.fresh(name, place)
            before = witness.look(place / "work")
            ended = machine.run(place, self.line(name), plant=self.plant(name, place))
            assert ended.code == 0, ended.err
            after = witness.look(place / "work")
            assert not after.wrong, after.wrong
            self.references[name] = Reference(ended=ended, before=before, after=after)
            shutil.rmtree(place)
        return self.references[name]


def made(root: Path) -> Scenes:
    """A template with pictures, arrays, a private set with a training, a public set, and a backbone's classifier."""
    work = root / "template" / "work"
    rng = np.random.default_rng(0)
    for split, n in (("train", 24), ("test", 6)):
        for i in range(n):
            path = work / "pictures" / split / f"c{i % 3}" / f"{i:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (*rng.integers(8, 14, 2), 3), np.uint8)).save(path)
    for name, seed in (("arrays", 1), ("others", 2)):
        (work / name).mkdir()
        for split, n in (("train", 60), ("test", 15)):
            x, y = blobs(n, 4, 3, seed=seed, apart=8.0)
            np.save(work / name / f"{split}_x.npy", x)
            np.save(work / name / f"{split}_y.npy", y)
    for name in ("tiny", "starts"):
        (work / name).mkdir()
    kept(MODELS["vit-ti16"], work / "tiny", {"head.weight": np.eye(6, 192, dtype=np.float32)})
    save_file({"vectors": np.eye(3, 4)}, work / "tiny" / "vectors.safetensors", {"classes": '["0", "1", "2"]'})
    (work / "tiny" / "rows.json").write_text(json.dumps({"c0": [0], "c1": [1, 2], "c2": [3]}))
    classes = ("--classes", "3")
    for line in (
        ("import", "others", "--out", "open", *classes),
        ("import", "arrays", "--out", "blobs", *classes),
        ("train", *OWN, "--method", "dp-ls", "--epsilon", "0.5", "--out", "heads/first.safetensors"),
    ):
        ended = machine.run(work.parent, line)
        assert ended.code == 0, ended.err
    return Scenes(root)


def plant_trace(place: Path, same: bool = False) -> None:
    """From now on the first record that a training reads leaves a mark, and so does each answer that a method sees.

    The clock stands still, and no device is checked. same: ids of facts are the same in each run, too, so that heads
    are.
    """
    from dpfc_cli.ledger import facts
    from dpfc_cli.ledger.answers import Answers
    from dpfc_cli.privacy.curator import Curator
    from dpfc_cli.privacy.passes import BlockStream
    from dpfc_cli.privacy.queries import Query
    from dpfc_cli.training import check
    from dpfc_cli.training.charged import Charged

    check.check_devices = lambda: None  # type: ignore[attr-defined]
    facts.datetime = SimpleNamespace(now=lambda zone: datetime(2030, 1, 1, tzinfo=zone))  # type: ignore[attr-defined, assignment]
    if same:
        ids = (hashlib.sha256(f"{number}".encode()).hexdigest()[:32] for number in itertools.count())
        facts.secrets = SimpleNamespace(token_hex=lambda _: next(ids))  # type: ignore[attr-defined, assignment]
    opened, answered = Charged.opened, Curator._answer

    def watched(self: Charged) -> BlockStream:
        blocks = opened(self)

        def marked(rows: int):  # type: ignore[no-untyped-def]
            for block in blocks(rows):
                (place / "read").touch()
                yield block

        return marked

    def noted(self: Curator, sigma: int, rate: float, query: Query, shape: tuple[int, ...]) -> np.ndarray:
        number, answer = self._kept, answered(self, sigma, rate, query, shape)
        # Trials on public records keep no answers.
        if isinstance(self._answers, Answers):
            with (place / "answers").open("a") as notes:
                digest = hashlib.sha256(answer.tobytes()).hexdigest()
                notes.write(f"{self._answers.charge} {number} {digest}\n")
        return answer

    Charged.opened = watched  # type: ignore[method-assign]
    Curator._answer = noted  # type: ignore[method-assign]


def several_answers(place: Path) -> list[str]:
    """The releases with more than one answer, of all that were seen."""
    seen: dict[str, set[str]] = {}
    for line in (place / "answers").read_text().splitlines() if (place / "answers").exists() else ():
        charge, number, digest = line.split()
        seen.setdefault(f"{charge} {number}", set()).add(digest)
    return [f"{len(each)} answers of {release}" for release, each in seen.items() if len(each) > 1]


def judged(
    name: str, reference: Reference, seen: Seen, place: Path, ended: Ended, *, fault: bool, leaves: bool
) -> list[str]:
    """What is broken after a run. fault: whether a system call failed. leaves: whether it could not tidy up."""
    job, wrong = JOBS[name], [*seen.wrong, *ending(ended, fault)]
    if seen.wrong:
        # What is not whole says nothing more.
        return wrong
    wrong += _kept(job, reference, seen, ended)
    if job.charges:
        wrong += _charged(reference, seen, place, ended)
    left = [path for path in seen.strange if not (leaves and LEFT_BY_KILLS.fullmatch(path))]
    if ended.code != 0 or fault:
        # They stay until it is certain that the ledger has the head.
        left = [path for path in left if not LOCKS.fullmatch(path)]
    if ended.code not in (None, 0) and name in ("extract", "import"):
        # What is finished stays on purpose: shards, and the settings.
        stays = r"features/(set\.partial/.*|set/settings\.json)"
        left = [path for path in left if not re.fullmatch(stays, path)]
    wrong += [f"left behind: {re.sub('[0-9a-f]{16}', 'HEX', path)}" for path in left]
    if ended.code == 0:
        wrong += _same(job, reference, seen, place, ended)
    return wrong


def ending(ended: Ended, fault: bool) -> list[str]:
    """What is wrong with the way a run ended. fault: a message must name a file."""
    wrong = []
    if ended.code is not None and (ended.code == 1 or ended.code not in ENDINGS):
        wrong.append(f"exit code {ended.code}: {_origin(ended.err)}")
    elif "Traceback" in ended.err:
        wrong.append(f"a traceback: {_origin(ended.err)}")
    if ended.signal not in (None, signal.SIGKILL, signal.SIGTERM):
        wrong.append(f"ended by signal {ended.signal}")
    if (
        fault
        and ended.code not in (None, 0, 130)
        and not re.search(
            r"'[^']*(features|heads|pictures|arrays|blobs|tiny|starts|c0,c1,c2|\.partial)[^']*'", ended.err
        )
    ):
        wrong.append(f"the message names no file: {first_lines(ended.err)}")
    return wrong


def _origin(text: str) -> str:
    """Which error a traceback ends with, and in which line of dpfc it was raised."""
    frames = re.findall(r'File "[^"]*/(dpfc_cli/[^"]+)", line (\d+), in (\w+)', text)
    errors = re.findall(r"^(\w+(?:\.\w+)*(?:Error|Exception|Interrupt)\b.*)$", text, re.MULTILINE)
    where = " < ".join(f"{path}:{line} {function}" for path, line, function in frames[:-4:-1])
    return re.sub("0x[0-9a-f]+|[0-9a-f]{16}", "HEX", f"{errors[-1][:120] if errors else first_lines(text)} at {where}")


def first_lines(text: str) -> str:
    """The end of what a run said, in one line."""
    return " / ".join(text.strip().splitlines()[-3:])[:300]


def _kept(job: Job, reference: Reference, seen: Seen, ended: Ended) -> list[str]:
    """Nothing that was there is lost or changed."""
    wrong = []
    for path, digest in reference.before.files.items():
        if seen.files.get(path) != digest and not path.endswith(".tuning.jsonl"):
            wrong.append(f"{path} was there, and is {'changed' if path in seen.files else 'gone'}")
    if seen.facts[: len(reference.before.facts)] != reference.before.facts:
        wrong.append("the ledger lost or changed facts")
    new = Counter(fact["kind"] for fact in seen.facts[len(reference.before.facts) :])
    allowed = Counter(fact["kind"] for fact in reference.after.facts[len(reference.before.facts) :])
    if new - allowed - (Counter(outcome=1) if job.charges else Counter()):
        wrong.append(f"the ledger has {dict(new)} more, not {dict(allowed)}")
    if ended.code == 0 and allowed - new - Counter(outcome=1):
        wrong.append(f"the ledger has only {dict(new)} more, not {dict(allowed)}")
    if job.reads and (seen.products != reference.before.products or seen.facts != reference.before.facts):
        wrong.append("a command that only reads has changed something")
    return wrong


def new_charges(before: Seen, after: Seen) -> list[dict[str, Any]]:
    """The charges that were added."""
    known = {fact["id"] for fact in before.facts}
    return [fact for fact in after.kind("charge") if fact["id"] not in known]


def _charged(reference: Reference, seen: Seen, place: Path, ended: Ended) -> list[str]:
    """Heads have charges, and the ledger says what became of them."""
    wrong = []
    new = new_charges(reference.before, seen)
    ids = {charge["id"] for charge in new}
    heads = {name: digest for name, digest in seen.heads.items() if name not in reference.before.heads}
    heads = {name: digest for name, digest in heads.items() if not name.startswith(".")}
    if len(new) > 1 or len(heads) > 1:
        wrong.append(f"{len(new)} charges and {len(heads)} heads of one training")
    for name in heads:
        card = witness.card(place / "work" / "heads" / name)
        if card["ledger"]["charge"] not in ids:
            wrong.append(f"head {name} has no charge")
    for fact in (outcome for charge in ids for outcome in seen.outcomes(charge) if outcome["state"] == "written"):
        if fact["head"] not in heads:
            wrong.append(f"the ledger says that {fact['head']} was written, and it is not there")
        elif heads.get(fact["head"], fact["sha256"]) != fact["sha256"]:
            wrong.append(f"head {fact['head']} is another one than the ledger says")
    if (place / "read").exists() and not new:
        wrong.append("records were read, and nothing was charged")
    told = (
        re.search("(?<!othing was )charged|The charge (may be|was) written", ended.err) or "spent so far" in ended.out
    )
    if new and ended.code not in (None, 0) and not told:
        wrong.append(f"it is charged, and the user is not told: {first_lines(ended.err)}")
    if ended.code == 0 and not (new and heads):
        wrong.append("exit code 0 without a charge and a head")
    return wrong


def _same(job: Job, reference: Reference, seen: Seen, place: Path, ended: Ended) -> list[str]:
    """A run that ended well made what an undisturbed one makes."""
    if job.reads:
        # A list leaves out what cannot be read, and says so.
        same = ended.out == reference.ended.out or job.line[0] == "list"
        return [] if same else [f"other figures than without the fault: {first_lines(ended.out)}"]
    if job.charges and not job.seeded:
        return []
    wanted = {path: digest for path, digest in reference.after.products.items() if ".tuning." not in path}
    different = (path for path in wanted if seen.products.get(path) != wanted[path])
    return [f"{path} is not what it is without the fault" for path in different]


def second(scenes: Scenes, name: str, place: Path) -> list[str]:
    """What is wrong with a second, undisturbed run in the same place."""
    job, reference = JOBS[name], scenes.reference(name)
    before = witness.look(place / "work")
    if before == reference.before:
        # The first run left no trace, so the second one would be the reference.
        return []
    new = [charge["id"] for charge in new_charges(reference.before, before)]
    goes_on = job.charges and not job.seeded and any(charge in before.open for charge in new)
    ended = machine.run(place, scenes.line(name), plant=scenes.plant(name, place) if goes_on else None)
    seen = witness.look(place / "work")
    wrong = [f"second run: {each}" for each in seen.wrong]
    if ended.code != 0:
        return [*wrong, f"second run: exit code {ended.code}: {first_lines(ended.err)}"]
    if job.charges:
        more = [charge["id"] for charge in new_charges(before, seen)]
        if goes_on:
            # It goes on under its charge, and nothing is charged again.
            wrong += several_answers(place)
        (last, *others) = [charge for charge in new if charge in before.open] if goes_on else more or [""]
        written = [fact for fact in seen.outcomes(last) if fact["state"] == "written"]
        if others or bool(more) is goes_on or len(written) != 1:
            wrong.append(f"second run: {len(more)} charges more, and {len(written)} heads of this one")
        elif seen.heads.get(written[0]["head"]) != written[0]["sha256"]:
            wrong.append("second run: its head is not there")
    else:
        wanted, have = reference.after.products, seen.products
        wrong += [
            f"second run: {path} is not what an undisturbed run makes"
            for path in sorted(wanted.keys() | have.keys())
            if have.get(path) != wanted.get(path)
        ]
        if (place / "work" / "features" / "set.partial").exists():
            wrong.append("second run: features/set.partial is left")
    return wrong
