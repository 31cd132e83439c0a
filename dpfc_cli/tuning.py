"""Hyperparameters chosen on public labelled features: whole private trainings on records that nobody must protect.

What comes out depends on public records and public facts alone, so it costs nothing of the budget, however much is
tried. The private records take no part, not even in the choice.

A trial is the private method itself, with its noise, on as many public records and classes as the private set has,
drawn anew for every run. Where there are fewer records, n' < n, its μ is larger by n/n', so that the noise per record
is that of the private training. All points of the method's grid are tried once; the best of them and the defaults are
tried again with other draws, and the best is taken if it then beats the defaults by more than twice the standard error
of the difference: chance shall not replace a default. Public features that only steady a release (`public`) take no
part in trials: they may be the same ones.
"""

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import dpfc_cli
from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import Blocks, FeatureSet, cut
from dpfc_cli.heads.head import Head
from dpfc_cli.heads.metrics import average_precisions, score
from dpfc_cli.privacy.curator import BlockStream, Curator
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Facts
from dpfc_cli.public import check_other
from dpfc_cli.solvers.method import factors, scaled
from dpfc_cli.training import SPLIT, Calibrated, calibrate, check_memory

RUNS = 5
"""Of a point that is compared with the defaults, beside the first."""
FINALISTS = 3
ROWS = 8192
SUFFIX = ".tuning.jsonl"
Progress = Callable[[int, int], None]
Point = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Draw:
    """One run's public records. train, test: as `FeatureSet.stream` gives them."""

    facts: Facts
    train: BlockStream
    test: BlockStream
    test_rows: int


