"""Whether a card is one that a training writes: the types and ranges of its values, and that its figures agree.

A head may come from somebody else. `Head.load` checks its card before anything is said of the head (`check`).
`of_card` is the whole list of checks. `dpfc verify` shows all of them. The statement and `evaluate` refuse a card that
fails one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from dpfc_cli.backbones.geometry import Filter
from dpfc_cli.errors import UserError, counted
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import chain as chains
from dpfc_cli.privacy.accounting import LEAST_EPSILON
from dpfc_cli.privacy.chain import Chain, Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import ETA_PER_SAMPLE
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.schema import (
    Check,
    among,
    anything,
    boolean,
    each,
    either,
    fault,
    mapping,
    null,
    number,
    record,
    scalar,
    text,
    whole,
)
from dpfc_cli.sources.classes import Origin
from dpfc_cli.trust.claims import budget_fault, claim_fault, epsilon_fault, is_sampled, mu_of, sampled_fault
from dpfc_cli.trust.statement import EXACT, SAMPLED
from dpfc_cli.version import __version__

_UNIT = among(["record", "person"])
_SIDE = whole(1, 8192)
"""Pixels. A larger picture would take more memory than a head may ask for."""
_PREPARATION = record(
    {},
    resize=either(_SIDE, each(_SIDE, least=2)),
    crop=_SIDE,
    filter=among(get_args(Filter)),
    window=each(number(-1e308, 1e308), least=2),
    exif=boolean,
)
_CARD: dict[str, Check] = {
    "method": text,
    "options": mapping(either(scalar, each(scalar))),
    "accounting": among([EXACT, SAMPLED]),
    "unit": _UNIT,
    "facts": record(
        {**dict.fromkeys(("n", "m", "d", "k"), whole(1)), "origin": among(get_args(Origin))}, records=whole(1)
    ),
    "classes": each(text, least=1),
    "features": record(
        {
            **{"name": text, "split": text, "fingerprint": text, "backbone": mapping(anything)},
            **{"hold_out": number(0, 1), "preparation": either(null, _PREPARATION), "dtype": text},
        }
    ),
    "ledger": record(
        {
            **{"charge": text, "trainings": whole(1), "private": whole(0), "unprotected": whole(0)},
            **{"epsilon": either(null, number(LEAST_EPSILON, 1e308)), "exact": boolean, "unit": _UNIT},
        },
        adopted=boolean,
    ),
    "versions": record({"dpfc": text}),
    "date": text,
}
_SOMETIMES: dict[str, Check] = {
    "public_features": record({"name": text, "rows": whole(1)}),
    "public_head": record(
        {"name": text, "sha256": text, "classes": whole(2), "without": each(text)},
        made=record({"source": among(["text", "classifier"]), "model": text, "count": whole(1)}),
        trusted=number(0, 1),
        doubted=each(text),
        releases=whole(1),
        asserted=each(text),
    ),
    "tuning": record(
        {
            "name": text,
            "facts": record({"n": whole(1), "m": whole(1)}),
            "tried": each(anything),
            "chosen": mapping(number(0, 1e308)),
        }
    ),
    "converged": boolean,
}
_WHOLE = record(_CARD, **_SOMETIMES)


def check_form(card: Any) -> None:
    """Check the types and ranges of a card's values.

    Args:
        card: the values of its JSON.

    Raises:
        ValueError: a value is missing or makes no sense.

    """
    wrong = fault(card, _WHOLE) or claim_fault(card)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' in its card is missing or makes no sense")


def check(card: Any) -> None:
    """Check a card: its form, and what can be checked at once of its figures. `of_card` checks the rest.

    Args:
        card: the values of its JSON.

    Raises:
        ValueError: a value is missing or makes no sense, or the figures contradict one another.

    """
    check_form(card)
    wrong = counts_fault(card) or budget_fault(card) or epsilon_fault(card)
    if wrong is not None:
        raise ValueError(f"the figures in its card contradict one another: {wrong}")


def counts_fault(card: Mapping[str, Any]) -> str | None:
    """What contradicts in the counts and words of a card. None if nothing does. `check_form` finds no fault in it."""
    classes, facts, known = card["classes"], card["facts"], card["ledger"]
    earlier = card.get("public_head", {}).get("releases", 0)
    if not facts["m"] == len(classes) == len(set(classes)):
        return f"it names {len(set(classes)):,} classes, and its facts say {facts['m']:,}"
    if (card["unit"] == "person") != ("records" in facts) or facts.get("records", facts["n"]) < facts["n"]:
        return f"its facts do not fit the unit, a {card['unit']}"
    if known["private"] + known["unprotected"] != known["trainings"]:
        return "the trainings of its ledger do not add up"
    if card["accounting"] != (SAMPLED if is_sampled(card["plan"]) else EXACT):
        return "its accounting is not that of its releases"
    if earlier >= len(card["plan"]) or (earlier and card["claim"] != "private"):
        return "it has no releases beside those of the head that it started from, or no claim"
    return None


Result = Literal["ok", "contradicts", "unknown"]
NOISE = "that the noise was really drawn, and as the card says"
BELONGS = "that the card belongs to these weights: no ledger names the digest of the file"
CHARGED = "that its training was charged to a ledger"
OWNER = "that nobody who can write to the ledger changed it"
SIGNER = "who vouches for it: no signature was checked"
TEXT = "that dates, names and the values of options that shape no release are true"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check: what was checked, its result, and why. "unknown": it cannot be known."""

    what: str
    result: Result
    why: str


