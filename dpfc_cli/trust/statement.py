"""The statement: what is claimed for a head, in sentences for the person who must defend it.

The statement is computed from the card, the description inside the file of a head.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dpfc_cli.errors import counted
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import (
    LARGEST_EPSILON,
    attack,
    epsilon_for,
    gaussian_attack,
    zcdp_epsilon,
)
from dpfc_cli.privacy.persons import MOST
from dpfc_cli.privacy.queries import QUERIES
from dpfc_cli.rounding import at_most, rounded_down, rounded_up
from dpfc_cli.rounding import delta as shown_delta

_SEVERAL = {
    "record": "several pictures of one person together: the guarantee is for one record",
    "person": "several persons together, such as a family: the guarantee is for one person",
}
NOT_COVERED = (
    "the test split: an evaluation on it is private only if it was asked for with an epsilon",
    "other heads trained on the same records, and the choice of this head among them",
    "the data that the backbone was trained on (the backbone is the network that computes the features)",
    "running time, progress and memory use",
)

EXACT = "Gaussian differential privacy, exact composition of full passes"
SAMPLED = "privacy loss distributions of Poisson-sampled Gaussian releases (dp_accounting), an upper bound"
FALSE_ALARMS = 0.05
GROUPS = (2, 5, 10)
"""The numbers of units for which the statement gives an ε: of records of one person, or of persons."""


def hold_out_of(manifest: Manifest) -> float:
    """The fraction of the training pictures that became the test split. 0 if the data set has its own test split."""
    return float(manifest.source["identity"].get("hold_out") or 0)


def brief(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The claim alone.

    Args:
        card: the card of a head, or a mapping with its `claim` if that is not "private".

    Returns:
        (label, text) pairs.

    """
    if card["claim"] == "research":
        return [
            ("this head", "no guarantee: the noise came from a seed; who knows the seed can remove it (epsilon = ∞)")
        ]
    if card["claim"] != "private":
        return [("this head", "no guarantee: no noise was added, contributions were not clipped (epsilon = ∞)")]
    return [
        ("this head", f"differentially private, {claimed(card['epsilon'], card['delta'])}"),
        ("protects", f"{_protected(card)}; {_adjacency(card)}"),
    ]


def rows(card: Mapping[str, Any], sha256: str, groups: Sequence[int] = GROUPS) -> list[tuple[str, str]]:
    """The whole statement.

    Args:
        card: the card of a head.
        sha256: the digest of the head's file. A file cannot contain its own digest.
        groups: the numbers of units for which an ε is given.

    Returns:
        (label, text) pairs.

    """
    facts, private = card["facts"], card["claim"] == "private"
    lines = [("method", _titled(card["method"])), ("options", _options(card["options"]))]
    lines += [*brief(card), *(_means(card, groups) if private else [])]
    lines += [("made", f"{card.get('date', 'at an unknown time')}, by dpfc {card['versions']['dpfc']}")]
    lines += [("SHA-256 of the file", sha256)]
    if private:
        lines += [
            ("accounting", card["accounting"]),
            *_compared(card),
            ("releases", _all_said(card["plan"], card["unit"])),
            ("terms", "; ".join(terms(card["plan"], card["unit"]))),
            ("sampler", f"noise within {card['eta']:.1e} of an exactly rounded Gaussian; delta includes this distance"),
        ]
    counts = f"{counted(facts['m'], 'class')}, {counted(facts['k'], 'label')} per record"
    lines.append(("public facts", f"{counts}: {_origin(facts['origin'], private)}"))
    if "public_features" in card:
        known = card["public_features"]
        said = (
            f"{known['name']}: the mean of {known['rows']:,} records; the operator asserts that these records are "
            "public"
        )
        lines.append(("public features", said))
    if "public_head" in card:
        lines.append(_started(card))
    if "tuning" in card:
        lines.append(("tuned on", _tuned(card["tuning"])))
    return [*lines, ("other heads", _others(card)), ("not covered", "; ".join(not_covered(card)))]


def not_covered(card: Mapping[str, Any]) -> list[str]:
    """What the guarantee of a head with this card does not cover."""
    if card["claim"] != "private":
        return ["anything: this head has no guarantee"]
    first, *rest = NOT_COVERED
    return [first, _SEVERAL[card["unit"]], *rest]


