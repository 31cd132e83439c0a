"""Hyperparameters chosen on public labelled features: whole private trainings on records that nobody must protect.

What comes out depends on public records and public facts alone, so it costs nothing of the budget, however much is
tried. The private records take no part, not even in the choice.

A trial is the private method itself, with its noise, on at most as many public records and classes as the private set
has, drawn anew for every run. Where there are fewer records, n' < n, its μ is larger by n/n', so that the noise per
record is that of the private training. All points of the method's grid are tried once; the best of them and the
defaults are tried again with other draws, and the best is taken if it then beats the defaults by more than `CLEAR`
standard errors of the difference: chance replaces a default in about three of a hundred choices. Public features that
only steady a release take no part in trials: they may be the same ones.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from dpfc_cli.errors import conflict, counted, parameter, quoted
from dpfc_cli.features.reader import FeatureSet, cut
from dpfc_cli.files import json_of
from dpfc_cli.folders import beside
from dpfc_cli.heads.head import Scorer
from dpfc_cli.heads.metrics import ranked, score
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.methods.method import factors, scaled
from dpfc_cli.privacy.curator import Curator, NonPrivate, Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Progress
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.structs import LARGEST, Open, Values, decoded
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.check import check_early
from dpfc_cli.training.machine import InFile, check_memory, stack_for, training_bytes
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.public import check_other
from dpfc_cli.training.public import warnings_of as warnings_of_set
from dpfc_cli.training.request import Request
from dpfc_cli.version import TRAINING, code_digest

RUNS = 5
"""Of a point that is compared with the defaults, beside the first."""
FINALISTS = 3
CLEAR = 3.5
FIRST_SEED = 2**40
"""Beyond what anyone gives as --seed: a choice must not be made on the noise of the training that it is made for."""
ROWS = 8192
IN_MEMORY = 2**30
"""Bytes of records that a draw may hold at once; more are read again for every pass."""
SUFFIX = ".tuning.jsonl"
Point = Mapping[str, float]


class _Trial(Open):
    """A finished trial. score: a number of hits, or a mean average precision."""

    trial: str
    score: Annotated[float, Meta(ge=0, le=LARGEST)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Draw:
    """One run's public records. train, test: rows of the set's splits. split: that of the test rows. table: for each
    label of the set that of the draw, −1 for none; its last place is that of label −1.
    """

    facts: Facts
    train: np.ndarray
    split: str
    test: np.ndarray
    table: np.ndarray


class Trials:
    """Private trainings on public records, those that were finished before included.

    facts: what a draw stands for. memory: bytes that may be taken; None: a part of what the machine has free.
    """

    def __init__(
        self,
        calibrated: Calibrated,
        known: FeatureSet,
        facts: Facts,
        labels: Sequence[np.ndarray],
        draws: int,
        memory: float | None = None,
    ) -> None:
        self._memory = memory
        self.method, self.facts, self.given, self.known = calibrated.method, facts, calibrated.given, known
        self._mu = calibrated.worth.mu
        self.points = [{}, *(p for p in factors(self.method, self.given) if any(f != 1 for f in p.values()))]
        self.draws = [drawn(known, labels, facts, seed) for seed in range(draws)]
        place = known.folder.resolve()
        self._path = beside(place) / (place.name + SUFFIX)
        self._kept = _read(self._path)
        self._open: tuple[int, BlockStream, BlockStream] | None = None

    def mu(self, facts: Facts, mu: float | None = None) -> float:
        """Noise per record as in the private training. mu: of that training; None: as it was calibrated."""
        return (self._mu if mu is None else mu) * self.facts.n / facts.n

    def run(self, point: Point, seed: int, mu: float | None = None) -> float:
        """The hits of the method at that point on the draw's test records, or its mean average precision of label sets.

        mu: of the private training; None: as it was calibrated.
        """
        facts = self.draws[seed].facts
        mu = self.mu(facts, mu)
        return self._score(seed, mu, scaled(self.method, facts, mu, self.given, point))

    def noiseless(self, seed: int) -> float | None:
        """The same without noise and at the defaults; None where that would take the optimum."""
        options = self.method.defaults(self.draws[seed].facts, None, self.given)
        return None if self.method.at_optimum(options) else self._score(seed, None, self.given)

    def _score(self, seed: int, mu: float | None, options: Mapping[str, Any]) -> float:
        draw = self.draws[seed]
        key = self._key(draw, mu, options, seed)
        if key not in self._kept:
            train, test = self._streams(seed)
            made = self.method.defaults(draw.facts, mu, options)
            plan, records = self.method.plan(draw.facts, made), Unprotected(train)
            oracle: Oracle
            folder = self.known.scratch
            # Large answers are made in pieces, which share the vectors of the records.
            shelf = InFile(folder) if plan.stacked else None
            stack = stack_for(plan, training_bytes(self.method, plan, draw.facts), self._memory, folder)
            if mu is None:
                oracle = NonPrivate(draw.facts, records, plan, shelf=shelf, stack=stack)
            else:
                mechanism = Mechanism(facts=draw.facts, plan=plan, mu=mu)
                oracle = Curator(mechanism, records, SeededBits(FIRST_SEED + seed), shelf=shelf, stack=stack)
            try:
                solution = self.method.solve(oracle, draw.facts, made)
            finally:
                for each in (shelf, stack):
                    if each is not None:
                        each.clear()
            head = Scorer(chain=solution.chain, weight=solution.weight, bias=solution.bias)
            self._kept[key] = float(quality(head, test, draw.facts.k, len(draw.test)))
            _keep(self._path, key, self._kept[key])
        return self._kept[key]

    def _streams(self, seed: int) -> tuple[BlockStream, BlockStream]:
        """Of a draw's training and test records. One draw is held at a time."""
        if self._open is None or self._open[0] != seed:
            self._open, draw = None, self.draws[seed]
            train = _stream(self.known, SPLIT, draw.train, draw.table, self.facts.k)
            self._open = (seed, train, _stream(self.known, draw.split, draw.test, draw.table, self.facts.k))
        return self._open[1:]

    def _key(self, draw: Draw, mu: float | None, options: Mapping[str, Any], seed: int) -> str:
        """Of everything that a trial's score depends on."""
        manifest = self.known.manifest
        said = {
            "code": code_digest(*TRAINING, __name__, "dpfc_cli.heads.metrics"),
            "features": manifest.fingerprint,
            "records": manifest.identity.listing,
            "rows": {name: split.n for name, split in manifest.splits.items()},
            "for": [self.facts.n, self.facts.m],
            "method": self.method.name,
            "facts": asdict(draw.facts),
            "mu": mu,
            "options": options,
            "seed": seed,
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def tuned(request: Request, calibrated: Calibrated, known: FeatureSet, observer: Observer) -> Calibrated:
    """The same training with the options that did best in trials on public records. UserError: see `prepare` and
    `check_early`.
    """
    check_early(request, calibrated)
    trials = prepare(calibrated, request.features, known, request.memory)
    for text in (*warnings_of_set(known), *warnings_of(trials)):
        observer.warn(text)
    return tune(calibrated, trials, lambda *far: observer.progress(f"Tuning on {known.name}", *far))


def prepare(calibrated: Calibrated, private: FeatureSet, known: FeatureSet, memory: float | None = None) -> Trials:
    """The trials of a choice, after everything that can be refused before the first one.

    The options that the user set are kept. private: the private records, which are not read. known: public records.
    memory: bytes that may be taken; None: what the machine has free. UserError: there is nothing to choose, or the
    public set cannot stand for the private one.
    """
    method = calibrated.method
    if calibrated.mechanism is None:
        raise conflict(f"{parameter('tune_on')} has no effect with {parameter('non_private')}.", "Leave it out.")
    if set(method.grid) <= set(calibrated.given):
        names = ", ".join(map(parameter, method.grid))
        raise conflict(
            f"{parameter('tune_on')} has nothing to choose: {names} are given.", "Leave it out, or one of them."
        )
    check_memory(method, calibrated.plan, calibrated.facts, memory)
    check_stand_in(private, known, calibrated.facts.k, "tune_on")
    return Trials(calibrated, known, calibrated.facts, labels_of(known), RUNS + 1, memory)


def check_stand_in(private: FeatureSet, known: FeatureSet, labels: int, option: str) -> None:
    """UserError where a public set cannot stand for the private one, which has up to so many labels per record.

    option: the parameter that names it.
    """
    check_other(private, known, option)
    theirs = known.manifest.labels_per_record
    if theirs > labels or (theirs == 1) != (labels == 1):
        raise conflict(
            f"{quoted(known.folder)} has up to {theirs} labels per record, '{private.folder}' up to {labels}.",
            "Name a set of the same kind.",
        )


def warnings_of(trials: Trials) -> list[str]:
    """Where the public set is not much like the private one."""
    facts, draw = trials.facts, max((d.facts for d in trials.draws), key=lambda f: f.n)
    said = []
    if draw.m < facts.m:
        said.append(
            f"'{trials.known.folder}' has {draw.m} classes for {facts.m}: trials on it are easier than the training."
        )
    if draw.n < facts.n / 2:
        said.append(
            f"'{trials.known.folder}' has {draw.n:,} records for {counted(facts.n, facts.unit)}: the noise per "
            f"{facts.unit} is the same in its trials, but they learn from fewer."
        )
    return said


def tune(calibrated: Calibrated, trials: Trials, progress: Progress | None = None) -> Calibrated:
    """The same training with the options that did best in trials: plan and guarantee stay.

    progress(done, total) counts trainings. Finished trials are kept beside the public set, so that a choice that was
    stopped goes on.
    """
    points, done = trials.points, 0
    finals = min(FINALISTS, len(points) - 1) + 1

    def run(i: int, seed: int) -> float:
        nonlocal done
        found = trials.run(points[i], seed)
        done += 1
        if progress:
            progress(done, len(points) + RUNS * finals)
        return found

    first = [run(i, 0) for i in range(len(points))]
    finalists = (0, *sorted(range(1, len(points)), key=lambda i: -first[i])[: finals - 1])
    # Not the first run: whoever is a finalist was lucky in it.
    rounds = [{i: run(i, seed) for i in finalists} for seed in range(1, RUNS + 1)]
    scores = {i: [each[i] for each in rounds] for i in finalists}
    chosen = points[choose(scores)]
    values = scaled(calibrated.method, calibrated.facts, trials.mu(calibrated.facts), trials.given, chosen)
    origin = {
        "name": trials.known.name,
        "fingerprint": trials.known.manifest.fingerprint,
        "facts": {"n": max(d.facts.n for d in trials.draws), "m": trials.draws[0].facts.m},
        "runs": RUNS,
        "tried": [{"factors": point, "score": found} for point, found in zip(points, first, strict=True)],
        "finalists": [
            {"factors": points[i], "score": statistics.mean(s), "sd": statistics.stdev(s)} for i, s in scores.items()
        ],
        "chosen": chosen,
    }
    return _with(calibrated, values, origin)


def _with(calibrated: Calibrated, given: Mapping[str, Any], tuning: Values) -> Calibrated:
    """The same training with other options set, none of which shapes the plan."""
    method, facts = calibrated.method, calibrated.facts
    given = method.taken(given)
    options = method.complete(facts, method.planned(facts, given, True), calibrated.mechanism, given)
    options = replace(options, **{name: getattr(calibrated.options, name) for name in method.public})
    return replace(calibrated, given=given, options=options, parts={**calibrated.parts, "tuning": tuning})


def choose(scores: Mapping[int, Sequence[float]]) -> int:
    """The one whose mean is best, if it beats number 0 by more than `CLEAR` standard errors of the difference, run by
    run; 0 otherwise.
    """
    best = max(scores, key=lambda i: statistics.mean(scores[i]))
    gains = [a - b for a, b in zip(scores[best], scores[0], strict=True)]
    clear = statistics.mean(gains) > CLEAR * statistics.stdev(gains) / math.sqrt(len(gains))
    return best if clear else 0


def drawn(known: FeatureSet, labels: Sequence[np.ndarray], facts: Facts, seed: int) -> Draw:
    """Public records that stand for `facts`: at most as many classes and records, drawn by chance.

    labels: of the training split and, if there is one, of the test split; without one a fifth of the records is held
    out. UserError where that leaves fewer than two classes or records.
    """
    random = np.random.default_rng([seed, facts.n, facts.m])
    usable = [c for c in range(len(known.manifest.classes)) if (labels[0] == c).any()]
    classes = np.sort(random.permutation(usable)[: facts.m])
    table = np.full(len(known.manifest.classes) + 1, -1, np.int32)
    table[classes] = np.arange(len(classes))
    having = [np.flatnonzero((table[y] >= 0).any(axis=1)) for y in labels]
    shuffled = random.permutation(having[0])
    if len(having) > 1:
        train, test, split = shuffled[: facts.n], having[1], "test"
    else:
        held = len(shuffled) // 5
        train, test, split = shuffled[held:][: facts.n], shuffled[:held], SPLIT
    if len(classes) < 2 or len(train) < 2 or not len(test):
        raise conflict(
            f"{quoted(known.folder)} has too few labelled records for trials: {len(classes)} classes, {len(train)} "
            f"records to train on and {len(test)} to test on.",
            "Name another set.",
        )
    return Draw(
        facts=replace(facts, n=len(train), rows=None, unit="record", m=len(classes)),
        train=np.sort(train),
        split=split,
        test=np.sort(test),
        table=table,
    )


def quality(head: Scorer, test: BlockStream, k: int, rows: int) -> float:
    """The hits of a head on test records, or mean average precision of label sets."""
    if k == 1:
        return score(head, test(ROWS)).top1
    return float(np.nanmean(ranked([head], lambda: test(ROWS), rows, several=True)[0].precision))


def _stream(known: FeatureSet, split: str, rows: np.ndarray, table: np.ndarray, k: int) -> BlockStream:
    """Some records of a split, in its order, with k labels each, looked up in `table`; in memory if they are few."""

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        wanted = np.zeros(known.split(split).n, bool)
        wanted[rows] = True
        for start, x, y in known.stream(split)(ROWS):
            here = wanted[start : start + len(x)]
            labels = table[_valid(y[here], known)]
            yield x[here], np.pad(labels, ((0, 0), (0, k - labels.shape[1])), constant_values=-1)

    size = len(rows) * known.manifest.dim * np.dtype(known.manifest.dtype).itemsize
    held = list(pieces()) if size <= IN_MEMORY else None
    return lambda count: cut(pieces() if held is None else held, count)


def labels_of(known: FeatureSet) -> list[np.ndarray]:
    """The labels of the splits that trials read, after these were verified: to train on, and to test on if there is one
    for it.
    """
    known.split(SPLIT)
    splits = [split for split in (SPLIT, "test") if split in known.manifest.splits]
    for split in splits:
        known.verify(split)
    return [np.concatenate([_valid(y, known) for _, _, y in known.stream(split)(ROWS)]) for split in splits]


def _valid(y: np.ndarray, known: FeatureSet) -> np.ndarray:
    """Labels, with −1 for those that the set has no class for. The core treats them in the same way."""
    return np.where((y >= 0) & (y < len(known.manifest.classes)), y, -1)


def _keep(path: Path, trial: str, score: float) -> None:
    """Add a trial to those that are finished. A place that cannot be written costs the way back after a stop."""
    with suppress(OSError), path.open("a") as lines:
        # The line begins with its end, for the one before it may have been cut short.
        lines.write("\n" + json.dumps({"trial": trial, "score": score}) + "\n")


def _read(path: Path) -> dict[str, float]:
    """Scores of finished trials. Other lines are left out, such as one that a kill cut short."""
    kept: dict[str, float] = {}
    with suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                row = decoded(json_of(line), _Trial)
                kept[row.trial] = row.score
    return kept
