"""The statement: what is claimed for a head, in sentences for the person who must defend it.

The statement is computed from the card, the description inside the file of a head.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

from dpfc_cli.errors import counted
from dpfc_cli.privacy.accounting import (
    LARGEST_EPSILON,
    Attack,
    Claim,
    attack,
    epsilon_for,
    gaussian_attack,
    zcdp_epsilon,
)
from dpfc_cli.privacy.persons import MOST
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.records.card import Card, Made, Said, Start
from dpfc_cli.records.claims import Claimed, Release, Seeded, delta_said, large_delta
from dpfc_cli.records.findings import NOT_INSTALLED
from dpfc_cli.rounding import at_most, cost, delta, epsilon, rounded_down, rounded_up
from dpfc_cli.show.document import Curve, Document, Points, Rows, Section, Table, Words
from dpfc_cli.structs import Json

_SEVERAL = {
    "record": ("several pictures of one person", "Whoever makes the set: say which are of one person (--group-by)."),
    "person": ("several persons", "Whoever approves: a family is not protected as one; who has two names is two."),
}
NOT_COVERED = (
    ("the test split", "Whoever evaluates: its figures are private only if they were released (evaluate --epsilon)."),
    ("other classifiers from the same people", "Whoever approves: add them up. Ask for the ledger's total."),
    (
        "what the backbone has seen",
        "Whoever chose it, the network that computes the features, or a scaler: if it was made from these pictures, or "
        "from others of the same people, this epsilon does not hold.",
    ),
    ("that the set could be made", "Whoever made it: all records but a share (usually 5 % at most) could be read."),
    ("running time, progress, memory", "Whoever operates the machine: let nobody else watch a training."),
    ("pictures, features and ledger", "Whoever keeps them: they are private. Hand out the head alone."),
)
"""What no guarantee covers, and who must act."""

_EXACT = "Gaussian differential privacy, exact composition of full passes"
_SAMPLED = "privacy loss distributions of Poisson-sampled Gaussian releases (dp_accounting), an upper bound"
FALSE_ALARMS = 0.05
GROUPS = (2, 5, 10)
"""The numbers of units for which the statement gives an ε: of records of one person, or of persons."""
RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""Rates of false alarms for a table."""
SEEDED = "A head with a seed has no guarantee: its epsilon is what the noise would be worth."
_STEPS = 100
_FAR = 4.0
"""Standard deviations from the middle at which a normal distribution has no visible mass."""


def brief(card: Card) -> Said:
    """The claim alone: (label, text) pairs."""
    if not card.private:
        return unprotected(card.claim, card.seeded)
    large = large_delta(card.guarantee.delta, card.facts.n, card.unit)
    return [
        ("this head", f"differentially private, {cost(card.guarantee.epsilon, card.guarantee.delta)}"),
        ("protects", _protected(card)),
        *([] if large is None else [("delta", large)]),
    ]


def unprotected(claim: Claim, seeded: Seeded | None = None) -> Said:
    """`brief`, of what has no guarantee."""
    if claim == "non-private":
        return [("this head", "no guarantee: no noise was added, contributions were not clipped (epsilon = ∞)")]
    of = "a seed" if seeded is None else f"seed {seeded.seed}, as for {cost(seeded.epsilon, seeded.delta)}"
    said = f"no guarantee: the noise came from {of}; who knows the seed can remove it (epsilon = ∞)"
    return [("this head", said)]


def claimed(spent: float | None, at: float | None, seeded: Seeded | None) -> tuple[str, str]:
    """δ and ε of a head as a table shows them: '1e-05' and '1', '–' and '∞', or '1e-05' and '1 (seed 7)' (`SEEDED`)."""
    if seeded is not None:
        return delta(seeded.delta), f"{epsilon(seeded.epsilon)} (seed {seeded.seed})"
    if spent is None or at is None:
        return "–", epsilon(math.inf)
    return delta(at), epsilon(spent)


def document(
    card: Card,
    sha256: str,
    groups: Sequence[int] = GROUPS,
    named: str = "",
    more: Sequence[tuple[str, str]] = (),
) -> Document:
    """The whole statement. What `train` shows of it is its short form.

    sha256: of the head's file, which cannot contain its own digest. groups: the numbers of units for which an ε is
    given. named: the head's file. more: facts that the card does not have.
    """
    values = {"head": named, "sha256": sha256, "epsilon": card.epsilon, "delta": card.delta, "card": card.values()}
    values |= {"means": meaning(card, groups), "not_covered": dict(uncovered(card)), "schema": "dpfc/statement/1"}
    means = _means(card, groups)
    # Where persons are protected, several of them are no matter of the first screen.
    last = means[1:] if card.unit == "person" else []
    parts = [row for part in card.known.values() for row in part.promised(card)]
    first = [*brief(card), *means[: len(means) - len(last)], *parts, *more]
    sections = [Section("", [Rows(first)]), *promised(card, last)]
    sections += [trained(card, sha256), *released(card), others(card)]
    return Document(title=f"Head {named}", sections=sections, values=values)


