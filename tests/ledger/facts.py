"""Facts, ledgers and small sets, as the tests of the ledger make them."""

import functools
import itertools
import math
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.facts import Cap, Charge, Fact, Outcome, Set, new_id
from dpfc_cli.ledger.file import append
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.records.claims import Release
from dpfc_cli.records.figures import Figures, ReleasedClass
from tests.support import feature_set

DIGEST = "0123456789abcdef" * 4
DELTA, ETA = 1e-5, 2.0**-230
POPULATIONS = ("a", "b", "c")
EPSILONS = (0.05, 0.5, 1.0, 2.5)

mu_for = functools.cache(mu_for)


def a_set(population: str | None = None, **changed: Any) -> Set:
    of = changed.get("set") or new_id()
    said: dict[str, Any] = {"set": of, "name": "digits", "records": of * 2, "listing": {"train": of}}
    return Set(**{"by": "Ada", **said, "population": population, **changed})


def a_charge(of: Set | str, epsilon: float = 1.0, *, times: int = 1, rate: float = 1.0, **changed: Any) -> Charge:
    """A charge of ε at δ in equal releases. claim: without a guarantee there are no figures."""
    claim, delta, eta = (changed.pop(name, due) for name, due in (("claim", "private"), ("delta", DELTA), ("eta", ETA)))
    mu = mu_for(epsilon, delta, eta)
    sigma = 0.0 if claim == "non-private" else math.sqrt(times) / mu
    release = Release(kind="gram", shape=(3, 3), share=1 / times, sigma=sigma, rate=rate, times=times)
    figures = {"epsilon": epsilon, "delta": delta, "mu": mu, "eta": eta}
    figures = figures if claim == "private" else dict.fromkeys(figures)
    said: dict[str, Any] = {"split": "train", "method": "dp-fc", "adjacency": "zero-out", "unit": "record", "n": 100}
    said |= {"set": of if isinstance(of, str) else of.set, "head": "h.safetensors", "digest": DIGEST, "claim": claim}
    return Charge(**{"by": "Ada", "releases": (release,), **said, **figures, **changed})


def some_figures(charge: str, **changed: Any) -> Figures:
    """What an evaluation has released under a charge."""
    said: dict[str, Any] = {"head": "h.safetensors", "head_sha256": DIGEST, "features": "digits", "split": "test"}
    said |= {"unit": "record", "epsilon": 1.0, "delta": DELTA, "n": 90, "charge": charge}
    said |= {"top1": 0.75, "interval": (0.625, 0.875), "noise": 0.03125}
    each = ReleasedClass(name="a", n=7, top1=None, interval=(0.0, 1.0), noise=None)
    more: dict[str, Any] = {"top5": None, "top5_interval": None, "top5_noise": None, "per_class": (each,)}
    return Figures(**{**said, **more, **changed})


def a_cap(epsilon: float | None, population: str | None = None, **changed: Any) -> Cap:
    delta = None if epsilon is None else DELTA
    said = {"by": "an officer", "population": population, "unit": "record", "epsilon": epsilon, "delta": delta}
    return Cap(**{**said, **changed})


def ledger_of(*facts: Fact) -> Ledger:
    return Ledger(path=Path("ledger.sqlite"), facts=facts)


def written(path: Path, *facts: Fact) -> Ledger:
    path.parent.mkdir(parents=True, exist_ok=True)
    return append(path, lambda ledger: list(facts), "It")


def changed(path: Path, sql: str, *values: object) -> None:
    """Change the file of a ledger with SQLite alone."""
    with closing(sqlite3.connect(path)) as connection, connection:
        if values:
            connection.execute(sql, values)
        else:
            connection.executescript(sql)


