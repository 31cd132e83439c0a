"""Whether a card is one that a training writes: the types and ranges of its values, and that its figures agree.

The card of a head is data from whoever hands the head over. `Head.load` checks it before anything is said of the head.
That the figures agree does not prove that the training was as they say.
"""

import math
from collections.abc import Mapping
from typing import Any, get_args

from dpfc_cli.privacy.accounting import (
    LARGEST_EPSILON,
    LEAST_DELTA,
    LEAST_EPSILON,
    Claim,
    epsilon_for,
    mu_for,
)
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.privacy.queries import QUERIES
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
from dpfc_cli.trust.statement import EXACT, SAMPLED

_CLAIMED: dict[str, Check] = {
    "epsilon": number(LEAST_EPSILON, LARGEST_EPSILON),
    "delta": number(LEAST_DELTA, 1 - 2**-53),
    "mu": number(0, 1e308, beyond=True),
    "eta": number(0, 1),
}
_RELEASE: dict[str, Check] = {
    "kind": among([query.kind for query in QUERIES]),
    "shape": each(whole(1)),
    "share": number(0, 1, beyond=True),
    "rate": number(0, 1, beyond=True),
    "times": whole(1),
}
_CARD: dict[str, Check] = {
    "method": text,
    "options": mapping(either(scalar, each(scalar))),
    "accounting": among([EXACT, SAMPLED]),
    "adjacency": among(get_args(Adjacency)),
    "unit": text,
    "facts": record({"n": whole(1), "m": whole(1), "k": whole(1), "origin": among(get_args(Origin))}, d=whole(1)),
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
    "ledger": record(_LEDGER),
    "public_features": record({"name": text, "rows": whole(1)}),
    "public_head": record(
        {"name": text, "sha256": text, "classes": whole(2), "without": each(text)}, trusted=number(0, 1)
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


def check(card: Any) -> None:
    """Check a card.

    Args:
        card: the values of its JSON.

    Raises:
        ValueError: a value is missing or makes no sense, or the figures contradict one another.

    """
    wrong = fault(card, record({"claim": among(get_args(Claim))}))
    if wrong is None:
        claimed = card["claim"] == "private"
        sigma = number(0, 1e308, beyond=card["claim"] != "non-private")
        figures = _CLAIMED if claimed else dict.fromkeys(_CLAIMED, null)
        plan = each(record({**_RELEASE, "sigma": sigma}), least=1)
        wrong = fault(card, record({**_CARD, **figures, "plan": plan}, **_SOMETIMES))
    if wrong is not None:
        raise ValueError(f"'{wrong[:80]}' in its card is missing or makes no sense")
    if not (_counts_agree(card) and _figures_agree(card)):
        raise ValueError("the figures in its card contradict one another")


def _counts_agree(card: Mapping[str, Any]) -> bool:
    """Whether the number of classes, the trainings, the sampling and the shares are as the rest of the card says."""
    facts, plan, known = card["facts"], card["plan"], card.get("ledger")
    sampled = any(release["rate"] < 1 for release in plan)
    return (
        facts["m"] == len(card["classes"]) == len(set(card["classes"]))
        and (known is None or known["private"] + known["unprotected"] == known["trainings"])
        and card["accounting"] == (SAMPLED if sampled else EXACT)
        and not (sampled and card["adjacency"] != "zero-out")
        and math.isclose(math.fsum(release["times"] * release["share"] for release in plan), 1, rel_tol=1e-9)
    )


def _figures_agree(card: Mapping[str, Any]) -> bool:
    """Whether Σ times/σ² = μ², and ε belongs to μ, δ and η. A card that claims nothing has nothing to contradict.

    A training computes ε from μ or μ from ε, and each of the two errs by about 1e-9 on the private side. So one of the
    two must come out again. What sampled releases cost is not computed again here: it takes seconds.
    """
    if card["claim"] != "private":
        return True
    epsilon, delta, mu, eta = (card[name] for name in _CLAIMED)
    try:
        spent = math.fsum(release["times"] / release["sigma"] ** 2 for release in card["plan"])
        if not math.isclose(spent, mu**2, rel_tol=1e-9):
            return False
        if card["accounting"] != EXACT:
            return True
        near = [(epsilon_for(mu, delta, eta), epsilon), (mu_for(epsilon, delta, eta), mu)]
    except (ValueError, ArithmeticError):
        # Squares beyond float64, or a δ that η uses up.
        return False
    return any(math.isclose(found, stated, rel_tol=1e-8) for found, stated in near)