def promised(card: Card, more: Sequence[tuple[str, str]]) -> list[Section]:
    """What the guarantee is exactly. more: facts beside it."""
    if not card.private:
        return []
    accounting = f"{_EXACT}; for k {card.unit}s, mu is k times as large (Dong, Roth and Su 2022)"
    if card.sampled:
        accounting = f"{_SAMPLED}; the curve follows from epsilon and delta (Kairouz et al. 2015)"
    said = f"noise within {card.eta:.1e} of an exactly rounded Gaussian; delta includes this distance"
    words = (
        f"Who looks at the head and says of one {card.unit} that it was used is wrong now and then: a false alarm. "
        "The more false alarms someone accepts, the more of those that were used are found, but never more than this "
        "table says, whatever else that someone knows."
    )
    at = power(card, FALSE_ALARMS)
    drawn = Curve(
        curve(card),
        (FALSE_ALARMS, at, f"{100 * FALSE_ALARMS:g} % false alarms: at most {at_most(at)}"),
        ("false alarms, % of those that were not used", "found, % of those that were used"),
        "Found against false alarms",
        "The curve goes through the points of this table.",
    )
    rates = [(f"{100 * rate:g} %", at_most(power(card, rate)), f"{100 * rate:g} %") for rate in RATES]
    table = Table(("false alarms", "found, at most", "by chance"), rates, left=0)
    against = delta_said(card.guarantee.delta, card.facts.n, card.unit)
    variant = f"mu = {rounded_up(card.guarantee.mu, 4)} in Gaussian differential privacy, from which epsilon follows"
    rho, zcdp = card.guarantee.mu**2 / 2, zcdp_epsilon(card.guarantee.mu, card.guarantee.delta)
    variant += f"; the ideal noise has rho = {rounded_up(rho, 4)} in zCDP, whose conversion gives {epsilon(zcdp)}"
    variant = f"approximate differential privacy{'' if card.sampled else f'; {variant}'}"
    rows = [*more, ("variant", variant), ("delta", against), ("compared", _adjacency(card))]
    rows += [("accounting", accounting), ("sampler", said)]
    return [Section("What is promised", [Rows(rows), Words(words), drawn, table], full=True)]


def trained(card: Card, sha256: str) -> Section:
    """What was trained, and from which public facts."""
    facts, source = card.facts, card.method_source
    rows = method_rows(card.method, card.options)
    if source is not None:
        rows.append(("code of the method", f"{source.package}, not of dpfc; SHA-256 of its source {source.sha256}"))
    counts = f"{counted(facts.m, 'class')}, {counted(facts.k, 'label')} per record"
    rows.append(("public facts", f"{counts}: {facts.origin}"))
    if card.public_head is not None:
        rows.append(_started(card.public_head, facts.m))
    rows += [row for part in card.known.values() for row in part.trained(card)]
    rows += [(name, NOT_INSTALLED) for name in card.unknown]
    rows.append(("made", f"{card.date}, by dpfc {card.versions.dpfc}"))
    return Section("What was trained", [Rows([*rows, ("SHA-256 of this head", sha256)])], full=True)


def method_rows(method: str, options: Mapping[str, object]) -> Said:
    from dpfc_cli.methods import METHODS

    titled = f"{method} ({METHODS[method].title})" if method in METHODS else method
    said = ", ".join(f"{name.replace('_', ' ')} = {_value(value)}" for name, value in options.items())
    if {"feature_clip", "gradient_clip"} <= set(options) and not options.get("raw_features"):
        said += "; other lengths are in units of the feature clip"
    return [("method", titled), ("options", said)]


def released(of: Claimed) -> list[Section]:
    """The noisy sums that a head is made of."""
    if of.claim == "non-private":
        return []
    kinds: dict[tuple[str, float], list[Release]] = {}
    for release in of.plan:
        # A method may alternate between kinds.
        kinds.setdefault((release.kind, release.rate), []).append(release)
    rows = []
    for (kind, rate), alike in kinds.items():
        sigmas = " to ".join(dict.fromkeys(rounded_down(pick(r.sigma for r in alike)) for pick in (min, max)))
        times, share = sum(r.times for r in alike), sum(r.times * r.share for r in alike)
        shapes = " or ".join(dict.fromkeys(" × ".join(map(str, r.shape)) for r in alike))
        rows.append((kind, shapes, f"{times:,}", f"{share:.1%}", sigmas, *([f"{rate:g}"] * of.sampled)))
    columns = ["release", "numbers", "times", "of the budget", "sigma", *["sampling rate"] * of.sampled]
    words = Points(terms(of.plan, of.unit))
    return [Section("What was released", [Table(columns, rows, left=2), words], full=True)]


