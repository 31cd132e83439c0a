"""Whether a card is one that a training writes: the types and ranges of its values, and that its figures agree.

A head may come from somebody else. `findings` is the list of checks. `Head.load` refuses a head that fails one, so
nothing is said of it. `dpfc verify` shows all of them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dpfc_cli import rounding
from dpfc_cli.errors import UserError, counted, damaged, quoted
from dpfc_cli.geometry import Filter
from dpfc_cli.privacy.accounting import LARGEST_EPSILON, LEAST_DELTA, LEAST_EPSILON
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.schema import (
    Check,
    among,
    anything,
    boolean,
    closed,
    each,
    either,
    fault,
    mapping,
    null,
    number,
    scalar,
    text,
    whole,
)
from dpfc_cli.sources.classes import Origin
from dpfc_cli.sources.groups import By
from dpfc_cli.trust.claims import COMPUTED, EPSILON, TIME, claim_fault, figures_fault, is_sampled, mu_of, same_epsilon
from dpfc_cli.version import __version__

_UNIT = among(["record", "person"])
SIDE = whole(1, 8192)
"""Pixels. A larger picture would take more memory than a head may ask for."""
_PREPARATION = closed(
    {},
    resize=either(SIDE, each(SIDE, least=2)),
    crop=SIDE,
    filter=among(get_args(Filter)),
    window=each(number(-1e308, 1e308), least=2),
    exif=boolean,
)
_CARD: dict[str, Check] = {
    "method": text,
    "options": mapping(either(scalar, each(scalar))),
    "unit": _UNIT,
    "facts": closed(
        {**dict.fromkeys(("n", "m", "d", "k"), whole(1)), "origin": among(get_args(Origin))}, records=whole(1)
    ),
    "classes": each(text, least=1),
    "features": closed(
        {
            **{"name": text, "split": text, "fingerprint": text, "backbone": mapping(anything)},
            **{"hold_out": number(0, 1), "preparation": either(null, _PREPARATION), "dtype": text},
        },
        grouped_by=closed({"by": among(get_args(By))}, level=whole(1), column=text),
    ),
    "versions": closed({"dpfc": text}),
    "date": TIME,
    # `claim_fault` looks at these.
    **dict.fromkeys(("claim", "epsilon", "delta", "mu", "eta", "adjacency", "plan"), anything),
}
_START: dict[str, Check] = {"name": text, "sha256": text, "classes": whole(2), "without": each(text)}
_MADE = closed({"source": among(["text", "classifier"]), "model": text, "count": whole(1)})
START = closed(_START, made=_MADE)
"""Public class vectors, as it is known of them before a training."""
_SOMETIMES: dict[str, Check] = {
    "public_features": closed({"name": text, "rows": whole(1), "fingerprint": text, "backbone": mapping(anything)}),
    "public_head": closed(
        _START,
        made=_MADE,
        trusted=number(0, 1),
        doubted=each(text),
    ),
    "method_source": closed({"package": text, "sha256": text}),
    "seeded": closed(
        {"seed": whole(0), "epsilon": number(LEAST_EPSILON, LARGEST_EPSILON), "delta": number(LEAST_DELTA, 1)}
    ),
    "tuning": closed(
        {
            **{"name": text, "fingerprint": text, "facts": closed({"n": whole(1), "m": whole(1)}), "runs": whole(1)},
            **{"tried": each(anything), "finalists": each(anything), "chosen": mapping(number(0, 1e308))},
        }
    ),
    "converged": boolean,
    # No ledger has the head of a coordinator: each site has it as a head of its own.
    "ledger": closed(
        {
            **{"charge": text, "private": whole(0), "unprotected": whole(0)},
            **{"epsilon": either(null, number(LEAST_EPSILON, 1e308)), "exact": boolean, "unit": _UNIT},
        },
        adopted=boolean,
    ),
    "federation": closed(
        {
            **{"plan": text, "colluding": whole(1)},
            "sites": each(closed({"name": text, "n": whole(1), "epsilon": EPSILON}, records=whole(1)), least=2),
        },
        site=text,
    ),
}
_WHOLE = closed(_CARD, **_SOMETIMES)


def check_form(card: Any) -> None:
    """Check the types and ranges of the values of a card's JSON. ValueError: a value is missing or makes no sense."""
    wrong = fault(card, _WHOLE) or claim_fault(card)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' in its card is missing, unknown or makes no sense")


