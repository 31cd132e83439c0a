"""What a head of several sites says of them is what a plan can have, and what holds whoever of them is trusted."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from dpfc_cli.extensions.federation.card import Federated, Site
from dpfc_cli.privacy.accounting import Guarantee, Privacy, epsilon_for, mu_for
from dpfc_cli.records import statement
from dpfc_cli.records.card import card_of
from dpfc_cli.records.findings import findings
from dpfc_cli.rounding import epsilon
from tests.hostile import calibrated, card_as_written
from tests.support import replace

CARD = card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0)))
N = CARD["facts"]["n"]


def federated(epsilons: Mapping[str, float], colluding: int, site: str | None = None, n: int = N) -> Federated:
    sites = tuple(Site(name=name, n=n, epsilon=each) for name, each in epsilons.items())
    return Federated(plan="0" * 64, colluding=colluding, sites=sites, site=site)


def said_of(part: Federated, **changed: Any) -> dict[str, str]:
    card = replace(card_of(CARD), parts={"federation": part}, **changed)
    return statement.document(card, "ab" * 32).facts


@pytest.mark.parametrize(
    ("epsilons", "colluding", "site", "result"),
    [
        ((1, 1, 1), 1, "north", "ok"),
        ((1, 1, 1), 2, "north", "ok"),
        ((1, 1, 1), 3, "north", "contradicts"),
        ((1, 2, 1), 2, "north", "ok"),
        # Masks are for sites with one epsilon.
        ((1, 2, 1), 1, "north", "contradicts"),
        ((2, 1, 1), 2, "north", "contradicts"),
        ((1, 1, 1), 1, "east", "contradicts"),
        # A coordinator's head is of all records, and in no ledger.
        ((1, 1, 1), 2, None, "contradicts"),
    ],
)
def test_what_a_card_says_of_sites_is_what_a_plan_can_have(
    epsilons: tuple[int, ...], colluding: int, site: str | None, result: str
) -> None:
    part = federated(dict(zip(("north", "south", "west"), epsilons, strict=True)), colluding, site)
    card = replace(card_of(CARD), parts={"federation": part})
    assert [found.result for found in findings(card) if found.what == "counts"] == [result]
    assert card_of(card.values()) == card


def test_a_head_of_several_sites_names_them_and_says_what_a_patient_of_some_has_spent() -> None:
    said = said_of(federated({"north": 1.0, "south": 0.5, "west": 2.0}, 2, "south"))
    assert said["trained by"].count("south") == 2
    delta, eta = CARD["delta"], CARD["eta"]
    mus = [mu_for(each, delta, eta) for each in (2.0, 1.0, 0.5)]
    for j in (2, 3):
        assert epsilon(epsilon_for(math.hypot(*mus[:j]), delta, eta)) in said["a record of"]
    assert "if each of these sites adds its noise" in said["a record of"], "or one of them tells all"
    assert "trust some" not in said


@pytest.mark.parametrize(("count", "colluding", "alone"), [(5, 2, 1.83), (20, 10, 3.62)])
def test_a_head_with_masks_says_what_holds_under_trust_and_what_without(
    count: int, colluding: int, alone: float
) -> None:
    """Its own claim needs none. A patient of several sites has spent as many times μ behind masks."""
    whole = mu_for(1.0, 1e-5)
    mu = whole * (count - colluding) ** 0.5
    said = said_of(federated({f"site-{i}": alone for i in range(count)}, colluding), mu=mu, delta=1e-5, eta=1e-60)
    assert epsilon_for(mu, 1e-5) == pytest.approx(alone, abs=0.005)
    known = [epsilon(epsilon_for(j * whole, 1e-5)) for j in (1, 2, 3)]
    assert said["trust some"].startswith(
        f"with masks, epsilon = {known[0]} while at most {colluding} of the {count - 1} other"
    )
    assert "if none of these is one of those" in said["trust some"]
    assert said["trust some"].endswith(f"2 sites: epsilon = {known[1]}; 3 sites: epsilon = {known[2]}")


def test_masks_make_no_claim_larger() -> None:
    """A unit at more sites than are honest has spent no more than in each answer by itself."""
    part, claimed = (
        federated({"north": 1.0, "south": 1.0, "west": 1.0}, 1),
        Guarantee(epsilon=1, delta=1e-5, mu=0.3, eta=0),
    )
    assert part.masked(claimed, 3) == pytest.approx(epsilon_for(3**0.5 * 0.3, 1e-5))
