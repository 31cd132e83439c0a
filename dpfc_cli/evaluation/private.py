"""How good a head is on private records, with noise: what is released, what it costs, and how sure the figures are.

An evaluation goes the way of a training: its plan is a function of public facts, it is checked, charged to the ledger,
and only then the records are summed. Its charge is on the split that is evaluated.

**What is released** (`privacy.outcomes`): how many records are right and how many are wrong. The number of records n is
public, but how many of them have a label is not. So the figure is right/(right + wrong), with both from the release:
that of `evaluate`, where records without a label do not count. This costs nothing. One record moves one of the two
sums, so both have the noise of one, and the noise of the fraction is σ·√((1 − p)² + p²)/n at accuracy p. That of
right/n is σ/n, which is more, and it would take a record without a label for a wrong one.

**What pays.** The accuracy among the best five takes a third sum, and then the noise of the first figure is up to √2
times as large. The figures per class take half of the budget. Both are released only if their noise is not larger than
the most that the choice of the records makes them err anyway, √(¼/n), or √(¼/(n/m)) for a class of average size. This
is a function of n, m and σ.

**Areas under ROC curves** are released if they are asked for (`figures`), of trees of counts: see `privacy.standings`
and `ranks`. Where a class is said from a probability on (two classes and one label, several labels, or a threshold of
the user's), sensitivities and specificities are read off the same trees. With "both", accuracies and areas get half of
μ² each: only the user knows which of them matters more, and who knows asks for one. The balanced accuracy is the mean
of what is released per class, and costs nothing.

**Intervals.** Let H be the number of right records and W that of wrong ones, with noise of the standard deviations a
and b. At the true probability p the sum (1 − p)·H − p·W has the mean 0. Its variance is N·p·(1 − p) by the choice of N
records and (1 − p)²·a² + p²·b² by the noise. The interval holds all p for which the sum is within 1.96 standard
deviations of 0. Without noise it is the score interval of Wilson (1927); without the first term it is that of Fieller
(1954, "Some problems in interval estimation") for a fraction of two measured numbers. Both ends come from one quadratic
equation. N is not known, and H + W takes its place. A count below 0 counts as 0, which moves the sum towards 0.

**Subgroups.** With a column each record is counted in the row of its subgroup alone. So the rows have the noise of one
evaluation, and cost no more. The figures of all records together are those of the sums of the rows, with the noise of
all of them: a small ε is better spent without subgroups. There are no accuracies per class then.

**Persons.** If the unit is a person, a person adds the average of the person's records (`persons`). So the figure is
the mean over persons of the fraction of their pictures that are right: each person has the same weight. The interval
takes persons as drawn independently. Such fractions vary at most as much as 0 and 1 with the same mean do, so it is
wide enough. Of a class, a person counts by the fraction of the person's pictures that have it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import structs

from dpfc_cli.errors import UserError, conflict, parameter, printable, unsupported
from dpfc_cli.evaluation import ranks
from dpfc_cli.evaluation.request import PrivateScoring
from dpfc_cli.evaluation.statistics import Measure, mean
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.folders import heads_folder
from dpfc_cli.heads.head import Head, cards
from dpfc_cli.heads.metrics import BEST, Interval, Z
from dpfc_cli.ledger.facts import EVALUATION, Charge, account_name, noted
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.ledger.standing import loses, without_charge
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.memory import free_memory
from dpfc_cli.privacy import forms, queries
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.lattice import LONGEST
from dpfc_cli.privacy.oracle import Plan, planned
from dpfc_cli.privacy.outcomes import Outcomes
from dpfc_cli.privacy.parts import Sum
from dpfc_cli.privacy.standings import Standings, depth_of
from dpfc_cli.progress import Progress
from dpfc_cli.records.figures import Figures, Measured, ReleasedClass, ReleasedSubgroup
from dpfc_cli.rounding import area, area_with_interval, cost, interval, with_interval
from dpfc_cli.show.document import Told
from dpfc_cli.training.calibrate import Planned, check_delta, noised
from dpfc_cli.training.card import charge_of
from dpfc_cli.training.charged import Charged, Confirm, charged, check_charge
from dpfc_cli.training.machine import check_devices, working_bytes
from dpfc_cli.training.summing import Alone, Summing


class PrivateEvaluation(Told, Figures):
    """How good a head is on a private split. Everything here was released with noise, or is public.

    Attributes:
        warnings: for whoever reads the figures.
        spent: what the ledger has of the population of these records, this one included.

    """

    warnings: tuple[str, ...]
    spent: Account

    def told(self) -> dict[str, str]:
        found, paid = dict[str, str](), f"{cost(self.epsilon, self.delta)} for one {self.unit}"
        if self.tells_accuracy:
            found["top-1"] = f"{with_interval(self.top1, self.interval, self.n)}, with noise"
        if self.auroc is not None:
            found["AUROC"] = f"{area_with_interval(self.auroc.value, self.auroc.interval, self.n)}, with noise"
        return {"split": printable(self.split), **found, "cost": paid, **self.spent.told()}

    @property
    def figures(self) -> Figures:
        """What was released."""
        return Figures(**{name: getattr(self, name) for name in Figures.__struct_fields__})

    @property
    def sha256(self) -> str:
        return self.figures.sha256


Asked = Outcomes | Standings


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An evaluation that nothing stands against: what is left is to charge it and to read the records.

    book: what was charged before. sure: how sure its figures will be, in a sentence. warnings: for whoever reads them.
    summing: who sums the records.
    """

    wanted: PrivateScoring
    planned: Planned
    queries: tuple[Asked, ...]
    charge: Charge
    book: Ledger
    sure: str
    warnings: tuple[str, ...]
    summing: Summing