class _UnlikeError(Exception):
    """A card that this version does not write. Another version might."""


def contradictions(findings: Iterable[Finding]) -> list[str]:
    """What contradicts, as texts."""
    return [f"{found.what}: {found.why}" for found in findings if found.result == "contradicts"]


def refused(path: Path | None, wrong: list[str], remedy: str | None = None) -> UserError:
    """The error for a head that contradicts itself, or its ledger."""
    return UserError(
        f"'{path}' is not what it says ({counted(len(wrong), 'contradiction')}). {'. '.join(wrong)}.",
        remedy or "Do not rely on it: ask for the head again. 'dpfc verify' shows all checks.",
        code="damaged",
        path=str(path),
        contradictions=wrong,
    )


def of_card(card: Mapping[str, Any]) -> list[Finding]:
    """The checks of a card. `card.check_form` finds no fault in it. Sampled releases take seconds."""
    first = [_found("counts", counts_fault(card), _counted(card)), _plan(card)]
    budget = budget_fault(card)
    first.append(_found("noise", budget, "the shares add up to 1, and the noise of the releases gives mu"))
    return [*first, _epsilon(card, contradictions(first)), *_sampler(card), _others(card), *_start(card)]


def of_chain(card: Mapping[str, Any], chain: Chain) -> Finding:
    """Whether the preprocessing is one that the method makes."""
    what = "preprocessing"
    try:
        plan = _planned(card)
    except _UnlikeError as unlike:
        return Finding(what=what, result="unknown", why=f"the plan cannot be made again: {unlike}")
    made = chains.to_json(chain)
    kinds = [type(step) for step in chain]
    if kinds not in [[type(step) for step in release.form.chain] for release in plan.releases]:
        return _unlike(card, what, f"{card['method']} makes no chain of {len(made)} such steps")
    norm = card["options"].get("feature_clip")
    if norm is not None and chain != (Clip(norm),):
        return _unlike(card, what, f"its clipping norm is not feature clip = {norm:g}")
    return Finding(what=what, result="ok", why=f"the steps are those of {card['method']}")


def _found(what: str, wrong: str | None, right: str) -> Finding:
    return Finding(what=what, result="ok" if wrong is None else "contradicts", why=right if wrong is None else wrong)


def _unlike(card: Mapping[str, Any], what: str, why: str) -> Finding:
    """What a head of this version cannot have, and one of another version may have."""
    by = card["versions"]["dpfc"]
    if by == __version__:
        return Finding(what=what, result="contradicts", why=why)
    return Finding(what=what, result="unknown", why=f"{why}; dpfc {by} may do so, and this is {__version__}")


