"""Whether a card is one that a training makes: the checks whose figures can be computed again.

A head may come from somebody else. `Head.load` refuses a head that fails a check, so nothing is said of it. `dpfc
verify` shows all of them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from dpfc_cli import rounding
from dpfc_cli.errors import UserError, counted, damaged, quoted
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.records.card import Card
from dpfc_cli.records.claims import Release, described, figures_fault, mu_of, same_epsilon
from dpfc_cli.version import __version__

Result = Literal["ok", "contradicts", "unknown"]
UNPROVED = "What the files cannot prove:"
NOISE = "that the noise was really drawn"
BELONGS = "that the card belongs to these weights: only a ledger with the digest of the file shows it"
CHARGED = "that its training was charged to a ledger, and how many others that ledger had"
OWNER = "that this ledger is the newest, whole and unchanged"
TEXT = (
    "that what nobody can compute is true: the unit and the adjacency, facts such as numbers of records, classes, "
    "features, options that shape no release, starts, what extensions add, date and versions"
)
RENAMED = {"ridge": "damping"}
"""Options of heads of dpfc 0.1.0, by what they are called now."""
NOT_INSTALLED = "it is of an extension of dpfc that is not installed here, and was not checked"


def check(card: Card) -> None:
    """Check that `Head.load` will take a head with this card. ValueError: it will not."""
    wrong = contradictions(findings(card))
    if wrong:
        raise ValueError(f"the card contradicts itself: {'. '.join(wrong)}")


def unproved(card: Card, *, named: bool = False, charged: bool = False) -> list[str]:
    """What the file of a head cannot prove. named: whether a ledger names the digest of the file. charged: whether it
    has the charge.
    """
    begin = [*[NOISE] * card.private, *(said for part in card.known.values() for said in part.unproved)]
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


def findings(card: Card, chain: Chain | None = None) -> list[Finding]:
    """The checks of a card. chain: the head's preprocessing; None: not checked."""
    counts = f"{counted(card.facts.m, 'class')}, {counted(card.facts.n, card.unit)}"
    found = [_found("counts", _counts_fault(card), counts), _releases(card, chain)]
    if contradictions(found) and card.sampled:
        # To compute it could take for ever.
        found.append(Finding(what="epsilon", result="unknown", why="it is not computed of releases that contradict"))
    else:
        cost = f"nothing is claimed: the head is {card.claim}"
        if card.private:
            cost = f"computed again, the releases cost {rounding.cost(card.guarantee.epsilon, card.guarantee.delta)}"
        found.append(_found("epsilon", figures_fault(card, card.seeded), cost))
    if (wrong := _others_fault(card)) is not None:
        # Where nothing contradicts, only the ledger shows it.
        found.append(Finding(what="other trainings", result="contradicts", why=wrong))
    return [*found, *(Finding(what=name, result="unknown", why=NOT_INSTALLED) for name in card.unknown)]


def _found(what: str, wrong: str | None, right: str) -> Finding:
    return Finding(what=what, result="ok" if wrong is None else "contradicts", why=right if wrong is None else wrong)


def _counts_fault(card: Card) -> str | None:
    classes, facts, start, parts = card.classes, card.facts, card.public_head, card.known.values()
    wrong = next((said for part in parts if (said := part.contradiction(card)) is not None), None)
    if wrong is not None:
        return wrong
    if (card.ledger is None) != bool(card.elsewhere) and not card.unknown:
        return "it names no charge, or one that it cannot have"
    if not facts.m == len(classes) == len(set(classes)):
        return f"it names {len(set(classes)):,} classes, and its facts say {facts.m:,}"
    if (card.unit == "person") != (facts.records is not None) or card.records < facts.n:
        return f"its facts do not fit the unit, a {card.unit}"
    if start is None:
        return None
    named = [*start.without, *(start.doubted or ())]
    if start.classes + len(start.without) != len(classes) or len(set(named)) != len(named):
        return "the counts of the classes of its start are not those of the card"
    return None if set(classes).issuperset(named) else "its start names other classes than the card"


def _others_fault(card: Card) -> str | None:
    """What contradicts between a card and what it says of the trainings of its ledger. None if nothing does."""
    known = card.ledger
    if known is None:
        return None
    kind, count = ("private", known.private) if card.private else ("unprotected", known.unprotected)
    if not count:
        return f"there is no {kind} training among them, not even this one"
    own, spent = card.epsilon, known.epsilon
    if own is None:
        return None if spent is None else "an epsilon of all trainings is stated for a head that claims none"
    if spent is None or same_epsilon(spent, own):
        return None
    if spent < own:
        return f"together they spent epsilon = {rounding.epsilon(spent)}, less than this one alone"
    alone = known.private == 1 and known.unit == card.unit
    both = f"spent epsilon = {rounding.epsilon(spent)}, and it claims {rounding.epsilon(own)}"
    return f"the only private one {both}" if alone else None


