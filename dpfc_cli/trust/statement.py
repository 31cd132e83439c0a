"""The statement: what is claimed for a head, in sentences for the person who must defend it.

The statement is computed from the card, the description inside the file of a head.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from dpfc_cli.errors import counted
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, Attack, attack, epsilon_for, gaussian_attack, mu_for
from dpfc_cli.privacy.persons import MOST
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.rounding import at_most, cost, delta, epsilon, rounded_down
from dpfc_cli.show.document import Curve, Document, Points, Rows, Section, Table, Words
from dpfc_cli.trust.claims import COMPUTED, is_sampled, large_delta, masked_epsilon

_SEVERAL = {
    "record": "several pictures of one person together: the guarantee is for one record",
    "person": "several persons together, such as a family: the guarantee is for one person, and "
    "somebody with two names counts as two",
}
NOT_COVERED = (
    "the test split: an evaluation on it is private only if it was asked for with an epsilon",
    "other heads trained on the same records, and the choice of this head among them",
    "the data that the backbone was trained on (the backbone is the network that computes the features), and what else "
    "learned from the records before, such as a scaler: then this epsilon does not hold",
    "that the set could be made: all records could be read, or at most the allowed share (usually 5 %) could not",
    "running time, progress and memory use",
)

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


def brief(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The claim alone: (label, text) pairs. card: of a head, or a mapping with its `claim` if that is not "private"."""
    if card["claim"] == "research":
        seeded = card.get("seeded")
        of = "a seed" if seeded is None else f"seed {seeded['seed']}, as for {cost(seeded['epsilon'], seeded['delta'])}"
        said = f"no guarantee: the noise came from {of}; who knows the seed can remove it (epsilon = ∞)"
        return [("this head", said)]
    if card["claim"] != "private":
        return [("this head", "no guarantee: no noise was added, contributions were not clipped (epsilon = ∞)")]
    large = large_delta(card["delta"], card["facts"]["n"], card["unit"])
    return [
        ("this head", f"differentially private, {cost(card['epsilon'], card['delta'])}"),
        ("protects", _protected(card)),
        *([] if large is None else [("delta", large)]),
    ]


def claimed(card: Mapping[str, Any]) -> tuple[str, str]:
    """δ and ε as a table shows them: '1e-05' and '1', '–' and '∞', or '1e-05' and '1 (seed 7)' (`SEEDED`)."""
    seeded = card.get("seeded")
    if seeded is not None:
        return delta(seeded["delta"]), f"{epsilon(seeded['epsilon'])} (seed {seeded['seed']})"
    if card["epsilon"] is None:
        return "–", epsilon(math.inf)
    return delta(card["delta"]), epsilon(card["epsilon"])


def document(
    card: Mapping[str, Any],
    sha256: str,
    groups: Sequence[int] = GROUPS,
    named: str = "",
    more: Sequence[tuple[str, str]] = (),
) -> Document:
    """The whole statement. What `train` shows of it is its short form.

    sha256: of the head's file, which cannot contain its own digest. groups: the numbers of units for which an ε is
    given. named: the head's file. more: facts that the card does not have.
    """
    values = {"head": named, "sha256": sha256, "epsilon": card["epsilon"], "delta": card["delta"], "card": card}
    values["means"] = meaning(card, groups)
    means = _means(card, groups)
    # Where persons are protected, several of them are no matter of the first screen.
    last = means[1:] if card["unit"] == "person" else []
    first = [*brief(card), *means[: len(means) - len(last)], *_sites(card), *more]
    sections = [Section("", [Rows(first)]), *promised(card, last)]
    sections += [trained(card, sha256), *released(card["plan"], card), others(card)]
    return Document(title=f"Head {named}", sections=sections, values=values)