def planned_rows(
    method: str, options: Mapping[str, Any], releases: list[dict[str, Any]], claim: str, unit: str
) -> list[tuple[str, str]]:
    """What a training will do, before it runs.

    Args:
        method: the name of the method.
        options: the options in force.
        releases: the plan as `Plan.described` gives it.
        claim: "private", "research" or "non-private".
        unit: "record" or "person".

    Returns:
        (label, text) pairs.

    """
    lines = [("method", _titled(method)), ("options", _options(options))]
    if claim != "private":
        return [*lines, *brief({"claim": claim})]
    return [*lines, ("releases", _all_said(releases, unit)), ("terms", "; ".join(terms(releases, unit)))]


def meaning(card: Mapping[str, Any], groups: Sequence[int] = GROUPS) -> dict[str, Any] | None:
    """What the guarantee says in other figures.

    Args:
        card: the card of a head.
        groups: the numbers of units for which an ε is given.

    Returns:
        A JSON-able dictionary, or None if there is no guarantee. `accuracy` and `power` are those of the best attack,
        as fractions; the power is at a rate of `false_alarms`. `groups` has the ε for several units (records of one
        person, or persons) at the same δ, or None if it exceeds `LARGEST_EPSILON`. If releases were sampled, there are
        no groups: only a bound for one unit is then known, and no μ that is k times as large for k units.

    """
    if card["claim"] != "private":
        return None
    if card["accounting"] == EXACT:
        best = gaussian_attack(card["mu"], FALSE_ALARMS, card["eta"])
        of = {k: epsilon_for(k * card["mu"], card["delta"], card["eta"]) for k in groups}
        several = {str(k): epsilon if epsilon <= LARGEST_EPSILON else None for k, epsilon in of.items()}
    else:
        best, several = attack(card["epsilon"], card["delta"], FALSE_ALARMS), None
    return {"accuracy": best.accuracy, "power": best.power, "false_alarms": FALSE_ALARMS, "groups": several}


def _protected(card: Mapping[str, Any]) -> str:
    n = card["facts"]["n"]
    if card["unit"] != "person":
        return f"one {card['unit']} of {n:,}"
    return f"one person of {n:,}, with all records of this person ({card['facts']['records']:,} records in all)"


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
    assert found is not None
    unit = card["unit"]
    person = unit == "person"
    used = "a person whose records were" if person else "a record that was"
    unused = "a person whose records were not" if person else "a record that was not"
    guessed = "whether the records of a person were used" if person else "whether a record was used"
    if card["adjacency"] != "zero-out":
        guessed = "the records of which of two persons were used" if person else "which of two records was used"
    source = "" if card["accounting"] == EXACT else " (this follows from epsilon and delta: Kairouz et al. 2015)"
    several = f"not stated: the accounting of sampled releases is for one {unit} and says little about several"
    if found["groups"] is not None:
        each = (f"{counted(int(k), unit)}: epsilon = {_figure(epsilon)}" for k, epsilon in found["groups"].items())
        several = (
            f"{'; '.join(each)}; at the same delta (for k {unit}s mu, the parameter of Gaussian differential privacy, "
            "is k times as large: Dong, Roth and Su 2022)"
        )
    return [
        (
            "this means",
            f"Someone sees the head and guesses {guessed}. If both cases are equally likely, the "
            f"guess is right at most {at_most(found['accuracy'])} of the time (50 % is chance). A false alarm is to "
            f"report {unused} used. With {found['false_alarms'] * 100:g} % false alarms, {used} used is reported at "
            f"most {at_most(found['power'])} of the time. This holds whatever else that someone knows{source}.",
        ),
        ("several persons" if unit == "person" else "several of one person", several),
    ]


def _others(card: Mapping[str, Any]) -> str:
    """What its ledger said of other trainings, and what the claim of this one does not say of them."""
    ledger, private = card["ledger"], card["claim"] == "private"
    trainings, spending = ledger["trainings"], ledger["private"]
    said = "When it was made, its ledger had no other training that may be of the same people."
    if trainings > 1:
        said = (
            f"When it was made, its ledger had {trainings:,} trainings and private evaluations that may be of the same "
            "people, this one included."
        )
    if private and spending > 1:
        total = (
            "more than can be stated" if ledger["epsilon"] is None else f"epsilon = {rounded_up(ledger['epsilon'], 6)}"
        )
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
    limits = (
        "The guarantee is for this head alone. For the people in the records the total of all trainings counts. It "
        "also counts for this head, if it was chosen among others."
    )
    return f"{said} {limits}" if private else said