def prepare(
    wanted: PrivateScoring,
    warn: Callable[[str], None] = lambda text: None,
    warnings: tuple[str, ...] = (),
    summing: Summing | None = None,
) -> Ready:
    """Everything of an evaluation that costs no privacy. The head fits the features. UserError: whatever can be
    refused. warn: told what to know before the charge. summing: who sums the records; None: this process.
    """
    head, features, split, delta = wanted.head, wanted.features, wanted.split, wanted.delta
    by, purpose = noted("by", wanted.by) or account_name(), noted("purpose", wanted.purpose)
    facts, groups = facts_of(features, split=split), 1
    if wanted.subgroups is not None:
        groups = len((features.manifest.subgroups or {})[wanted.subgroups])
        features = features.of_subgroups(wanted.subgroups)
        wanted, facts = replace(wanted, features=features), replace(facts, m=groups * facts.m)
    if delta is not None:
        check_delta(delta, facts, "Choose a smaller one, or leave it out.")
    asked, plan = _planned(head, facts, Privacy(epsilon=wanted.epsilon, delta=delta), wanted.figures, groups)
    digest = sha256_of(head.file)
    book = read(ledger_path(features.folder))
    _refuse_leaking(head, digest, features, split, book)
    charge = charge_of(plan, EVALUATION, features, head.file.name, digest, by, purpose, split)
    check_charge(book, features, charge)
    for query in asked:
        forms.check(query, facts)
    # With noise for one release in all there is a lattice, up to 4·10⁹ records.
    lattice_of(plan.noise)
    needed = working_bytes(facts)
    if needed > (allowed := free_memory()):
        raise UserError(
            f"This evaluation needs about {needed / 1e6:,.0f} MB, and {allowed / 1e6:,.0f} MB are free.",
            "End other programs first.",
            code="memory",
            needed=needed,
            allowed=allowed,
        )
    check_devices()
    summing = Alone() if summing is None else summing
    summing.verify(features, split, facts)
    sure = _sure(plan, asked, wanted)
    for lost in (without_charge(cards(heads_folder()), book), loses(book.account_of(charge.set), charge)):
        if lost is not None:
            warn(lost)
    known: dict[str, Any] = {"wanted": wanted, "planned": plan, "queries": asked, "charge": charge, "book": book}
    return Ready(**known, sure=sure, warnings=warnings, summing=summing)