def others(card: Card) -> Section:
    """What the claim says nothing of."""
    rows = [Rows(uncovered(card)), Rows([("other heads", _others(card))])]
    return Section("What is not covered, and who must act", rows, full=True)


def uncovered(card: Card) -> Said:
    """What no guarantee covers, and who must act."""
    if not card.private:
        return [("anything", "Whoever has it: this head has no guarantee. Keep it as you keep the records.")]
    proved = [("not proved", f"{said}.") for part in card.known.values() for said in part.unproved]
    return [_SEVERAL[card.unit], *NOT_COVERED, *proved]


def meaning(of: Claimed, groups: Sequence[int] = GROUPS) -> dict[str, Json] | None:
    """What the guarantee says in other figures, JSON-able; None if there is no guarantee.

    `accuracy` and `power` are those of the best attack, as fractions; the power is at a rate of `false_alarms`.
    `groups` has the ε for several units (records of one person, or persons) at the same δ, or None if it exceeds
    `LARGEST_EPSILON`. If releases were sampled, there are no groups: only a bound for one unit is then known, and no μ
    that is k times as large for k units.
    """
    if not of.private:
        return None
    best, several = _attack(of, FALSE_ALARMS), None
    if not of.sampled:
        claimed = of.guarantee
        figures = {k: epsilon_for(k * claimed.mu, claimed.delta, claimed.eta) for k in groups}
        several = {str(k): spent if spent <= LARGEST_EPSILON else None for k, spent in figures.items()}
    return {"accuracy": best.accuracy, "power": best.power, "false_alarms": FALSE_ALARMS, "groups": several}


def _attack(of: Claimed, false_alarms: float) -> Attack:
    if of.sampled:
        return attack(of.guarantee.epsilon, of.guarantee.delta, false_alarms)
    return gaussian_attack(of.guarantee.mu, false_alarms, of.guarantee.eta)


def power(of: Claimed, false_alarms: float) -> float:
    """How often an attacker finds that one unit was used, at most, who says so wrongly only at a rate of false alarms
    in (0, 1). of: of a head whose claim is "private".
    """
    return _attack(of, false_alarms).power


def curve(of: Claimed) -> list[tuple[float, float]]:
    """The trade-off curve: points (false alarms, power) from (0, …) to (1, 1), close enough to be joined by lines.

    No attack is above it, whatever else the attacker knows. For full passes it is that of Gaussian differential
    privacy, and no other curve of the same releases can be below it. Of sampled releases the claim knows ε and δ alone,
    so the curve is the one that follows from these two. of: of a head whose claim is "private".
    """
    if of.sampled:
        # Three straight lines: they meet where the two bounds are equal, and where the second one reaches 1.
        epsilon, delta = of.guarantee.epsilon, of.guarantee.delta
        rates = [0.0, (1 - delta) / (1 + math.exp(epsilon)), 1 - delta, 1.0]
        return [(rate, attack(epsilon, delta, rate).power) for rate in rates]
    # Equal steps of the threshold of the best test, from where both rates are 0 to where both are 1.
    low, high = -_FAR - of.guarantee.mu, _FAR
    rates = [NormalDist().cdf(low + (high - low) * step / _STEPS) for step in range(_STEPS + 1)]
    return [(0.0, of.guarantee.eta), *((rate, power(of, rate)) for rate in rates if rate), (1.0, 1.0)]


def _protected(card: Card) -> str:
    n = card.facts.n
    # A card without the number of their records is shown, too, by whoever says that it contradicts itself.
    if card.unit != "person" or card.facts.records is None:
        return f"one {card.unit} of {n:,}, {card.adjacency} adjacency"
    records = f"all records of this person ({card.facts.records:,} in all)"
    return f"one person of {n:,}, with {records}, {card.adjacency} adjacency"


def _adjacency(card: Card) -> str:
    if card.unit == "person":
        own, it, public = "all records of the person", "they count", "the numbers of persons and of records are public"
    else:
        own, it, public = "the record", "it counts", "the number of records is public"
    if card.adjacency == "zero-out":
        with_null = f"training where {it} as null, which adds nothing"
        nist = "near NIST's unbounded (add/remove one), where the number is not public"
        return f"zero-out adjacency: the guarantee compares training with {own} and {with_null}; {public} ({nist})"
    others = "any other records in their place" if card.unit == "person" else "any other record in its place"
    compared = f"the guarantee compares training with {own} and training with {others}"
    return f"replace-one adjacency: {compared}; {public} (NIST's bounded (replace one))"


_KINDS = {query.kind: query.words for query in QUERIES}