def _counted(card: Mapping[str, Any]) -> str:
    facts = card["facts"]
    return f"{counted(facts['m'], 'class')}, {counted(facts['n'], card['unit'])}"


def _facts(card: Mapping[str, Any]) -> Facts:
    known = card["facts"]
    return Facts(
        **{name: known[name] for name in ("n", "m", "d", "k")},
        rows=known.get("records"),
        adjacency=card["adjacency"],
        unit=card["unit"],
    )


def _own(card: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The releases of this training. Those of the private head that it started from come before them."""
    releases: list[dict[str, Any]] = card["plan"][card.get("public_head", {}).get("releases", 0) :]
    return releases


def _planned(card: Mapping[str, Any]) -> Plan:
    """The plan that the method makes with the card's options. Raises `_UnlikeError`."""
    method, facts, private = METHODS.get(card["method"]), _facts(card), card["claim"] != "non-private"
    if method is None:
        raise _UnlikeError(f"this dpfc has no method '{card['method'][:40]}'")
    own = _own(card)
    given = {name: value for name, value in card["options"].items() if value is not None}
    try:
        shapes = {each.name for each in fields(method.planned(facts, {}, private))}
        # A number that a method computes may lie beyond the bounds for those that users give.
        free = {name for name, option in method.declared.items() if option.kind == "number"} - shapes
        taken = method.taken({name: value for name, value in given.items() if name not in free})
        shaping = {name: value for name, value in taken.items() if name in shapes}
        if any(isinstance(value, str) and taken[name] != value for name, value in given.items() if name in taken):
            raise _UnlikeError("one of its options is spelled as dpfc does not write it")
        if not all(type(value) is float and value >= 0 for name, value in given.items() if name in free):
            raise _UnlikeError("one of its options is no positive number")
        mu = mu_of(own) if private and own else None
        expected = method.in_force(method.defaults(facts, mu, shaping), private)
        plan = method.plan(facts, method.planned(facts, shaping, private))
    except UserError as error:
        raise _UnlikeError(error.text(lambda name: name)[0].rstrip(".")) from error
    except (ValueError, ArithmeticError) as error:
        raise _UnlikeError(f"{card['method']} has no plan for these facts and options") from error
    differ = sorted(expected.keys() ^ card["options"].keys())
    if differ:
        raise _UnlikeError(f"the option {differ[0][:40]} is missing, or has no effect in {method.name}")
    return plan


def _plan(card: Mapping[str, Any]) -> Finding:
    """Whether the releases are those that the method makes with these facts and options."""
    what, own = "releases", _own(card)
    try:
        facts = _facts(card)
        strange = next((r for r in card["plan"] if not _fits(r["kind"], list(r["shape"]), facts)), None)
        if strange is not None:
            why = f"a {strange['kind']} of {_shape(strange)} does not fit {facts.d} dimensions and {facts.m} classes"
            return Finding(what=what, result="contradicts", why=why)
        plan = _planned(card)
    except _UnlikeError as unlike:
        return _unlike(card, what, str(unlike))
    private = card["claim"] != "non-private"
    if not own:
        return _unlike(card, what, "it has no releases of its own")
    due = plan.described(plan.sigmas(mu_of(own)) if private else None)
    # Where the head started from a private one, the shares are parts of both budgets together.
    part = (mu_of(own) / mu_of(card["plan"])) ** 2 if private else 1.0
    for i, (release, wanted) in enumerate(zip(own, due, strict=False), start=len(card["plan"]) - len(own) + 1):
        if not _same(release, wanted, part):
            why = f"release {i} is {_said(release)}; {card['method']} with these options makes {_said(wanted)}"
            return _unlike(card, what, why)
    if len(own) != len(due):
        return _unlike(card, what, f"{len(own)} kinds of release in a row, where {card['method']} makes {len(due)}")
    why = f"{card['method']} with these facts and options makes these {sum(r['times'] for r in own):,} releases"
    earlier = len(card["plan"]) - len(own)
    more = f"; the first {earlier} are those of the head that it started from, whose method is not stated"
    return Finding(what=what, result="ok", why=why + (more if earlier else ""))


def _same(release: Mapping[str, Any], wanted: Mapping[str, Any], part: float) -> bool:
    exact = ("kind", "rate", "times")
    return (
        all(release[name] == wanted[name] for name in exact)
        and list(release["shape"]) == list(wanted["shape"])
        and math.isclose(release["sigma"], wanted["sigma"], rel_tol=1e-9)
        and math.isclose(release["share"], wanted["share"] * part, rel_tol=1e-9)
    )


def _said(release: Mapping[str, Any]) -> str:
    rate = f", rate {release['rate']:g}" if release["rate"] < 1 else ""
    return f"{release['times']:,} × {release['kind']} of {_shape(release)} at sigma {release['sigma']:.6g}{rate}"


def _shape(release: Mapping[str, Any]) -> str:
    return " × ".join(map(str, release["shape"]))


def _fits(kind: str, shape: list[int], facts: Facts) -> bool:
    """Whether a kind of release can have that shape, with or without a bias."""
    d, m = facts.d, facts.m
    fixed = {"mean": [1, d], "class_sums": [m, d], "class_grams": [m, d, d]}
    if kind in fixed:
        return shape == fixed[kind]
    if kind == "hessians":
        return any(shape[1:] == [side, side] for side in (d, d + 1)) and shape[0] <= m
    return any(shape == ([side, side] if kind == "gram" else [side, m]) for side in (d, d + 1))


def _epsilon(card: Mapping[str, Any], before: list[str]) -> Finding:
    what = "epsilon"
    if card["claim"] != "private":
        return Finding(what=what, result="ok", why=f"nothing is claimed: the head is {card['claim']}")
    wrong = epsilon_fault(card)
    if wrong is None and is_sampled(card["plan"]):
        if before:
            return Finding(what=what, result="unknown", why="it is not computed of releases that contradict")
        wrong = sampled_fault(card)
    right = f"computed again, the releases cost epsilon = {card['epsilon']:.6g} at delta = {card['delta']:.3g}"
    return _found(what, wrong, right)


def _sampler(card: Mapping[str, Any]) -> list[Finding]:
    """Whether η covers all noise that the releases take."""
    if card["claim"] != "private":
        return []
    needed = sum(math.prod(r["shape"]) * r["times"] for r in card["plan"]) * ETA_PER_SAMPLE
    if card["eta"] < needed * (1 - 1e-9):
        why = f"eta = {card['eta']:.3g} is less than the sampler's distance for these releases, {needed:.3g}"
        return [_unlike(card, "sampler", why)]
    return [Finding(what="sampler", result="ok", why="eta covers the noise of all releases")]


def _others(card: Mapping[str, Any]) -> Finding:
    what, known, private = "other trainings", card["ledger"], card["claim"] == "private"
    wrong, own, spent = None, card["epsilon"], known["epsilon"]
    started = "releases" in card.get("public_head", {})
    if not known["private" if private else "unprotected"]:
        wrong = f"there is no {'private' if private else 'unprotected'} training among them, not even this one"
    elif not private and spent is not None:
        wrong = "an epsilon of all trainings is stated for a head that claims none"
    elif private and spent is not None and not started:
        if spent < own * (1 - 1e-5):
            wrong = f"together they spent epsilon = {spent:.6g}, less than this one alone"
        elif known["private"] == 1 and spent > own * (1 + 1e-5) and known["unit"] == card["unit"]:
            wrong = f"the only private one spent epsilon = {spent:.6g}, and it claims {own:.6g}"
    return _found(what, wrong, f"{known['trainings']:,} when it was made, this one included")


def _start(card: Mapping[str, Any]) -> list[Finding]:
    if "public_head" not in card:
        return []
    known, classes = card["public_head"], set(card["classes"])
    named = [*known["without"], *known.get("doubted", [])]
    agree = known["classes"] + len(known["without"]) == len(classes) and len(set(named)) == len(named)
    wrong = None if agree and classes.issuperset(named) else "its counts or names of classes are not those of the card"
    return [_found("start", wrong, f"vectors for {known['classes']:,} of {len(classes):,} classes")]