def check(card: Any) -> None:
    """Check that `Head.load` will take a head with this card. ValueError: it will not."""
    check_form(card)
    wrong = contradictions(findings(card))
    if wrong:
        raise ValueError(f"the card contradicts itself: {'. '.join(wrong)}")


Result = Literal["ok", "contradicts", "unknown"]
NOISE = "that the noise was really drawn"
BELONGS = "that the card belongs to these weights: only a ledger with the digest of the file shows it"
CHARGED = "that its training was charged to a ledger, and how many others that ledger had"
OWNER = "that this ledger is the newest, whole and unchanged"
TEXT = (
    "that what nobody can compute is true: the unit and the adjacency, facts such as numbers of records, classes, "
    "features, options that shape no release, starts, tuning, sites, date and versions"
)


def unproved(card: Mapping[str, Any], *, named: bool = False, charged: bool = False) -> list[str]:
    """What the file of a head cannot prove. named: whether a ledger names the digest of the file. charged: whether it
    has the charge.
    """
    begin = [*[NOISE] * (card["claim"] == "private"), *[COMPUTED] * ("federation" in card)]
    return [*begin, *([] if named else [BELONGS, TEXT]), OWNER if charged else CHARGED]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check: what was checked, its result, and why. "unknown": it cannot be known."""

    what: str
    result: Result
    why: str

    @property
    def shown(self) -> str:
        return {"ok": "ok", "contradicts": "CONTRADICTS", "unknown": "cannot be known"}[self.result]


def contradictions(findings: Iterable[Finding]) -> list[str]:
    return [f"{found.what}: {found.why}" for found in findings if found.result == "contradicts"]


def refused(path: Path, wrong: list[str], remedy: str | None = None) -> UserError:
    """The error for a head that contradicts itself, or its ledger."""
    return damaged(
        f"{quoted(path)} is not what it says ({counted(len(wrong), 'contradiction')}). {'. '.join(wrong)}.",
        remedy or "Do not rely on it: ask for the head again. 'dpfc verify' shows all checks.",
        contradictions=wrong,
    )


def findings(card: Mapping[str, Any], chain: Chain | None = None) -> list[Finding]:
    """The checks of a card in which `check_form` finds no fault. chain: the head's preprocessing; None: not checked."""
    facts = card["facts"]
    counts = f"{counted(facts['m'], 'class')}, {counted(facts['n'], card['unit'])}"
    found = [_found("counts", _counts_fault(card), counts), _releases(card, chain)]
    if contradictions(found) and is_sampled(card["plan"]):
        # To compute it could take for ever.
        found.append(Finding(what="epsilon", result="unknown", why="it is not computed of releases that contradict"))
    else:
        cost = f"nothing is claimed: the head is {card['claim']}"
        if card["claim"] == "private":
            cost = f"computed again, the releases cost {rounding.cost(card['epsilon'], card['delta'])}"
        found.append(_found("epsilon", figures_fault(card), cost))
    if "ledger" in card and (wrong := _others_fault(card)) is not None:
        # Where nothing contradicts, only the ledger shows it.
        found.append(Finding(what="other trainings", result="contradicts", why=wrong))
    return found


def _found(what: str, wrong: str | None, right: str) -> Finding:
    return Finding(what=what, result="ok" if wrong is None else "contradicts", why=right if wrong is None else wrong)


