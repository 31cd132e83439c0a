"""Whether a card is one that a training writes: the types and ranges of its values, and that its figures agree.

A head may come from somebody else. `Head.load` checks its card before anything is said of the head.
"""

from collections.abc import Mapping
from typing import Any, get_args

from dpfc_cli.backbones.geometry import Filter
from dpfc_cli.privacy.accounting import LEAST_EPSILON
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
from dpfc_cli.trust.claims import budget_fault, claim_fault, epsilon_fault, is_sampled
from dpfc_cli.trust.statement import EXACT, SAMPLED

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
        {"n": whole(1), "m": whole(1), "k": whole(1), "origin": among(get_args(Origin))}, d=whole(1), records=whole(1)
    ),
    "classes": each(text, least=1),
    "features": record(
        {"name": text, "split": text, "fingerprint": text},
        hold_out=number(0, 1),
        preparation=either(null, _PREPARATION),
        dtype=text,
    ),
    "ledger": record(
        {
            **{"charge": text, "trainings": whole(1), "private": whole(0), "unprotected": whole(0)},
            **{"epsilon": either(null, number(LEAST_EPSILON, 1e308)), "exact": boolean, "unit": _UNIT},
        },
        adopted=boolean,
    ),
    "versions": record({"dpfc": text}),
}
_SOMETIMES: dict[str, Check] = {
    "date": text,
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
    """Check a card: its form, and what can be checked at once of its figures. `verify.of_card` checks the rest.

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
