"""A plan says what is released, in which order and with how much noise, and it refuses everything else."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism, Plan, PlanError, planned
from dpfc_cli.privacy.parts import digest_of
from dpfc_cli.privacy.queries import ClassGrams, Gradient, Gram, Mean, Query
from tests import instead
from tests.support import CHAIN, every_query

FACTS = Facts(n=100, m=3, d=4)
GRAM, MEAN = Gram(CHAIN), Mean(CHAIN)
GRADIENT = Gradient(CHAIN, np.zeros((5, 3)), clip=1.0)
PLAN = Plan((planned(MEAN, FACTS, 1.0), planned(GRAM, FACTS, 3.0), planned(GRADIENT, FACTS, 6.0)))


@pytest.mark.parametrize("share", [0.0, -1.0, math.nan])
def test_each_release_needs_a_positive_share(share: float) -> None:
    with pytest.raises(ValueError, match="positive share"):
        Plan((planned(MEAN, FACTS, 1.0), planned(GRAM, FACTS, share)))
    with pytest.raises(ValueError, match="needs releases"):
        Plan(())


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan])
def test_a_rate_is_a_probability_above_zero(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling rate"):
        Plan((planned(MEAN, FACTS, 1.0), planned(GRAM, FACTS, 1.0, rate)))


@pytest.mark.parametrize(("classes", "counts"), [(2, [2, 2, 2, 1]), (4, [4, 3])], ids=["four pieces", "two pieces"])
def test_of_an_answer_in_pieces_the_query_and_the_triangles_are_kept(
    classes: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A triangle of a 4 × 4 matrix has 10 numbers."""
    instead.piece_bytes(monkeypatch, classes * 8 * 4**2)
    facts = replace(FACTS, m=7)
    gram, whole = (planned(query, facts, 1.0) for query in (GRAM, ClassGrams(CHAIN)))
    assert gram.parts == [(4, 4)]
    assert whole.parts == [(len(digest_of(ClassGrams(CHAIN))),), *((count, 10) for count in counts)]
    assert (gram.held, whole.held) == (16, classes * 16)
    assert (Plan((gram,)).stacked, Plan((gram, whole)).stacked) == (0, 32 + 7 * 10)


def test_an_answer_in_pieces_has_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    instead.piece_bytes(monkeypatch, 8 * 4**2)
    for query in (ClassGrams(CHAIN), ClassGrams(CHAIN, 1, 2)):
        with pytest.raises(ValueError, match="no sample"):
            Plan((planned(GRAM, FACTS, 1.0), planned(query, FACTS, 1.0, 0.5)))


def test_a_plan_is_sampled_if_one_of_its_releases_is() -> None:
    assert not PLAN.sampled
    assert [release.rate for release in PLAN.releases] == [1.0, 1.0, 1.0]
    for query in every_query(FACTS):
        assert Plan((*PLAN.releases, planned(query, FACTS, 1.0, 0.5))).sampled


def test_shares_sum_to_one_and_sigmas_compose_to_mu() -> None:
    assert PLAN.shares == pytest.approx((0.1, 0.3, 0.6), rel=1e-12)
    mechanism = Mechanism(facts=FACTS, plan=PLAN, mu=0.5)
    assert mechanism.sigmas == PLAN.sigmas(0.5) == pytest.approx([2 / math.sqrt(w) for w in PLAN.shares], rel=1e-12)
    assert math.fsum(1 / sigma**2 for sigma in mechanism.sigmas) == pytest.approx(0.25, rel=1e-12)


def test_a_plan_counts_its_releases_its_samples_and_its_largest_answer() -> None:
    assert (PLAN.count, replace(PLAN, equal=2).count) == (3, 2)
    assert PLAN.coordinates == 4 + 16 + 15
    assert PLAN.largest == 16
    assert planned(ClassGrams(CHAIN), FACTS, 1.0).shape == (3, 4, 4)


def test_the_next_release_is_due_and_nothing_else() -> None:
    queries: list[Query] = [MEAN, GRAM, GRADIENT]
    assert [PLAN.due(i, query, FACTS) for i, query in enumerate(queries)] == list(PLAN.releases)
    with pytest.raises(PlanError, match=r"release 0 is planned as mean \(1, 4\), asked for as gram \(4, 4\)$"):
        PLAN.due(0, GRAM, FACTS)
    with pytest.raises(PlanError, match=r"asked for as gram \(5, 5\)$"):
        PLAN.due(1, Gram(CHAIN, constant=1.0), FACTS)
    with pytest.raises(PlanError, match=r"asked for as gradient .* with loss softmax, not sigmoid$"):
        PLAN.due(2, replace(GRADIENT, loss="softmax"), FACTS)
    # None means that there is no such number. It is not decided by earlier answers.
    with pytest.raises(PlanError, match=r"with radius a number, not None$"):
        PLAN.due(2, replace(GRADIENT, radius=2.0), FACTS)
    with pytest.raises(PlanError, match=r"with chain Clip → Clip, not Clip$"):
        PLAN.due(0, Mean((*CHAIN, Clip(1.0))), FACTS)
    with pytest.raises(PlanError, match="no release left"):
        PLAN.due(3, GRADIENT, FACTS)


def test_the_same_query_on_other_facts_is_not_the_one_that_was_planned() -> None:
    with pytest.raises(PlanError, match=r"asked for as mean \(1, 5\)"):
        PLAN.due(0, MEAN, replace(FACTS, d=5))


def test_what_earlier_answers_decide_is_no_part_of_the_form() -> None:
    other = replace(GRADIENT, theta=np.ones((5, 3)), clip=0.5, chain=(Clip(2.0),))
    assert PLAN.due(2, other, FACTS) == PLAN.releases[2]
    hash(PLAN)
