"""The trade-off curve of a claim: how often an attacker is right who may be wrong only so often.

The attacker sees the head and must say whether one record (or person) was used. *False alarms* is how often the
attacker says so of one that was not, *power* how often of one that was. Without any information both are the same. The
curve is an upper bound for every attack, whatever else the attacker knows.

For full passes it is that of Gaussian differential privacy, which no other curve of the same releases can be below. Of
sampled releases the claim knows ε and δ alone, so the curve is the one that follows from these two (`attack`).
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from dpfc_cli.privacy.accounting import attack, gaussian_attack
from dpfc_cli.trust.statement import EXACT

RATES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""Rates of false alarms for a table."""
_STEPS = 100
_FAR = 4.0
"""Standard deviations from the middle at which a normal distribution has no visible mass."""


def power(card: Mapping[str, Any], false_alarms: float) -> float:
    """The largest power at a rate of false alarms.

    Args:
        card: of a head whose claim is "private".
        false_alarms: the rate, in (0, 1).

    """
    if card["accounting"] == EXACT:
        return gaussian_attack(card["mu"], false_alarms, card["eta"]).power
    return attack(card["epsilon"], card["delta"], false_alarms).power


def curve(card: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Points (false alarms, power) from (0, …) to (1, 1), close enough to be joined by lines.

    Args:
        card: of a head whose claim is "private".

    """
    if card["accounting"] != EXACT:
        # Three straight lines: they meet where the two bounds are equal, and where the second one reaches 1.
        epsilon, delta = card["epsilon"], card["delta"]
        rates = [0.0, (1 - delta) / (1 + math.exp(epsilon)), 1 - delta, 1.0]
        return [(rate, attack(epsilon, delta, rate).power) for rate in rates]
    # Equal steps of the threshold of the best test, from where both rates are 0 to where both are 1.
    low, high = -_FAR - card["mu"], _FAR
    rates = [NormalDist().cdf(low + (high - low) * step / _STEPS) for step in range(_STEPS + 1)]
    return [(0.0, card["eta"]), *((rate, power(card, rate)) for rate in rates if rate), (1.0, 1.0)]
