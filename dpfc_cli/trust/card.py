"""Whether a card is one that a training writes: the types and ranges of its values, and that its figures agree.

A head may come from somebody else. `Head.load` checks its card before anything is said of the head.
"""

from typing import Any, get_args

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
from dpfc_cli.trust.claims import claim_fault, figures_agree
from dpfc_cli.trust.statement import EXACT, SAMPLED

_UNIT = among(["record", "person"])
_CARD: dict[str, Check] = {
    "method": text,
    "options": mapping(either(scalar, each(scalar))),
    "accounting": among([EXACT, SAMPLED]),
    "unit": _UNIT,
    "facts": record(
        {"n": whole(1), "m": whole(1), "k": whole(1), "origin": among(get_args(Origin))}, d=whole(1), records=whole(1)
    ),
    "classes": each(text, least=1),
    "features": record({"name": text, "split": text, "fingerprint": text}, hold_out=number(0, 1)),
    "versions": record({"dpfc": text}),
}
_LEDGER: dict[str, Check] = {
    **{"training": whole(1), "trainings": whole(1), "private": whole(0), "unprotected": whole(0)},
    **{"epsilon": either(null, number(LEAST_EPSILON, 1e308)), "exact": boolean},
}
_SOMETIMES: dict[str, Check] = {
    "date": text,
    "ledger": record(_LEDGER, unit=_UNIT),
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


def check(card: Any) -> None:
    """Check a card.

    Args:
        card: the values of its JSON.

    Raises:
        ValueError: a value is missing or makes no sense, or the figures contradict one another.

    """
    wrong = fault(card, _WHOLE) or claim_fault(card)
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' in its card is missing or makes no sense")
    classes, known = card["classes"], card.get("ledger")
    sampled = any(release["rate"] < 1 for release in card["plan"])
    earlier = card.get("public_head", {}).get("releases", 0)
    if not (
        card["facts"]["m"] == len(classes) == len(set(classes))
        and (card["unit"] == "person") == ("records" in card["facts"])
        and card["facts"].get("records", card["facts"]["n"]) >= card["facts"]["n"]
        and (known is None or known["private"] + known["unprotected"] == known["trainings"])
        and card["accounting"] == (SAMPLED if sampled else EXACT)
        and earlier < len(card["plan"])
        and (earlier == 0 or card["claim"] == "private")
        and figures_agree(card)
    ):
        raise ValueError("the figures in its card contradict one another")