def _sure(plan: Planned, asked: tuple[Asked, ...], wanted: PrivateScoring) -> str:
    """How sure the figures will be, in sentences. UserError where they would say nothing."""
    facts, said, useless = _of_one(plan.facts, asked[0].groups), list[str](), None
    sigmas = dict(zip(map(type, asked), plan.noise.sigmas, strict=False))
    if Outcomes in sigmas:
        half = facts.n / 2
        noisy, exact = (fraction(half, half, each, each, facts.n)[1] for each in (sigmas[Outcomes], 0.0))
        if noisy == (0.0, 1.0):
            useless = "the interval of an accuracy of one half is 0 to 100 %"
        with_noise, without = (interval(each, facts.n) for each in (noisy, exact))
        said.append(f"The 95 % interval of an accuracy of one half will be {with_noise}, and without noise {without}.")
    if isinstance(asked[-1], Standings):
        mean_of, each = ranks.expected(plan.noise.sigmas[-1], asked[-1].depth, facts, wanted.threshold)
        if mean_of.value is None:
            useless = "the interval of a mean AUROC of 0.75 is wider than half of all values"
        ends = (area(0.75, measured.interval, facts.n)[1] for measured in (mean_of, each))
        said.append("The 95 % interval of a mean AUROC of 0.75 will be {}, and that of one class {}.".format(*ends))
    if useless is not None:
        raise UserError(
            f"With this noise {useless}: {facts.n:,} {facts.unit}s are too few for this {parameter('epsilon')}.",
            "Give a larger one, or a split with more of them. Nothing was charged.",
            parameter="epsilon",
        )
    return " ".join(said)


def release(
    ready: Ready, progress: Progress | None = None, confirm: Confirm = lambda charge, refused: refused is None
) -> PrivateEvaluation:
    """Charge an evaluation to the ledger, and release its figures. progress: of the records, over all sums. confirm:
    see `charged`. UserError: it does not fit under a cap, or the ledger cannot be written. KeyboardInterrupt,
    Exception: whatever stopped it. A note says whether it was charged.
    """
    wanted, charge = ready.wanted, ready.charge
    with charged(
        ready.planned, wanted.features, charge, ready.book, by=charge.by, confirm=confirm, again=wanted.again
    ) as paid:
        over = paid.features, charge.split, paid.planned.facts, lattice_of(paid.planned.noise)
        with ready.summing.begun(*over) as total:
            answers = _answers(paid, ready.queries, progress, total)
        found = _figures(ready, answers, paid.spent)
        paid.figures, paid.sha256 = found.figures, found.sha256
    if paid.unsettled is None:
        return found
    said = f"the ledger does not say that the figures were released. {paid.unsettled.what}"
    return structs.replace(found, warnings=(*found.warnings, said))


def fraction(right: float, wrong: float, a: float, b: float, n: int) -> tuple[float | None, Interval, float | None]:
    """right/(right + wrong) of counts with independent normal noise of the standard deviations a and b, or None if both
    are noise; its 95 % interval, see above; and the standard deviation of its noise, or None. n: the most that both
    counts can be together.
    """
    right, wrong = max(right, 0.0), max(wrong, 0.0)
    total = right + wrong
    size = min(max(total, 1.0), n)
    # (right - p·total)² ≤ Z²·(size·p·(1 - p) + (1 - p)²·a² + p²·b²), as a·p² + b·p + c ≤ 0.
    square = total**2 + Z**2 * (size - a**2 - b**2)
    linear = -2 * right * total - Z**2 * (size - 2 * a**2)
    constant = right**2 - Z**2 * a**2
    # If noise may be all that there is, no p is excluded, or only some in between.
    interval = (0.0, 1.0)
    if square > 0:
        root = math.sqrt(max(linear**2 - 4 * square * constant, 0.0))
        interval = (max((-linear - root) / (2 * square), 0.0), min((-linear + root) / (2 * square), 1.0))
    if not total:
        return None, interval, None
    p = right / total
    return p, interval, math.hypot((1 - p) * a, p * b) / total