def next_fact(draw: random.Random, facts: Iterable[Fact], sampled: bool = True) -> Fact:
    """Any fact that may follow these."""
    known = ledger_of(*facts)
    sets, charges, outcomes = known.all(Set), known.all(Charge), known.all(Outcome)
    kind = draw.choice(("set", "charge", "charge", "charge", "charge", "outcome", "outcome", "cap", "said"))
    whose = draw.choice((None, *POPULATIONS))
    if kind == "set" or not sets:
        return a_set(whose, adopted=draw.random() < 0.1)
    if kind == "said":
        # A set has a further fact, which may replace the others or not.
        of = draw.choice(sets)
        before = tuple(each.id for each in known.sets.get(of.set, ()))
        return a_set(whose, set=of.set, replaces=before if draw.random() < 0.5 else ())
    if kind == "cap":
        held = [each.id for each in known.caps]
        return a_cap(
            draw.choice((None, 0.5, 1.0, 3.0)), whose, unit=draw.choice(("record", "person")),
            replaces=tuple(held) if draw.random() < 0.3 else (),
        )  # fmt: skip
    if kind == "outcome" and charges:
        of_charge = draw.choice(charges)
        after = draw.choice([None, *(each.id for each in outcomes if each.charge == of_charge.id)])
        return Outcome(by="Ada", charge=of_charge.id, state=draw.choice(("stopped", "resumed", "written")), after=after)
    part = sampled and draw.random() < 0.1
    return a_charge(
        draw.choice(sets), draw.choice(EPSILONS), times=draw.choice((1, 3)), rate=0.1 if part else 1.0,
        split=draw.choice(("train", "test")), unit=draw.choice(("record", "person", "person")),
        claim=draw.choice(("private", "private", "private", "private", "research", "non-private")),
        adjacency="zero-out" if part else draw.choice(("zero-out", "replace-one")),
        method=draw.choice(("dp-fc", "evaluation")), eta=draw.choice((ETA, 1e-9)),
    )  # fmt: skip


def some_facts(draw: random.Random, count: int, before: Iterable[Fact] = (), sampled: bool = True) -> list[Fact]:
    """So many facts that may follow these."""
    made = list(before)
    first = len(made)
    for _ in range(count):
        made.append(next_fact(draw, made, sampled))
    return made[first:]


def weight(charge: Charge, unit: str) -> float:
    if charge.unit == unit:
        return 1.0
    return math.inf if unit == "person" else {"zero-out": 2.0, "replace-one": 1.0}[charge.adjacency]


def by_hand(facts: Iterable[Fact], population: str | None, unit: str) -> float:
    """μ² of what was spent on the unit of a population that it cost most: one split of each set, in every way."""
    facts = list(facts)
    gone = {one for fact in facts for one in fact.replaces}
    where: dict[str, set[str | None]] = {}
    for fact in facts:
        if isinstance(fact, Set) and (fact.population is not None or fact.id not in gone):
            where.setdefault(fact.set, set()).add(fact.population)
    spent: dict[str, dict[str, float]] = {}
    sampled = False
    for charge in facts:
        if not isinstance(charge, Charge) or charge.claim != "private":
            continue
        names = where.get(charge.set, {None})
        if not names & {None, population}:
            continue
        ends = [each for each in facts if isinstance(each, Outcome) and each.charge == charge.id]
        ends = [each for each in ends if not any(isinstance(o, Outcome) and o.after == each.id for o in facts)]
        squares = sum(r.times * (weight(charge, unit) / r.sigma) ** 2 for r in charge.releases)
        splits = spent.setdefault(charge.set, {})
        splits[charge.split] = splits.get(charge.split, 0.0) + max(1, len(ends)) * squares
        sampled = sampled or charge.releases[0].rate < 1
    if sampled:
        return sum(sum(splits.values()) for splits in spent.values())
    return max(sum(each) for each in itertools.product(*(splits.values() for splits in spent.values())))


def spent_by(*epsilons: float) -> float:
    """ε at δ of charges of these ε together."""
    return epsilon_for(math.hypot(*(mu_for(each, DELTA, ETA) for each in epsilons)), DELTA)


def records(*numbers: int) -> np.ndarray:
    """Records that follow from their numbers."""
    return np.array([(i, i % 7, i % 5) for i in numbers], np.float32)


def made_set(place: Path, numbers: Iterable[int], population: str | None = None, persons: bool = False) -> FeatureSet:
    """A set of these records, imported as a user does it."""
    x = records(*numbers)
    source = place.parent.parent / "sources" / f"{place.parent.name}-{place.name}.npz"
    source.parent.mkdir(parents=True, exist_ok=True)
    groups: dict[str, Any] = {"train_groups": np.arange(len(x)) // 2} if persons else {}
    np.savez(source, train_x=x, train_y=np.arange(len(x)) % 2, **groups)
    return feature_set(source, place, classes=("a", "b"), population=population)


def kept(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
