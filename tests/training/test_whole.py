"""What is claimed of a head that was trained from another private head."""

from dataclasses import replace

import pytest

from dpfc_cli.privacy.accounting import epsilon_for
from tests.support import calibrated_at
from tests.training.requests import FACTS, PLAN, before_of


def test_a_head_that_continues_another_one_claims_the_releases_of_both() -> None:
    first, made = calibrated_at(FACTS, PLAN, 0.3), calibrated_at(FACTS, PLAN, 0.4)
    assert made.guarantee is not None
    made = replace(made, guarantee=replace(made.guarantee, eta=1e-7))
    assert made.head_claim == (made.guarantee, made.releases)
    continued = replace(made, before={**before_of(first), "eta": 2e-7})
    claimed, releases = continued.head_claim
    assert claimed is not None
    assert (claimed.mu, claimed.delta, claimed.eta) == pytest.approx((0.5, 1e-5, 3e-7), rel=1e-12)
    assert claimed.epsilon == pytest.approx(epsilon_for(0.5, 1e-5, 3e-7), rel=1e-9)
    # Shares are parts of the μ² of both, and all else is as it was.
    both = [*first.releases, *made.releases]
    assert releases == [{**each, "share": pytest.approx(1 / each["sigma"] ** 2 / 0.5**2)} for each in both]


def test_without_a_guarantee_nothing_is_claimed_whatever_was_before() -> None:
    made = calibrated_at(FACTS, PLAN, 0.4, "research")
    first = calibrated_at(FACTS, PLAN, 0.3)
    assert replace(made, before=before_of(first)).head_claim == (None, made.releases)