def _planned(
    head: Head, facts: Facts, privacy: Privacy, figures: str = "accuracy", groups: int = 1
) -> tuple[tuple[Asked, ...], Planned]:
    """What is released of a head, and with how much noise: a function of public facts."""
    weight, bias = (np.ascontiguousarray(each, np.float64) for each in (head.weight, head.bias))
    totals, depth = Outcomes(head.chain, weight, bias, groups=groups), depth_of(_of_one(facts, groups))
    if figures != "accuracy" and depth is None:
        raise unsupported(
            f"Areas under ROC curves are not released for {facts.m:,} classes: their counts would not fit into a sum.",
            "Ask for accuracies.",
            parameter="figures",
        )
    mu = noised(Plan((planned(totals, facts, 1.0),)), facts, privacy)[0].mu / math.sqrt(1 + (figures == "both"))
    by_class = groups == 1 and 2 * facts.m <= LONGEST and _pays(math.sqrt(2 * facts.k) / mu, facts.n / facts.m)
    # Where the figures per class pay, this does, too.
    if facts.m // groups > BEST and _pays(1 / mu, facts.n):
        totals = replace(totals, best=BEST)
    accuracies = (totals, Outcomes(head.chain, weight, bias, by_class=True)) if by_class else (totals,)
    asked: tuple[Asked, ...] = accuracies if figures != "auroc" else ()
    shares = [1 / len(accuracies) for _ in asked]
    if figures != "accuracy" and depth is not None:
        asked, shares = (*asked, Standings(head.chain, weight, bias, depth, groups)), [*shares, 1.0]
    plan = Plan(tuple(planned(query, facts, share) for query, share in zip(asked, shares, strict=True)))
    guarantee, mechanism = noised(plan, facts, privacy)
    return asked, Planned(facts=facts, privacy=privacy, plan=plan, mechanism=mechanism, guarantee=guarantee)


def _pays(sigma: float, n: float) -> bool:
    """Whether the noise of a count of n records moves a fraction by no more than the choice of the records may."""
    return sigma <= math.sqrt(n) / 2


def _refuse_leaking(head: Head, digest: str, features: FeatureSet, split: str, book: Ledger) -> None:
    """UserError for a head that was trained on these records without privacy: it is another one for a neighbour."""
    card = head.card
    same = (card.features.name, card.features.split, card.records) == (features.name, split, features.split(split).n)
    of = features.manifest.id
    if not card.private and (same or any(_may_hold(book, each, of, split) for each in book.written(digest))):
        raise conflict(
            "This head was trained on these records without a guarantee. So its figures on them cannot have one: they "
            "tell what the head tells.",
            f"Evaluate it on other records, or without {parameter('epsilon')}. If nobody is in both sets, say whose "
            "records they are: 'dpfc population'.",
        )


def _may_hold(book: Ledger, charge: Charge, of: str, split: str) -> bool:
    """Whether somebody of a split may be among those whose records a charge is on."""
    if charge.set == of:
        return charge.split == split
    theirs, own = book.populations_of(charge.set), book.populations_of(of)
    return theirs is None or own is None or bool(theirs & own)


def _answers(
    paid: Charged, asked: tuple[Asked, ...], progress: Progress | None, total: Sum | None = None
) -> list[np.ndarray]:
    """The counts of each query with noise, and the standard deviation of the noise of each: 2 × counts, or 2 ×
    subgroups × counts.
    """
    mechanism = paid.planned.noise
    told = None if progress is None else lambda stage, *far: progress("Evaluating", *far)
    oracle, lattice = paid.oracle(told, together=total), lattice_of(mechanism)
    found = []
    for query, sigma in zip(asked, mechanism.sigmas, strict=True):
        unit = queries.sensitivity(query, mechanism.facts) * lattice.unit * query.scale(mechanism.facts, lattice)
        counts = oracle.release(query)
        counts = counts if query.groups > 1 else counts[0]
        found.append(np.stack([counts, np.full_like(counts, sigma * unit)]))
    return found


def _figures(ready: Ready, answers: list[np.ndarray], spent: Account) -> PrivateEvaluation:
    """What the released counts say. Nothing else of the records is looked at from here on."""
    guarantee, groups, column = ready.planned.worth, ready.queries[0].groups, ready.wanted.subgroups
    parts = None
    if column is not None and groups > 1:
        values = (ready.wanted.features.manifest.subgroups or {})[column]
        each = [_read(ready, [answer[:, i] for answer in answers]) for i in range(groups)]
        parts = tuple(
            ReleasedSubgroup(
                column=column, value=value, n=n, auroc=found.get("auroc"), **{name: found[name] for name in _TOP1}
            )
            for value, (n, found) in zip(values, each, strict=True)
        )
        # The noise of a sum of rows.
        answers = [np.stack([counts.sum(axis=0), noise[0] * math.sqrt(groups)]) for counts, noise in answers]
    n, found = _read(ready, answers)
    return PrivateEvaluation(
        head=ready.charge.head,
        head_sha256=ready.charge.digest,
        features=ready.wanted.features.name,
        split=ready.charge.split,
        unit=ready.planned.facts.unit,
        epsilon=guarantee.epsilon,
        delta=guarantee.delta,
        n=n,
        warnings=ready.warnings,
        charge=ready.charge.id,
        spent=spent,
        subgroups=parts,
        **found,
    )