def _releases(card: Card, chain: Chain | None) -> Finding:
    """Whether the releases and the preprocessing are what the method makes of these facts and options."""
    what = "releases"
    try:
        _check_releases(card, chain)
    except ValueError as unlike:
        by, why = card.versions.dpfc, str(unlike)
        if card.method_source is not None:
            return Finding(what=what, result="unknown", why=f"{why}; that of {card.method_source.package} may do so")
        if by == __version__:
            return Finding(what=what, result="contradicts", why=why)
        # A head of this version cannot have it, and one of another version may have it.
        return Finding(what=what, result="unknown", why=f"{why}; dpfc {by} may do so, and this is {__version__}")
    why = f"{card.method} with these facts and options makes these {sum(each.times for each in card.plan):,} releases"
    return Finding(what=what, result="ok", why=why)


def _check_releases(card: Card, chain: Chain | None) -> None:
    """ValueError: the method makes other releases, or another chain."""
    name, mu = card.method, None if card.claim == "non-private" else mu_of(card.plan)
    plan = _planned(card, mu)
    due = described(plan, plan.sigmas(mu) if mu else None)
    for i, (release, wanted) in enumerate(zip(card.plan, due, strict=False), start=1):
        if not _same(release, wanted):
            raise ValueError(f"release {i} is {_said(release)}; {name} with these options makes {_said(wanted)}")
    if len(card.plan) != len(due):
        raise ValueError(f"{len(card.plan)} kinds of release in a row, where {name} makes {len(due)}")
    needed = sum(math.prod(r.shape) * r.times for r in card.plan) * ETA_PER_SAMPLE
    if card.private and card.guarantee.eta < needed * (1 - 1e-9):
        raise ValueError(f"eta = {card.eta:.3g} is less than the sampler's distance for these, {needed:.3g}")
    if chain is not None:
        kinds = [type(step) for step in chain]
        if kinds not in [[type(step) for step in release.form.chain] for release in plan.releases]:
            raise ValueError(f"{name} makes no preprocessing of {len(kinds)} such steps")
        norm = card.options.get("feature_clip")
        if isinstance(norm, int | float) and not card.options.get("raw_features") and chain != (Clip(norm),):
            raise ValueError(f"the clipping norm of the preprocessing is not feature clip = {norm:g}")


def _planned(card: Card, mu: float | None) -> Plan:
    """The plan that the method makes with the card's options. ValueError: it makes none with these."""
    from dpfc_cli.methods import known

    private, named, facts = mu is not None, card.method[:40], card.public
    options = {RENAMED.get(name, name): value for name, value in card.options.items()}
    given = {name: value for name, value in options.items() if value is not None}
    try:
        method = known(card.method)
    except UserError:
        method = None
    if method is None:
        raise ValueError(f"this dpfc has no method '{named}'")
    if (method.source or {}).get("sha256") != (card.method_source and card.method_source.sha256):
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
        raise ValueError(f"{card.method} has no plan for these facts and options") from error
    if any(isinstance(value, str) and taken[name] != value for name, value in given.items() if name in taken):
        raise ValueError("one of its options is spelled as dpfc does not write it")
    numbers = [value for name, value in given.items() if name in free]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 for value in numbers):
        raise ValueError("one of its options is no positive number")
    # What is off where it is missing came after dpfc 0.1.0.
    off = {name for name, value in expected.items() if value in (False, 0) and name not in options}
    differ = sorted((expected.keys() ^ options.keys()) - off)
    if differ:
        raise ValueError(f"the option {differ[0][:40]} is missing, or has no effect in {method.name}")
    return plan


def _same(release: Release, wanted: Release) -> bool:
    exact = all(getattr(release, name) == getattr(wanted, name) for name in ("kind", "shape", "rate", "times"))
    return exact and all(
        math.isclose(getattr(release, name), getattr(wanted, name), rel_tol=1e-9) for name in ("sigma", "share")
    )


def _said(release: Release) -> str:
    rate = f", rate {release.rate:g}" if release.rate < 1 else ""
    shape = " × ".join(map(str, release.shape))
    return f"{release.times:,} × {release.kind} of {shape} at sigma {release.sigma:.6g}{rate}"
