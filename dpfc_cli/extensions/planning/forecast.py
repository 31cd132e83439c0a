"""A forecast: how good will a private head be at which ε? No private record is read, and nothing is charged.

What is known beforehand are public facts: how many records (or persons), classes and dimensions there are. From them
follow the noise, what an attacker could guess, how many such trainings fit under a cap, and about which part of what
can be learned is left. How good a head will be depends on the records, too. So an expected accuracy needs a *stand-in*:
public labelled features of the same backbone. Whole private trainings run on it, as those of `tuning` do.

`stand_in` says what a stand-in can match.

**Several sites** that train one head each add the noise of their own ε. Sums do not care how the records are split. So
the head of H equal sites is that of one place with H times the variance of the noise: μ/√H. No site is made up for it.

The interval is for one more training on the stand-in: mean ± t·s·√(1 + 1/R) over R draws of records, classes and noise.
It covers chance alone.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfc_cli import backbones, rounding
from dpfc_cli.annotations.classes import class_names
from dpfc_cli.errors import UserError, conflict, counted, parameter, quoted
from dpfc_cli.extensions.planning.request import MOST, Forecasting
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.caps import allowed
from dpfc_cli.ledger.facts import Cap
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.public import SPLIT, facts_of
from dpfc_cli.methods import FEDERATED, method_named
from dpfc_cli.options import Option, takes
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.records.statement import meaning
from dpfc_cli.show.document import Told
from dpfc_cli.training.calibrate import FITTED, HIDES, POOR, Calibrated, calibrate, kept, warnings_of_width

if TYPE_CHECKING:
    from dpfc_cli.extensions.planning.stand_in import StandIn

MEASURED = (
    "between real sets, in 24 measured cases: 4 points in the median and 11 at worst; if the stand-in has fewer "
    "classes, 16 and 25"
)
"""How far forecasts were off, for users to see beside each of them. `bench.forecast` measures it."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is to be expected of a training at one ε.

    Attributes:
        kept: about which part of what can be learned without noise will be left, in [0, 1] (`calibrate.kept`); None
            for methods that this was not fitted to, and with a stand-in, whose accuracies say it better.
        accuracy: the mean over trainings on the stand-in, in [0, 1]: top-1, or mean average precision of label sets;
            None without a stand-in.
        interval: 95 % for one more such training; None without a stand-in.
        scores: of each training.
        guess: how often the best attacker guesses right, at most, whether a record (or person) was used.
        found: how many of those used the attacker finds, at most, at 5 % false alarms.
        fitting: how many such trainings fit under the cap beside what the ledger of the set has; None without a cap.
        for_person: ε for all records of one person together; None where it was not asked for or is beyond 100.

    """

    epsilon: float
    mu: float
    kept: float | None
    accuracy: float | None
    interval: tuple[float, float] | None
    scores: tuple[float, ...]
    guess: float
    found: float
    fitting: int | None
    for_person: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Forecast(Told):
    """What is to be expected of trainings, by ε.

    Attributes:
        facts: the public facts.
        sites: how many have equal parts of the records. ε and δ are those of each of them.
        method: the name of the method.
        delta: δ.
        outlooks: by ε, the smallest first.
        stand_in: what the expected accuracies were computed on; None if there was nothing.
        records_per_person: the records of one person that `for_person` is about; None if it was not asked for.
        cap: the ε of the cap; None without one.
        warnings: what must be known beside the figures.

    """

    facts: Facts
    sites: int
    method: str
    delta: float
    outlooks: tuple[Outlook, ...]
    stand_in: "StandIn | None"
    records_per_person: int | None
    cap: float | None
    warnings: tuple[str, ...]

    @property
    def about(self) -> str:
        facts, places = self.facts, "" if self.sites == 1 else f"at {self.sites} sites "
        counts = f"{counted(facts.n, facts.unit)} of {counted(facts.m, 'class')} {places}"
        return f"{self.method} on {counts}with {counted(facts.d, 'dimension')}, delta = {rounding.delta(self.delta)}"

    def told(self) -> dict[str, str]:
        found = {"of": self.about}
        for each in self.outlooks:
            good = [] if each.kept is None else [f"about {100 * each.kept:.0f} % kept"]
            if self.stand_in is not None:
                good = [rounding.with_interval(each.accuracy, each.interval, self.stand_in.tested)]
            fit = [] if self.cap is None else [f"{each.fitting:,} fit"]
            found[f"epsilon {each.epsilon:g}"] = ", ".join([*good, f"{rounding.at_most(each.guess)} guessed", *fit])
        return found | ({"beware": f"{counted(len(self.warnings), 'warning')}: .warnings"} if self.warnings else {})

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)


@takes(Forecasting)
def forecast(wanted: Forecasting) -> Forecast:
    """Say what to expect of trainings at several ε, from public facts and public records. Nothing is charged.

    Returns:
        The forecast.

    Raises:
        UserError: a value makes no sense, facts are missing or contradict, or `on` cannot stand for the records.

    Examples:
        for each in dpfc.forecast(records=20_000, classes=5, on=dpfc.open_features("public")).outlooks:
            print(each.epsilon, each.accuracy, each.interval)

    """
    facts = stated_facts(wanted)
    features, on, cap, records_per_person = wanted.features, wanted.on, wanted.cap, wanted.records_per_person
    if records_per_person is not None and facts.unit == "person":
        raise conflict(
            f"{parameter('records_per_person')} has no effect: persons are protected with all their records.",
            "Leave it out.",
        )
    chosen = method_named(wanted.method, facts)
    asked = [Privacy(epsilon=each, delta=wanted.delta) for each in sorted(set(wanted.epsilons))]
    claims = [calibrate(chosen, _of_site(facts, wanted.sites, chosen.name), wanted.options, each) for each in asked]
    # What the head of all sites is made of: all records, and H times the variance of a site's noise.
    noises = [replace(claim.noise, mu=claim.noise.mu / math.sqrt(wanted.sites)) for claim in claims]
    calibrations = [replace(claim, facts=facts, mechanism=all_) for claim, all_ in zip(claims, noises, strict=True)]
    first = claims[0].worth
    room = None
    if cap is not None:
        limit = Cap(by="-", population=None, unit=facts.unit, epsilon=cap, delta=first.delta)
        room = min([allowed(limit), *_left(features, limit)])
    said = warnings_of_width(facts.d)
    standing: StandIn | None = None
    scores: Sequence[Sequence[float]] = [()] * len(calibrations)
    if on is not None:
        # It loads JAX, and nothing else here needs that.
        from dpfc_cli.extensions.planning.stand_in import tried

        standing, scores, beware = tried(features, on, calibrations, wanted.memory, wanted.progress)
        said += beware
    sampled = calibrations[0].plan.sampled
    if sampled and room is not None:
        said.append("No cap is kept with sampled trainings, so none of them fits under one.")
    if sampled and records_per_person is not None:
        said.append("Little is known of what sampled trainings are for several records, so it is not stated.")
    outlooks = tuple(
        _outlook(claim, kept(calibrated), found, room, records_per_person)
        for claim, calibrated, found in zip(claims, calibrations, scores, strict=True)
    )
    hidden = [f"{each.epsilon:g}" for each, c in zip(outlooks, calibrations, strict=True) if kept(c) < POOR]
    # Where trainings were tried, their accuracies say it better.
    if hidden and standing is None:
        said.append(
            f"At epsilon = {', '.join(hidden)} {HIDES}: expect less than half of what can be "
            f"learned without noise. More {facts.unit}s, fewer dimensions, a larger epsilon or a public start help."
        )
    return Forecast(
        facts=facts,
        sites=wanted.sites,
        method=chosen.name,
        delta=first.delta,
        outlooks=outlooks,
        stand_in=standing,
        records_per_person=records_per_person,
        cap=cap,
        warnings=tuple(said),
    )


def _left(features: FeatureSet | None, cap: Cap) -> list[float]:
    """The μ² that a cap would leave, as the ledger of a set says. Nothing where it does not know the set."""
    if features is None:
        return []
    book, of = read(ledger_path(features.folder)), features.manifest.id
    return [max(each.room(cap, (of, SPLIT)), 0.0) for each in book.account_of(of).meant] if of in book.sets else []


def _of_site(facts: Facts, sites: int, method: str) -> Facts:
    """The facts of one of so many equal sites. UserError: they have too few records, or cannot train this method."""
    if sites == 1:
        return facts

    n, rows = facts.n // sites, None if facts.rows is None else facts.rows // sites
    if n < 2 or method not in FEDERATED:
        raise conflict(
            f"{counted(facts.n, facts.unit)} at {sites} sites cannot train {method}.",
            f"Sites train {', '.join(FEDERATED)}, and each needs two {facts.unit}s.",
            parameter="sites",
        )
    return replace(facts, n=n, rows=rows)


def _outlook(
    calibrated: Calibrated, part: float, scores: Sequence[float], room: float | None, records_per_person: int | None
) -> Outlook:
    guarantee = calibrated.worth
    groups = () if records_per_person is None else (records_per_person,)
    # As a statement would say it of the head.
    means = meaning(calibrated.stated, groups)
    assert means is not None
    fitting = None if room is None else 0 if calibrated.plan.sampled else math.floor(room / guarantee.mu**2)
    return Outlook(
        epsilon=guarantee.epsilon,
        mu=guarantee.mu,
        kept=part if calibrated.method.name in FITTED and not scores else None,
        accuracy=statistics.mean(scores) if scores else None,
        interval=interval_of(scores) if scores else None,
        scores=tuple(scores),
        guess=means["accuracy"],
        found=means["power"],
        fitting=fitting,
        for_person=(means["groups"] or {}).get(str(records_per_person)),
    )


def interval_of(scores: Sequence[float]) -> tuple[float, float]:
    """95 % for one more training: mean ± t·s·√(1 + 1/R), in [0, 1]. The scores are taken as normal."""
    from scipy.stats import t

    mean, count = statistics.mean(scores), len(scores)
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(scores) * math.sqrt(1 + 1 / count)
    return max(mean - half, 0.0), min(mean + half, 1.0)


_COUNT = Option("", kind="integer", low=2, high=MOST)


def stated_facts(wanted: Forecasting) -> Facts:
    """The public facts, of the manifest or as they are stated. UserError: something is missing or makes no sense, or
    two of them contradict.
    """
    features, on, records, persons = wanted.features, wanted.on, wanted.records, wanted.persons
    classes, dimensions = wanted.classes, wanted.dimensions
    if isinstance(classes, Sequence | Path):
        classes = len(class_names(classes) or ())
    if classes is not None:
        classes = _COUNT.taken("classes", classes)
    stated = {"records": records, "persons": persons, "classes": classes, "model": wanted.model}
    given = [name for name, value in {**stated, "dimensions": dimensions}.items() if value is not None]
    twice = ["features", *given] if features is not None else [n for n in given if n in ("model", "dimensions")]
    if len(twice) > 1:
        raise conflict(
            f"{parameter(twice[0])} and {parameter(twice[1])} both say it.",
            "Leave out one of them.",
            parameter=twice[1],
        )
    if features is not None:
        return facts_of(features, wanted.neighbours)
    if wanted.model is not None:
        dimensions = _dimensions(wanted.model)
    units = records if persons is None else persons
    width = on.dim if dimensions is None and on is not None else dimensions
    missing = [name for name, value in (("records", units), ("classes", classes), ("dimensions", width)) if not value]
    if units is None or classes is None or width is None:
        raise UserError(
            f"It is not known how many {' and '.join(missing)} there are.",
            f"State {parameter('records')} (or {parameter('persons')}), {parameter('classes')}, and "
            f"{parameter('dimensions')} (or {parameter('model')}, or {parameter('on')}). Or name the private set, of "
            f"which only the manifest is read: {parameter('features')}.",
            code="missing",
            parameter=missing[0],
        )
    if on is not None and width != on.dim:
        raise conflict(
            f"{quoted(on.folder)} has {on.dim} dimensions, not {width}: its features are of another backbone.",
            f"Name features of the same backbone, or leave out {parameter('dimensions')}.",
        )
    k = 1 if on is None else on.manifest.labels_per_record
    facts = Facts(n=units, m=classes, d=width, k=k, adjacency=wanted.neighbours)
    if persons is None:
        return facts
    if records is not None and records < persons:
        raise conflict(
            f"There are {counted(records, 'record')} of {counted(persons, 'person')}.",
            "A person has one record at least.",
            parameter="persons",
        )
    return replace(facts, rows=persons if records is None else records, unit="person")


def _dimensions(model: str) -> int:
    found = backbones.dimensions(model)
    if found is None:
        raise conflict(
            f"The features of {model} are of a length that depends on the pictures or on the weights.",
            f"State {parameter('dimensions')} instead of {parameter('model')}.",
            parameter="model",
        )
    return found