def _counts_fault(card: Mapping[str, Any]) -> str | None:
    classes, facts, start = card["classes"], card["facts"], card.get("public_head")
    if "federation" in card and (wrong := _federation_fault(card)) is not None:
        return wrong
    if ("ledger" in card) == ("site" not in card.get("federation", {"site": ""})):
        return "it names a charge exactly if it is not the head of a coordinator"
    if not facts["m"] == len(classes) == len(set(classes)):
        return f"it names {len(set(classes)):,} classes, and its facts say {facts['m']:,}"
    if (card["unit"] == "person") != ("records" in facts) or facts.get("records", facts["n"]) < facts["n"]:
        return f"its facts do not fit the unit, a {card['unit']}"
    if start is None:
        return None
    named = [*start["without"], *start.get("doubted", [])]
    if start["classes"] + len(start["without"]) != len(classes) or len(set(named)) != len(named):
        return "the counts of the classes of its start are not those of the card"
    return None if set(classes).issuperset(named) else "its start names other classes than the card"


def _federation_fault(card: Mapping[str, Any]) -> str | None:
    """What contradicts between a card and its list of sites: those whose records it is about. None if nothing does."""
    known, facts = card["federation"], card["facts"]
    if card["claim"] != "private" or len({each["name"] for each in known["sites"]}) < len(known["sites"]):
        return "its sites have one name, or nothing is claimed"
    others, several = len(known["sites"]) - 1, len({each["epsilon"] for each in known["sites"]}) > 1
    if known["colluding"] > others or (known["colluding"] < others and several):
        return "more sites may collude than there are others, or masks are for several epsilon"
    own = [each for each in known["sites"] if known.get("site", each["name"]) == each["name"]]
    if not own or facts["n"] != sum(each["n"] for each in own):
        return "it has other records than the sites that it is about"
    return None if card["epsilon"] == max(each["epsilon"] for each in own) else "epsilon is not that of its sites"


def _others_fault(card: Mapping[str, Any]) -> str | None:
    """What contradicts between a card and what it says of the trainings of its ledger. None if nothing does."""
    known, private = card["ledger"], card["claim"] == "private"
    own, spent = card["epsilon"], known["epsilon"]
    kind = "private" if private else "unprotected"
    if not known[kind]:
        return f"there is no {kind} training among them, not even this one"
    if not private and spent is not None:
        return "an epsilon of all trainings is stated for a head that claims none"
    if not private or spent is None or same_epsilon(spent, own):
        return None
    if spent < own:
        return f"together they spent epsilon = {rounding.epsilon(spent)}, less than this one alone"
    alone = known["private"] == 1 and known["unit"] == card["unit"]
    both = f"spent epsilon = {rounding.epsilon(spent)}, and it claims {rounding.epsilon(own)}"
    return f"the only private one {both}" if alone else None


def _releases(card: Mapping[str, Any], chain: Chain | None) -> Finding:
    """Whether the releases and the preprocessing are what the method makes of these facts and options."""
    what, facts = "releases", _facts(card)
    try:
        count = _check_releases(card, facts, chain)
    except ValueError as unlike:
        by, why = card["versions"]["dpfc"], str(unlike)
        if "method_source" in card:
            why = f"{why}; that of {card['method_source']['package']} may do so"
            return Finding(what=what, result="unknown", why=why)
        if by == __version__:
            return Finding(what=what, result="contradicts", why=why)
        # A head of this version cannot have it, and one of another version may have it.
        return Finding(what=what, result="unknown", why=f"{why}; dpfc {by} may do so, and this is {__version__}")
    why = f"{card['method']} with these facts and options makes these {count:,} releases"
    return Finding(what=what, result="ok", why=why)


