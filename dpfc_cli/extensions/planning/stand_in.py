"""A stand-in: public labelled features, on which whole private trainings run for a forecast.

A training on it has as many classes, records and noise as the private one, where it has as many. Where it has fewer
classes, m' < m, a training has n·m'/m records. So each class has as many records as it will have, and the noise stays:
the signal of a class has the same ratio to the noise. Where it has fewer records than that, μ is larger by the same
factor, so the ratio still stays. What no stand-in can match is how hard the private classes are to tell apart.
`docs/extensions/planning.md` says how far forecasts were off.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfc_cli.extensions.planning.tuning import Trials, check_stand_in, labels_of
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import check_public
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.progress import Progress
from dpfc_cli.training import public
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.machine import check_devices, check_memory

RUNS = 5
"""Trainings on the stand-in for each ε."""
Scores = list[tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Public records that stood for the private ones. facts: of a training on them. tested: the records that it was
    scored on, at least. noiseless: accuracy without noise, by what one training gained on that at the largest ε; None
    where the method would need the optimum for it. matched, unmatched: what is as it will be, and what is not, in
    sentences.
    """

    name: str
    facts: Facts
    tested: int
    noiseless: float | None
    matched: tuple[str, ...]
    unmatched: tuple[str, ...]


def tried(
    features: FeatureSet | None,
    on: FeatureSet,
    calibrations: Sequence[Calibrated],
    memory: float | None,
    progress: Progress | None,
) -> tuple[StandIn, Scores, list[str]]:
    """Whole trainings on a stand-in, after everything that can be refused before the first one: what stood for what,
    the scores of each ε, and what to beware of. features: the private set, which is not read; None if its facts are
    stated. memory: bytes that a training may take; None: what the machine has free.
    """
    trials, said = _trials(features, on, calibrations[0], memory), public.warnings_of(on)
    scores, noiseless = _tried(trials, calibrations, progress)
    return _stand_in(trials, calibrations[0].facts, noiseless), scores, said


def _trials(features: FeatureSet | None, on: FeatureSet, calibrated: Calibrated, memory: float | None) -> Trials:
    """Trainings on the stand-in, after everything that can be refused before the first one."""
    facts = calibrated.facts
    check_memory(calibrated.method, calibrated.plan, facts, memory)
    check_devices()
    if features is None:
        check_public(on, "on")
    else:
        check_stand_in(features, on, facts.k, "on")
    labels = labels_of(on)
    classes = min(facts.m, len(np.unique(labels[0][labels[0] >= 0])))
    # As many records of each class as there will be.
    stands_for = replace(facts, n=max(2, round(facts.n * classes / facts.m)), m=classes)
    return Trials(calibrated, on, stands_for, labels, RUNS, memory)


def _tried(
    trials: Trials, calibrations: Sequence[Calibrated], progress: Progress | None
) -> tuple[Scores, float | None]:
    done, total = 0, RUNS * len(calibrations) + 1

    def told(seed: int, score: float) -> float:
        nonlocal done
        done += 1
        if progress:
            progress(f"Training on {trials.known.name}", done, total)
        # Of one label per record the hits are counted.
        return score / len(trials.draws[seed].test) if trials.facts.k == 1 else score

    found: list[list[float]] = [[] for _ in calibrations]
    # Draw by draw, for each is read once.
    for seed in range(RUNS):
        for scores, calibrated in zip(found, calibrations, strict=True):
            scores.append(told(seed, trials.run({}, seed, calibrated.noise.mu)))
    noiseless = trials.noiseless(RUNS - 1)
    if noiseless is not None:
        # One training says little of a level, and much of what noise costs on the same draw.
        largest = found[-1]
        noiseless = told(RUNS - 1, noiseless) - largest[-1] + statistics.mean(largest)
        noiseless = min(max(noiseless, 0.0), 1.0)
    return [tuple(each) for each in found], noiseless


def _stand_in(trials: Trials, facts: Facts, noiseless: float | None) -> StandIn:
    draw, name = min((each.facts for each in trials.draws), key=lambda f: f.n), trials.known.name
    matched, unmatched = [], []
    if draw.m == facts.m:
        matched.append(f"the number of classes ({facts.m:,})")
    else:
        unmatched.append(
            f"{name} has {draw.m:,} classes for {facts.m:,}. They are easier to tell apart: expect less than this"
        )
    if draw.n >= trials.facts.n:
        each = "" if draw.m == facts.m else ": as many for each class as there will be"
        matched += [f"the number of {facts.unit}s of a training ({draw.n:,}{each})", "the noise"]
    else:
        less = trials.facts.n / draw.n
        matched.append(f"the noise for the {facts.unit}s of a class (σ is {less:.3g} times smaller)")
        unmatched.append(f"a training learns from {draw.n:,} records of {name}, not from {trials.facts.n:,}")
    if facts.unit == "person":
        unmatched.append("a person is one record here: expect more than this if persons have several")
    unmatched.append("how hard your classes are to tell apart, which only your records say")
    tested = min(len(each.test) for each in trials.draws)
    return StandIn(
        name=name, facts=draw, tested=tested, noiseless=noiseless, matched=tuple(matched), unmatched=tuple(unmatched)
    )