def _started(card: Mapping[str, Any]) -> tuple[str, str]:
    known, m = card["public_head"], card["facts"]["m"]
    label, trusted = "public start", known.get("trusted")
    by = _made(known["made"]) if "made" in known else ""
    said = f"class vectors for {known['classes']:,} of {m:,} classes from {known['name']} (SHA-256 {known['sha256']})"
    said += f"{by}; "
    if "releases" in known:
        label = "started from"
        asserted = ", ".join(known.get("asserted", []))
        made = f", made with {asserted}, which the operator asserts to be public" if asserted else ""
        cap = ", or if both stay below a cap that was fixed before" if card["accounting"] == EXACT else ""
        said += (
            f"this is a private head of the same records{made}; the guarantee and the "
            "releases are those of both trainings; the guarantee holds if the noise of this training was fixed before "
            f"that head was looked at{cap}"
        )
    else:
        said += "the operator asserts that they are public"
    if trusted is None:
        return label, said
    said += f"; trusted to {trusted:.0%} by what was released"
    doubted = known.get("doubted", [])
    if doubted:
        rest = f" and {len(doubted) - 5:,} more" if len(doubted) > 5 else ""
        said += f"; found wrong or of little use for {', '.join(doubted[:5])}{rest}"
    return label, said


def _made(made: Mapping[str, Any]) -> str:
    """How a file of class vectors says that it was made."""
    model, count = made["model"], made["count"]
    if made["source"] == "text":
        by = f"the names of the classes as the text tower of {model} sees them ({counted(count, 'prompt')})"
    else:
        by = f"of the classifier of {model} ({counted(count, 'row')})"
    return f", which says that they are {by}"


def _titled(method: str) -> str:
    return f"{method} ({METHODS[method].title})" if method in METHODS else method


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} = {_value(value)}" for name, value in options.items())


def _value(value: object) -> str:
    if value is None:
        return "until converged"
    if isinstance(value, list | tuple):
        return ",".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figure(epsilon: float | None) -> str:
    return f"more than {LARGEST_EPSILON:g}" if epsilon is None else rounded_up(epsilon, 3)


def claimed(epsilon: float, delta: float) -> str:
    """ε and δ as a statement says them."""
    return f"epsilon = {rounded_up(epsilon, 6)}, delta = {shown_delta(delta)}"


def _origin(origin: str, private: bool) -> str:
    if origin != "inferred":
        return origin
    unless = "; the guarantee does not cover them unless the operator asserts the classes and the labels per record"
    return f"inferred from the private records{unless if private else ''}"


def terms(plan: list[dict[str, Any]], unit: str) -> list[str]:
    """What the words mean that describe releases, the kinds of sums among them. unit: as for `not_covered`."""
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


def _compared(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    if card["accounting"] != EXACT:
        return []
    return [
        (
            "for comparison",
            "the conversion of Mehta et al. 2022, an upper bound, gives epsilon = "
            f"{rounded_up(zcdp_epsilon(card['mu'], card['delta']), 4)}",
        )
    ]


def by_kind(plan: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Releases of one kind together, in the order of the first of each kind. A method may alternate between kinds."""
    kinds: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for release in plan:
        kinds.setdefault((release["kind"], release["rate"]), []).append(release)
    return list(kinds.values())


def _all_said(plan: list[dict[str, Any]], unit: str) -> str:
    return "; ".join(_said(alike, unit) for alike in by_kind(plan))


def _said(alike: list[dict[str, Any]], unit: str) -> str:
    times, share = sum(r["times"] for r in alike), sum(r["times"] * r["share"] for r in alike)
    many = f"{times} × " if times > 1 else ""
    sigmas = " to ".join(dict.fromkeys(rounded_down(pick(r["sigma"] for r in alike)) for pick in (min, max)))
    rate = alike[0]["rate"]
    sampled = f", each {unit} with probability {rate:g}" if rate < 1 else ""
    return f"{many}{alike[0]['kind']} ({share:.1%} of the budget, sigma {sigmas}{sampled})"


def _tuned(tuning: dict[str, Any]) -> str:
    facts, chosen = tuning["facts"], tuning["chosen"]
    found = ", ".join(f"{name} = {factor:g} × default" for name, factor in chosen.items()) or "the defaults"
    return (
        f"{tuning['name']}: {len(tuning['tried'])} settings on {facts['n']:,} of its records of {facts['m']} classes; "
        f"the operator asserts that they are public; chosen: {found}"
    )