def tune(
    calibrated: Calibrated,
    given: Mapping[str, Any],
    private: FeatureSet,
    known: FeatureSet,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """The same training with the options that did best on `known`: plan and guarantee stay.

    given: the options that the user chose, which are kept. memory: bytes, as for `training.prepare`. progress(done,
    total) counts trainings. Finished trials are kept beside the public set, so that a choice that was stopped goes on.
    UserError where there is nothing to choose, or where the public set cannot stand for the private one.
    """
    method, guarantee = calibrated.method, calibrated.guarantee
    if guarantee is None:
        raise UserError("--tune-on has no effect with --non-private.", "Leave it out.")
    points = [{}, *(p for p in factors(method, given) if any(f != 1 for f in p.values()))]
    if len(points) == 1:
        raise UserError(
            f"--tune-on has nothing to choose: {', '.join(method.grid)} are given.", "Leave it out, or one of them."
        )
    check_other(private, known)
    check_memory(calibrated, memory)
    if (known.manifest.labels_per_record > 1) != (calibrated.facts.k > 1):
        raise UserError(
            f"'{known.folder}' has up to {known.manifest.labels_per_record} labels per record, "
            f"'{private.folder}' up to {calibrated.facts.k}.",
            "Tune on a set of the same kind.",
        )
    for split in known.manifest.splits:
        if split in (SPLIT, "test"):
            known.verify(split)
    trials = _Trials(calibrated, given, known, len(points) + RUNS * (FINALISTS + 1), progress)
    first = {i: trials.run(points[i], 0) for i in range(len(points))}
    finalists = sorted(range(1, len(points)), key=lambda i: -first[i])[:FINALISTS]
    # Not the first run: whoever is a finalist was lucky in it.
    scores = {i: [trials.run(points[i], seed) for seed in range(1, RUNS + 1)] for i in (0, *finalists)}
    chosen = choose(scores)
    options = scaled(method, calibrated.facts, guarantee.mu, given, points[chosen])
    again = calibrate(method, calibrated.facts, options, calibrated.privacy)
    assert again.plan == calibrated.plan
    assert again.guarantee == guarantee
    draw, mu = trials.draw(1), trials.mu(trials.draw(1).facts)
    origin = {
        "name": known.name,
        "fingerprint": known.manifest.fingerprint,
        "facts": {"n": draw.facts.n, "m": draw.facts.m, "mu": mu},
        "runs": RUNS,
        "tried": [{"factors": points[i], "score": first[i]} for i in range(len(points))],
        "finalists": [
            {"factors": points[i], "score": statistics.mean(s), "sd": statistics.stdev(s)} for i, s in scores.items()
        ],
        "chosen": dict(points[chosen]),
    }
    if getattr(calibrated.options, "public", None) is not None:
        again = replace(again, options=replace(again.options, public=calibrated.options.public))
    return replace(again, tuning=origin)


def choose(scores: Mapping[int, Sequence[float]]) -> int:
    """The one whose mean is best, if it beats number 0 by more than twice the standard error of the difference, run by
    run; 0 otherwise.
    """
    best = max(scores, key=lambda i: statistics.mean(scores[i]))
    gains = [a - b for a, b in zip(scores[best], scores[0], strict=True)]
    clear = statistics.mean(gains) > 2 * statistics.stdev(gains) / math.sqrt(len(gains))
    return best if clear else 0


class _Trials:
    """Trials of one choice, those that were finished before included."""

    def __init__(
        self,
        calibrated: Calibrated,
        given: Mapping[str, Any],
        known: FeatureSet,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._calibrated, self._given, self._known = calibrated, given, known
        self._done, self._total, self._progress = 0, total, progress
        self._labels = [_labels(known, split) for split in (SPLIT, "test") if split in known.manifest.splits]
        self._path = known.folder.resolve().with_name(known.folder.resolve().name + SUFFIX)
        self._kept = _read(self._path)

    def mu(self, facts: Facts) -> float:
        """Noise per record as in the private training."""
        assert self._calibrated.guarantee is not None
        return self._calibrated.guarantee.mu * self._calibrated.facts.n / facts.n

    def draw(self, seed: int) -> Draw:
        """The records of a run."""
        return drawn(self._known, self._labels, self._calibrated.facts, seed)

    def run(self, point: Point, seed: int) -> float:
        """Top-1, or mean average precision of label sets, of the method at that point, in [0, 1]."""
        method, draw = self._calibrated.method, self.draw(seed)
        mu = self.mu(draw.facts)
        options = scaled(method, draw.facts, mu, self._given, point)
        key = self._key(draw, mu, options, seed)
        if key not in self._kept:
            made = method.defaults(draw.facts, mu, options)
            oracle = Curator(draw.facts, method.plan(draw.facts, made), mu, draw.train, SeededBits(seed))
            solution = method.solve(oracle, draw.facts, made)
            self._kept[key] = quality(Head(solution.chain, solution.weight, solution.bias, {}), draw)
            # A folder that cannot be written costs no more than the way back after a stop.
            with suppress(OSError), self._path.open("a") as file:
                file.write(json.dumps({"trial": key, "score": self._kept[key]}) + "\n")
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)
        return self._kept[key]

    def _key(self, draw: Draw, mu: float, options: Mapping[str, Any], seed: int) -> str:
        """Of everything that a trial's score depends on."""
        said = {
            "dpfc": dpfc_cli.__version__,
            "features": self._known.manifest.fingerprint,
            "method": self._calibrated.method.name,
            "facts": asdict(draw.facts),
            "mu": mu,
            "options": options,
            "seed": seed,
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def drawn(known: FeatureSet, labels: Sequence[np.ndarray], facts: Facts, seed: int) -> Draw:
    """Public records that stand for `facts`: at most as many classes and records, drawn by chance.

    labels: of the training split and, if there is one, of the test split; without one a fifth of the records is held
    out. UserError where that leaves fewer than two classes or records.
    """
    random = np.random.default_rng([seed, facts.n, facts.m])
    usable = [c for c in range(len(known.manifest.classes)) if (labels[0] == c).any()]
    classes = np.sort(random.permutation(usable)[: facts.m])
    table = np.full(len(known.manifest.classes) + 1, -1, np.int32)  # its last place is that of label −1
    table[classes] = np.arange(len(classes))
    having = [np.flatnonzero((table[y] >= 0).any(axis=1)) for y in labels]
    shuffled = random.permutation(having[0])
    if len(having) > 1:
        train, test, split = shuffled[: facts.n], having[1], "test"
    else:
        held = len(shuffled) // 5
        train, test, split = shuffled[held:][: facts.n], shuffled[:held], SPLIT
    if len(classes) < 2 or len(train) < 2 or not len(test):
        raise UserError(
            f"'{known.folder}' has too few labelled records to tune on: {len(classes)} classes, {len(train)} records "
            f"to train on and {len(test)} to test on.",
            "Name another set.",
        )
    again = replace(facts, n=len(train), m=len(classes), k=known.manifest.labels_per_record)
    return Draw(again, _chosen(known, SPLIT, train, table), _chosen(known, split, test, table), len(test))


def quality(head: Head, draw: Draw) -> float:
    """Top-1 of a head on a draw's test records, or mean average precision of label sets."""
    if draw.facts.k == 1:
        return score(head, draw.test(ROWS)).top1
    return float(np.nanmean(average_precisions(head, lambda: draw.test(ROWS), draw.test_rows)))


def _chosen(known: FeatureSet, split: str, rows: np.ndarray, table: np.ndarray) -> BlockStream:
    """Some records of a split, in its order, with their labels looked up in `table`."""
    wanted = np.zeros(known.split(split).n, bool)
    wanted[rows] = True

    def pieces() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start, x, y in known.stream(split)(ROWS):
            here = wanted[start : start + len(x)]
            yield x[here], table[y[here]]

    def blocks(rows: int) -> Blocks:
        return cut(pieces(), rows)

    return blocks


def _labels(known: FeatureSet, split: str) -> np.ndarray:
    return np.concatenate([y for _, _, y in known.stream(split)(ROWS)])


def _read(path: Path) -> dict[str, float]:
    """Scores of finished trials. A line that a kill cut short is none."""
    kept: dict[str, float] = {}
    with suppress(OSError):
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError, KeyError, TypeError):
                row = json.loads(line)
                kept[str(row["trial"])] = float(row["score"])
    return kept