def promised(card: Mapping[str, Any], more: Sequence[tuple[str, str]]) -> list[Section]:
    """What the guarantee is exactly. more: facts beside it."""
    if card["claim"] != "private":
        return []
    accounting = f"{_EXACT}; for k {card['unit']}s, mu is k times as large (Dong, Roth and Su 2022)"
    if is_sampled(card["plan"]):
        accounting = f"{_SAMPLED}; the curve follows from epsilon and delta (Kairouz et al. 2015)"
    said = f"noise within {card['eta']:.1e} of an exactly rounded Gaussian; delta includes this distance"
    words = (
        f"Who looks at the head and says of one {card['unit']} that it was used is wrong now and then: a false alarm. "
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
    rows = [*more, ("compared", _adjacency(card)), ("accounting", accounting), ("sampler", said)]
    return [Section("What is promised", [Rows(rows), Words(words), drawn, table], full=True)]


def trained(card: Mapping[str, Any], sha256: str) -> Section:
    """What was trained, and from which public facts."""
    facts = card["facts"]
    rows = method_rows(card["method"], card["options"])
    if "method_source" in card:
        source = card["method_source"]
        said = f"{source['package']}, not of dpfc; SHA-256 of its source {source['sha256']}"
        rows.append(("code of the method", said))
    counts = f"{counted(facts['m'], 'class')}, {counted(facts['k'], 'label')} per record"
    rows.append(("public facts", f"{counts}: {facts['origin']}"))
    if "public_features" in card:
        known = card["public_features"]
        said = f"{known['name']}: the mean of {known['rows']:,} records"
        rows.append(("public features", f"{said}; the operator asserts that these records are public"))
    if "public_head" in card:
        rows.append(_started(card))
    if "tuning" in card:
        rows.append(("tuned on", _tuned(card["tuning"])))
    rows.append(("made", f"{card['date']}, by dpfc {card['versions']['dpfc']}"))
    return Section("What was trained", [Rows([*rows, ("SHA-256 of the file", sha256)])], full=True)


def method_rows(method: str, options: Mapping[str, Any]) -> list[tuple[str, str]]:
    from dpfc_cli.methods import METHODS

    titled = f"{method} ({METHODS[method].title})" if method in METHODS else method
    said = ", ".join(f"{name.replace('_', ' ')} = {_value(value)}" for name, value in options.items())
    if {"feature_clip", "gradient_clip"} <= set(options):
        said += "; other lengths are in units of the feature clip"
    return [("method", titled), ("options", said)]


def released(plan: Sequence[Mapping[str, Any]], claimed: Mapping[str, Any]) -> list[Section]:
    """The noisy sums that a head is made of. plan: as `Plan.described` gives it. claimed: `claim` and `unit`."""
    if claimed["claim"] == "non-private":
        return []
    kinds: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for release in plan:
        # A method may alternate between kinds.
        kinds.setdefault((release["kind"], release["rate"]), []).append(release)
    rows = []
    for (kind, rate), alike in kinds.items():
        sigmas = " to ".join(dict.fromkeys(rounded_down(pick(r["sigma"] for r in alike)) for pick in (min, max)))
        times, share = sum(r["times"] for r in alike), sum(r["times"] * r["share"] for r in alike)
        shapes = " or ".join(dict.fromkeys(" × ".join(map(str, r["shape"])) for r in alike))
        rows.append((kind, shapes, f"{times:,}", f"{share:.1%}", sigmas, *([f"{rate:g}"] * is_sampled(plan))))
    columns = ["release", "numbers", "times", "of the budget", "sigma", *["sampling rate"] * is_sampled(plan)]
    words = Points(terms(plan, claimed["unit"]))
    return [Section("What was released", [Table(columns, rows, left=2), words], full=True)]


def others(card: Mapping[str, Any]) -> Section:
    """What the claim says nothing of."""
    missing = ["anything: this head has no guarantee"]
    if card["claim"] == "private":
        missing = [NOT_COVERED[0], _SEVERAL[card["unit"]], *NOT_COVERED[1:], *[COMPUTED] * ("federation" in card)]
    rows = [("other heads", _others(card)), ("not covered", "; ".join(missing))]
    return Section("What is not covered", [Rows(rows)], full=True)


def meaning(card: Mapping[str, Any], groups: Sequence[int] = GROUPS) -> dict[str, Any] | None:
    """What the guarantee says in other figures, JSON-able; None if there is no guarantee.

    `accuracy` and `power` are those of the best attack, as fractions; the power is at a rate of `false_alarms`.
    `groups` has the ε for several units (records of one person, or persons) at the same δ, or None if it exceeds
    `LARGEST_EPSILON`. If releases were sampled, there are no groups: only a bound for one unit is then known, and no μ
    that is k times as large for k units.
    """
    if card["claim"] != "private":
        return None
    best, several = _attack(card, FALSE_ALARMS), None
    if not is_sampled(card["plan"]):
        of = {k: epsilon_for(k * card["mu"], card["delta"], card["eta"]) for k in groups}
        several = {str(k): spent if spent <= LARGEST_EPSILON else None for k, spent in of.items()}
    return {"accuracy": best.accuracy, "power": best.power, "false_alarms": FALSE_ALARMS, "groups": several}


def _attack(card: Mapping[str, Any], false_alarms: float) -> Attack:
    if is_sampled(card["plan"]):
        return attack(card["epsilon"], card["delta"], false_alarms)
    return gaussian_attack(card["mu"], false_alarms, card["eta"])


def power(card: Mapping[str, Any], false_alarms: float) -> float:
    """How often an attacker finds that one unit was used, at most, who says so wrongly only at a rate of false alarms
    in (0, 1). card: of a head whose claim is "private".
    """
    return _attack(card, false_alarms).power


def curve(card: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The trade-off curve: points (false alarms, power) from (0, …) to (1, 1), close enough to be joined by lines.

    No attack is above it, whatever else the attacker knows. For full passes it is that of Gaussian differential
    privacy, and no other curve of the same releases can be below it. Of sampled releases the claim knows ε and δ alone,
    so the curve is the one that follows from these two. card: of a head whose claim is "private".
    """
    if is_sampled(card["plan"]):
        # Three straight lines: they meet where the two bounds are equal, and where the second one reaches 1.
        epsilon, delta = card["epsilon"], card["delta"]
        rates = [0.0, (1 - delta) / (1 + math.exp(epsilon)), 1 - delta, 1.0]
        return [(rate, attack(epsilon, delta, rate).power) for rate in rates]
    # Equal steps of the threshold of the best test, from where both rates are 0 to where both are 1.
    low, high = -_FAR - card["mu"], _FAR
    rates = [NormalDist().cdf(low + (high - low) * step / _STEPS) for step in range(_STEPS + 1)]
    return [(0.0, card["eta"]), *((rate, power(card, rate)) for rate in rates if rate), (1.0, 1.0)]


def _protected(card: Mapping[str, Any]) -> str:
    n = card["facts"]["n"]
    # A card without the number of their records is shown, too, by whoever says that it contradicts itself.
    if card["unit"] != "person" or "records" not in card["facts"]:
        return f"one {card['unit']} of {n:,}, {card['adjacency']} adjacency"
    records = f"all records of this person ({card['facts']['records']:,} in all)"
    return f"one person of {n:,}, with {records}, {card['adjacency']} adjacency"


def _adjacency(card: Mapping[str, Any]) -> str:
    if card["unit"] == "person":
        own, it, public = "all records of the person", "they count", "the numbers of persons and of records are public"
    else:
        own, it, public = "the record", "it counts", "the number of records is public"
    if card["adjacency"] == "zero-out":
        with_null = f"training where {it} as null, which adds nothing"
        return f"zero-out adjacency: the guarantee compares training with {own} and {with_null}; {public}"
    others = "any other records in their place" if card["unit"] == "person" else "any other record in its place"
    return f"replace-one adjacency: the guarantee compares training with {own} and training with {others}; {public}"


_KINDS = {query.kind: query.words for query in QUERIES}


def _means(card: Mapping[str, Any], groups: Sequence[int]) -> list[tuple[str, str]]:
    found = meaning(card, groups)
    if found is None:
        return []
    unit, person = card["unit"], card["unit"] == "person"
    guessed = "whether the records of a person were used" if person else "whether a record was used"
    if card["adjacency"] != "zero-out":
        guessed = "the records of which of two persons were used" if person else "which of two records was used"
    several = f"not stated: the accounting of sampled releases is for one {unit} and says little about several"
    if found["groups"] is not None:
        each = (f"{counted(int(k), unit)}: epsilon = {_figure(spent)}" for k, spent in found["groups"].items())
        several = f"{'; '.join(each)}; at the same delta"
    odds = f"is right at most {at_most(found['accuracy'])} of the time (50 % is chance)"
    return [
        ("this means", f"Who sees the head and guesses {guessed} {odds}, whatever else is known."),
        ("several persons" if person else "several of one person", several),
    ]


def _sites(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whose head it is, if several sites trained it, and what is promised then."""
    if "federation" not in card:
        return []
    known = card["federation"]
    said = ", ".join(f"{each['name']} ({each['n']:,}, epsilon = {each['epsilon']:g})" for each in known["sites"])
    whose = f"the records of {known['site']}" if "site" in known else "each site, with the largest epsilon"
    return [
        ("trained by", f"{counted(len(known['sites']), 'site')}: {said}; this says what is promised for {whose}"),
        *trusted(card),
    ]


def trusted(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which claim holds if nobody is trusted, and which one if some are; and which plan. card: of a head of several
    sites. Who has records at j of them is in the answers of each. These have independent noise, so μ² adds up, as far
    as all j add it: no claim of a site is about what another one tells.
    """
    known, delta, eta = card["federation"], card["delta"], card["eta"]
    count = len(known["sites"])
    squares = sorted((mu_for(each["epsilon"], delta, eta) ** 2 for each in known["sites"]), reverse=True)
    several = "; ".join(
        f"{j} sites: epsilon = {_figure(epsilon_for(math.sqrt(sum(squares[:j])), delta, eta))}"
        for j in range(2, min(count, 3) + 1)
    )
    digest = f"SHA-256 {' '.join(textwrap.wrap(known['plan'], 8))} (compare it with all operators, outside the network)"
    alone = [
        ("trust nobody", "the epsilon of each site holds for its records: it adds the whole noise of its own claim"),
        (
            f"a {card['unit']} of",
            f"{several}; at most, at the same delta, if each of these sites adds its noise. One that does not can tell "
            f"all that it has of the {card['unit']}",
        ),
        ("plan", digest),
    ]
    if known["colluding"] == count - 1:
        return alone
    spent = [_figure(masked_epsilon(card, j)) for j in (1, 2, 3)]
    return [
        *alone,
        (
            "trust some",
            f"with masks, epsilon = {spent[0]} while at most {known['colluding']} of the {count - 1} other sites tell "
            "what they know, lie or add no noise, whatever the coordinator does, and X25519 and ChaCha20 are not "
            f"broken; for a {card['unit']} of several sites, if none of these is one of those that tell, lie or add no "
            f"noise: 2 sites: epsilon = {spent[1]}; 3 sites: epsilon = {spent[2]}",
        ),
    ]


_ALONE = (
    "The guarantee is for this head alone. For the people in the records the total of all trainings counts. It also "
    "counts for this head, if it was chosen among others."
)


def _others(card: Mapping[str, Any]) -> str:
    """What its ledger said of other trainings, and what the claim of this one does not say of them."""
    if "ledger" not in card:
        return (
            "This head is in no ledger. Each site has it as a head of its own, which says what else was spent on the "
            f"records there. {_ALONE}"
        )
    ledger, private = card["ledger"], card["claim"] == "private"
    trainings, spending = ledger["private"] + ledger["unprotected"], ledger["private"]
    said = "When it was made, its ledger had no other training that may be of the same people."
    if trainings > 1:
        said = (
            f"When it was made, its ledger had {trainings:,} trainings and private evaluations that may be of the same "
            "people, this one included."
        )
    if private and spending > 1:
        total = "more than can be stated" if ledger["epsilon"] is None else f"epsilon = {epsilon(ledger['epsilon'])}"
        bound = "exact" if ledger["exact"] else "an upper bound"
        least = "at least " if ledger.get("adopted") else ""
        said += (
            f" Together the {spending:,} private ones spent {least}{total} at the same delta for one {ledger['unit']}, "
            f"under zero-out adjacency ({bound}). This is a guarantee if they were planned in advance. If not, a cap "
            "that was fixed in advance is the guarantee."
        )
    if private and card["unit"] == "person" and ledger["unit"] == "record" and spending > 1:
        said += " Some of these protect records. So there is no total for one person."
    if ledger.get("adopted"):
        said += " Of one of their sets nothing is known of what was spent before."
    if ledger["unprotected"] > (not private):
        said += f" {counted(ledger['unprotected'], 'training')} had no guarantee (epsilon = ∞)."
    return f"{said} {_ALONE}" if private else said


def _started(card: Mapping[str, Any]) -> tuple[str, str]:
    known, trusted = card["public_head"], card["public_head"].get("trusted")
    by = _made(known["made"]) if "made" in known else ""
    said = f"class vectors for {known['classes']:,} of {card['facts']['m']:,} classes from {known['name']} "
    said += f"(SHA-256 {known['sha256']}){by}; the operator asserts that they are public"
    if trusted is not None:
        said += f"; trusted to {trusted:.0%} by what was released"
    doubted = known.get("doubted", [])
    if doubted:
        rest = f" and {len(doubted) - 5:,} more" if len(doubted) > 5 else ""
        said += f"; found wrong or of little use for {', '.join(doubted[:5])}{rest}"
    return "public start", said


def _made(made: Mapping[str, Any]) -> str:
    """How a file of class vectors says that it was made."""
    model, count = made["model"], made["count"]
    if made["source"] == "text":
        by = f"the names of the classes as the text tower of {model} sees them ({counted(count, 'prompt')})"
    else:
        by = f"of the classifier of {model} ({counted(count, 'row')})"
    return f", which says that they are {by}"


def _value(value: object) -> str:
    if value is None:
        return "until converged"
    if isinstance(value, list | tuple):
        return ",".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figure(spent: float | None) -> str:
    return f"more than {LARGEST_EPSILON:g}" if spent is None or spent > LARGEST_EPSILON else epsilon(spent)


def terms(plan: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """What the words mean that describe releases, the kinds of sums among them."""
    kinds = dict.fromkeys(release["kind"] for release in plan)
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


def _tuned(tuning: dict[str, Any]) -> str:
    facts, chosen = tuning["facts"], tuning["chosen"]
    found = ", ".join(f"{name} = {factor:g} × default" for name, factor in chosen.items()) or "the defaults"
    return (
        f"{tuning['name']}: {len(tuning['tried'])} settings on {facts['n']:,} of its records of {facts['m']} classes; "
        f"the operator asserts that they are public; chosen: {found}"
    )