_TOP1 = ("top1", "interval", "noise")


def _of_one(facts: Facts, groups: int) -> Facts:
    """The facts of a subgroup of average size."""
    return replace(facts, m=facts.m // groups, n=max(facts.n // groups, 1))


def _read(ready: Ready, answers: list[np.ndarray]) -> tuple[int, dict[str, Any]]:
    """How many records have a label, and the figures that these answers give, in one row each."""
    planned = ready.planned.facts
    facts, names = replace(planned, m=planned.m // ready.queries[0].groups), ready.wanted.head.classes
    found, n = dict[str, Any](), 0
    if isinstance(ready.queries[-1], Standings):
        *answers, (answer, noise) = answers
        alone = facts.k > 1 or facts.m == 2
        threshold = 0.5 if ready.wanted.threshold is None and alone else ready.wanted.threshold
        each, auroc, balanced, labelled = ranks.ranks_of(
            answer, float(noise[0]), ready.queries[-1].depth, facts, names, threshold
        )
        found = {"ranks": each, "auroc": auroc, "threshold": threshold}
        found |= {} if balanced is None else {"balanced_accuracy": balanced}
        n = round(min(max(labelled, 0.0), facts.n))
    if answers:
        n, accuracies = _accuracies(answers, facts, names)
        found = accuracies | found
    blank: dict[str, Any] = dict.fromkeys(("top1", "noise", "top5", "top5_interval", "top5_noise", "per_class"))
    return n, blank | {"interval": (0.0, 1.0)} | found


def _accuracies(answers: list[np.ndarray], facts: Facts, names: tuple[str, ...]) -> tuple[int, dict[str, Any]]:
    """How many records have a label, and the accuracies."""
    (counts, noise), n = answers[0], facts.n
    deviation = float(noise[0])

    def accuracy(cells: int) -> tuple[float | None, Interval, float | None]:
        """Of the records in the first cells."""
        sides = ((float(part.sum()), deviation * math.sqrt(len(part))) for part in np.split(counts, [cells]))
        (right, a), (wrong, b) = sides
        return fraction(right, wrong, a, b, n)

    top1, top5 = accuracy(1), accuracy(2) if len(counts) == 3 else (None, None, None)
    per_class = None
    if len(answers) == 2:
        # Counts and noise; right and wrong; classes.
        each = answers[1].reshape(2, 2, facts.m)
        per_class = tuple(_of_class(name, each[0, :, j], float(each[1, 0, j]), n) for j, name in enumerate(names))
    balanced = None
    if per_class is not None and facts.k == 1:
        measures = [None if of.top1 is None else Measure(of.top1, of.interval) for of in per_class]
        if (mean_of := mean(measures, independent=True)) is not None:
            deviation = math.hypot(*(of.noise or 0.0 for of in per_class)) / len(per_class)
            balanced = Measured(value=mean_of.value, interval=mean_of.interval, noise=deviation)
    found: dict[str, Any] = {"per_class": per_class, "balanced_accuracy": balanced}
    found |= zip(("top1", "interval", "noise"), top1, strict=True)
    return _count(counts, n), found | dict(zip(("top5", "top5_interval", "top5_noise"), top5, strict=True))


def _of_class(name: str, counts: np.ndarray, deviation: float, n: int) -> ReleasedClass:
    right, wrong = map(float, counts)
    top1, interval, noise = fraction(right, wrong, deviation, deviation, n)
    return ReleasedClass(name=name, n=_count(counts, n), top1=top1, interval=interval, noise=noise)


def _count(counts: np.ndarray, n: int) -> int:
    return round(min(max(float(counts.sum()), 0.0), n))