def _check_releases(card: Mapping[str, Any], facts: Facts, chain: Chain | None) -> int:
    """How many releases the training made. ValueError: the method makes others, or another chain."""
    name, own = card["method"], card["plan"]
    mu = mu_of(own) if card["claim"] != "non-private" else None
    plan = _planned(card, facts, mu)
    due = plan.described(plan.sigmas(mu) if mu else None)
    for i, (release, wanted) in enumerate(zip(own, due, strict=False), start=1):
        if not _same(release, wanted):
            raise ValueError(f"release {i} is {_said(release)}; {name} with these options makes {_said(wanted)}")
    if len(own) != len(due):
        raise ValueError(f"{len(own)} kinds of release in a row, where {name} makes {len(due)}")
    needed = sum(math.prod(r["shape"]) * r["times"] for r in own) * ETA_PER_SAMPLE
    if card["claim"] == "private" and card["eta"] < needed * (1 - 1e-9):
        raise ValueError(f"eta = {card['eta']:.3g} is less than the sampler's distance for these, {needed:.3g}")
    if chain is not None:
        kinds = [type(step) for step in chain]
        if kinds not in [[type(step) for step in release.form.chain] for release in plan.releases]:
            raise ValueError(f"{name} makes no preprocessing of {len(kinds)} such steps")
        norm = card["options"].get("feature_clip")
        if norm is not None and chain != (Clip(norm),):
            raise ValueError(f"the clipping norm of the preprocessing is not feature clip = {norm:g}")
    return sum(int(r["times"]) for r in own)


def _facts(card: Mapping[str, Any]) -> Facts:
    known = card["facts"]
    return Facts(
        **{name: known[name] for name in ("n", "m", "d", "k")},
        rows=known.get("records"),
        adjacency=card["adjacency"],
        unit=card["unit"],
    )


def _planned(card: Mapping[str, Any], facts: Facts, mu: float | None) -> Plan:
    """The plan that the method makes with the card's options. ValueError: it makes none with these."""
    from dpfc_cli.methods import known

    private, named = mu is not None, card["method"][:40]
    given = {name: value for name, value in card["options"].items() if value is not None}
    try:
        method = known(card["method"])
    except UserError:
        method = None
    if method is None:
        raise ValueError(f"this dpfc has no method '{named}'")
    if (method.source or {}).get("sha256") != card.get("method_source", {}).get("sha256"):
        raise ValueError(f"the source of the method '{named}' that is installed here is another one")
    try:
        shapes = {each.name for each in fields(method.planned(facts, {}, private))}
        # A number that a method computes may lie beyond the bounds for those that users give.
        free = {name for name, option in method.declared.items() if option.kind == "number"} - shapes
        taken = method.taken({name: value for name, value in given.items() if name not in free})
        shaping = {name: value for name, value in taken.items() if name in shapes}
        expected = method.in_force(method.defaults(facts, mu, shaping), private)
        plan = method.plan(facts, method.planned(facts, shaping, private))
    except UserError as error:
        raise ValueError(error.text(lambda name: name)[0].rstrip(".")) from error
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f"{card['method']} has no plan for these facts and options") from error
    if any(isinstance(value, str) and taken[name] != value for name, value in given.items() if name in taken):
        raise ValueError("one of its options is spelled as dpfc does not write it")
    if not all(type(value) in (int, float) and value >= 0 for name, value in given.items() if name in free):
        raise ValueError("one of its options is no positive number")
    differ = sorted(expected.keys() ^ card["options"].keys())
    if differ:
        raise ValueError(f"the option {differ[0][:40]} is missing, or has no effect in {method.name}")
    return plan


def _same(release: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    exact = ("kind", "rate", "times")
    return (
        all(release[name] == wanted[name] for name in exact)
        and list(release["shape"]) == list(wanted["shape"])
        and math.isclose(release["sigma"], wanted["sigma"], rel_tol=1e-9)
        and math.isclose(release["share"], wanted["share"], rel_tol=1e-9)
    )


def _said(release: Mapping[str, Any]) -> str:
    rate = f", rate {release['rate']:g}" if release["rate"] < 1 else ""
    shape = " × ".join(map(str, release["shape"]))
    return f"{release['times']:,} × {release['kind']} of {shape} at sigma {release['sigma']:.6g}{rate}"
