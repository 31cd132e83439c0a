"""A method that does not follow its plan is found out before the charge."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS, dp_fc
from dpfc_cli.methods.method import Method, Solution
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Curator
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import Oracle, PlanError
from dpfc_cli.privacy.queries import Gradient, Query
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.charge import charge
from dpfc_cli.training.check import check, rehearse
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Privacy, facts_of
from tests.hostile import standing
from tests.support import set_with
from tests.training.requests import charges, checked, request


def other_method(solve: Any) -> Method[Any, Any]:
    return Method(**{**vars(METHODS["dp-fc"]), "solve": solve})


def one_gradient_less(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(oracle, facts, replace(options, steps=(options.steps or 0) - 1))


def another_loss(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(oracle, facts, replace(options, loss="softmax"))


class Unbiased(Oracle):
    """Asks for gradients without a bias."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def release(self, query: Query) -> np.ndarray:
        if isinstance(query, Gradient):
            query = replace(query, theta=query.theta[:-1], constant=0.0)
        return self._oracle.release(query)


def without_bias(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    return dp_fc.solve(Unbiased(oracle), facts, options)


@pytest.mark.parametrize("solve", [one_gradient_less, another_loss, without_bias])
def test_a_method_that_does_not_follow_its_plan_is_found_out_before_the_charge(
    features: FeatureSet, solve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated = calibrate(other_method(solve), facts_of(features), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(PlanError):
        check(request(features), calibrated, Observer())
    assert charges(features) == ()


def set_of(facts: Facts) -> FeatureSet:
    names = tuple(map(str, range(facts.m)))
    return set_with(
        Manifest(
            classes=names,
            dim=facts.d,
            dtype="float32",
            labels_per_record=facts.k,
            origin="asserted",
            splits={},
            backbone={"name": "x"},
            source={"identity": {}},
        )
    )


def test_a_rehearsal_is_small_and_its_answers_say_nothing() -> None:
    seen: list[tuple[Facts, int | None]] = []
    answers: list[np.ndarray] = []

    class Listening(Oracle):
        def __init__(self, oracle: Oracle) -> None:
            self._oracle = oracle

        def release(self, query: Query) -> np.ndarray:
            answers.append(self._oracle.release(query))
            return answers[-1]

    def solve(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
        seen.append((facts, options.steps))
        return dp_fc.solve(Listening(oracle), facts, options)

    for m, steps in ((40, 5_000), (2, 2)):
        facts = Facts(n=1000, m=m, d=300)
        rehearse(
            calibrate(other_method(solve), facts, {"steps": steps}, Privacy(epsilon=1.0)), set_of(facts), standing()
        )
    assert seen == [(Facts(n=3, m=3, d=3), 3), (Facts(n=3, m=2, d=3), 2)]
    assert not any(answer.any() for answer in answers)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_passes_its_rehearsal(method: str) -> None:
    given = {"steps": 3} if "steps" in METHODS[method].declared else {}
    for facts in (Facts(n=1000, m=40, d=300), Facts(n=50, m=2, d=2, k=2, adjacency="replace-one")):
        rehearse(calibrate(METHODS[method], facts, given, Privacy(epsilon=1.0)), set_of(facts), standing())
        rehearse(calibrate(METHODS[method], facts, {}, Privacy()), set_of(facts), standing("non-private"))


def single_precision(oracle: Oracle, facts: Facts, options: dp_fc.Options) -> Solution:
    """Asks with a θ that no proof covers."""

    class Single(Oracle):
        def release(self, query: Query) -> np.ndarray:
            if isinstance(query, Gradient):
                query = replace(query, theta=query.theta.astype(np.float32))
            return oracle.release(query)

    return dp_fc.solve(Single(), facts, options)


def test_a_query_that_no_proof_covers_is_found_out_before_the_charge(features: FeatureSet) -> None:
    calibrated = calibrate(other_method(single_precision), facts_of(features), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(ValueError, match="finite float64 array"):
        check(request(features), calibrated, Observer())
    assert charges(features) == ()


def test_a_calibration_for_other_records_is_refused(features: FeatureSet) -> None:
    other = calibrate(METHODS["dp-fc"], replace(facts_of(features), n=60), {"steps": 3}, Privacy(epsilon=1.0))
    with pytest.raises(ValueError, match="calibrated for other records"):
        check(request(features), other, Observer())


def test_the_curator_refuses_a_query_of_another_form_than_planned(features: FeatureSet) -> None:
    """Of the same kind and shape, with another loss."""
    charged = charge(checked(features, method="dp-sgd"))
    mechanism = charged.checked.calibrated.mechanism
    assert mechanism is not None
    (first, *_) = mechanism.plan.releases
    oracle = Curator(mechanism, charged, SeededBits(0))
    softmax = Gradient((Clip(1.0),), np.zeros(first.shape), clip=1.0, loss="softmax")
    with pytest.raises(PlanError, match="of another form"):
        oracle.release(softmax)