def _means(card: Card, groups: Sequence[int]) -> Said:
    found = meaning(card, groups)
    if found is None:
        return []
    unit, person = card.unit, card.unit == "person"
    guessed, were = ("who was in the study", "who were") if person else ("which records were used", "that were")
    chance, found_at_most = f"{100 * FALSE_ALARMS:g} %", at_most(found["power"])
    means = (
        f"Suppose somebody uses the head to guess {guessed}, and accepts accusing {chance} of those {were} not. They "
        f"then identify at most {found_at_most} of those {were} ({chance} by blind guessing), whatever else they know."
    )
    if card.adjacency != "zero-out":
        guessed = "the records of which of two persons were used" if person else "which of two records was used"
        odds = f"is right at most {at_most(found['accuracy'])} of the time (50 % is chance)"
        means = f"Who sees the head and guesses {guessed} {odds}, whatever else is known."
    several = f"not stated: the accounting of sampled releases is for one {unit} and says little about several"
    if found["groups"] is not None:
        each = (f"{counted(int(k), unit)}: epsilon = {figure(spent)}" for k, spent in found["groups"].items())
        several = f"{'; '.join(each)}; at the same delta"
    return [
        ("this means", means),
        ("several persons" if person else "several of one person", several),
    ]


_ALONE = (
    "The guarantee is for this head alone. For the people in the records the total of all trainings counts. It also "
    "counts for this head, if it was chosen among others."
)


def _others(card: Card) -> str:
    """What its ledger said of other trainings, and what the claim of this one does not say of them."""
    ledger, private = card.ledger, card.private
    if ledger is None:
        return " ".join(filter(None, ("This head names no ledger.", card.elsewhere, _ALONE)))
    trainings, spending = ledger.count, ledger.private
    said = "When it was made, its ledger had no other training that may be of the same people."
    if trainings > 1:
        said = (
            f"When it was made, its ledger had {trainings:,} trainings and private evaluations that may be of the same "
            "people, this one included."
        )
    if private and spending > 1:
        total = "more than can be stated" if ledger.epsilon is None else f"epsilon = {epsilon(ledger.epsilon)}"
        bound = "exact" if ledger.exact else "an upper bound"
        least = "at least " if ledger.adopted else ""
        said += (
            f" Together the {spending:,} private ones spent {least}{total} at the same delta for one {ledger.unit}, "
            f"under zero-out adjacency ({bound}). This is a guarantee if they were planned in advance. If not, a cap "
            "that was fixed in advance is the guarantee."
        )
    if private and card.unit == "person" and ledger.unit == "record" and spending > 1:
        said += " Some of these protect records. So there is no total for one person."
    if ledger.adopted:
        said += " Of one of their sets nothing is known of what was spent before."
    if ledger.unprotected > (not private):
        said += f" {counted(ledger.unprotected, 'training')} had no guarantee (epsilon = ∞)."
    return f"{said} {_ALONE}" if private else said


def _started(known: Start, m: int) -> tuple[str, str]:
    by = "" if known.made is None else _made(known.made)
    said = f"class vectors for {known.classes:,} of {m:,} classes from {known.name} (SHA-256 {known.sha256})"
    said += f"{by}; the operator asserts that they are public"
    if known.trusted is not None:
        said += f"; trusted to {known.trusted:.0%} by what was released"
    if doubted := known.doubted:
        rest = f" and {len(doubted) - 5:,} more" if len(doubted) > 5 else ""
        said += f"; found wrong or of little use for {', '.join(doubted[:5])}{rest}"
    return "public start", said


def _made(made: Made) -> str:
    """How a file of class vectors says that it was made."""
    if made.source == "text":
        by = f"the names of the classes as the text tower of {made.model} sees them ({counted(made.count, 'prompt')})"
    else:
        by = f"of the classifier of {made.model} ({counted(made.count, 'row')})"
    return f", which says that they are {by}"


def _value(value: object) -> str:
    if value is None:
        return "until converged"
    if isinstance(value, list | tuple):
        return ",".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def figure(spent: float | None) -> str:
    return f"more than {LARGEST_EPSILON:g}" if spent is None or spent > LARGEST_EPSILON else epsilon(spent)


def terms(plan: Sequence[Release], unit: str) -> list[str]:
    """What the words mean that describe releases, the kinds of sums among them."""
    kinds = dict.fromkeys(release.kind for release in plan)
    sigma = (
        "release: one of these sums, with noise; budget: what all releases spend together (mu squared); sigma: the "
        f"standard deviation of the noise of a release, divided by the most that one {unit} can change its sum"
    )
    person = (
        "person: what all records of one person add to a sum is made shorter as a whole, until it is no longer than "
        "what one record may add (to the mean, a person adds the average); of more than "
        f"{MOST:,} records of one person the first {MOST:,} count"
    )
    return [*(f"{kind}: {_KINDS[kind]}" for kind in kinds), *([person] if unit == "person" else []), sigma]
