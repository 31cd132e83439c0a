"""Calibration: from what was asked for to a plan, its noise and its guarantee. No record is needed for it."""

import math
from typing import Any

import pytest

from dpfc_cli.errors import UserError
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting
from dpfc_cli.privacy.curator import eta_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import Calibrated, calibrate, with_options
from dpfc_cli.training.request import Privacy

FACTS = Facts(n=1000, m=3, d=4)


def guaranteed(calibrated: Calibrated) -> accounting.Guarantee:
    assert calibrated.guarantee is not None
    return calibrated.guarantee


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"epsilon": 0.0}, "epsilon must lie between"),
        ({"epsilon": 101.0}, "epsilon must lie between"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must lie between"),
        ({"epsilon": 1.0, "delta": 1.0, "allow_large_delta": True}, "delta must lie between"),
        ({"noise_multiplier": 0.0}, "noise multiplier must be a positive number"),
        ({"noise_multiplier": -1.0}, "noise multiplier must be a positive number"),
        ({"noise_multiplier": math.inf}, "noise multiplier must be a positive number"),
        ({"noise_multiplier": 0.01}, "epsilon must lie between"),
        ({"epsilon": 100.0, "delta": 1e-30}, "uses up delta"),
    ],
)
def test_numbers_out_of_range_are_refused_with_a_remedy(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says.capitalize()[1:]) as refused:
        calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(**asked))
    assert refused.value.code == "bad-value"
    assert "such as" in refused.value.remedy


def test_the_noise_of_an_epsilon_is_the_least_that_keeps_it() -> None:
    made = calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(epsilon=2.0))
    eta = eta_of(made.plan)
    assert guaranteed(made) == accounting.Guarantee(
        epsilon=2.0, delta=1e-5, mu=accounting.mu_for(2.0, 1e-5, eta), eta=eta
    )
    assert made.claimed == made.guarantee
    assert calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(epsilon=2.0, seed=1)).claimed is None


def test_full_passes_with_a_noise_multiplier_have_the_exact_epsilon() -> None:
    made = calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(noise_multiplier=5.0, delta=1e-6))
    mu = accounting.mu_of_sigma(5.0, 3)
    assert (guaranteed(made).mu, guaranteed(made).delta) == (mu, 1e-6)
    assert guaranteed(made).epsilon == accounting.epsilon_for(mu, 1e-6, eta_of(made.plan))


def test_only_sampled_releases_take_seconds_and_say_so() -> None:
    told: list[str] = []
    for rate, expected in ((None, []), (0.2, ["slow"])):
        given = {"steps": 2} | ({} if rate is None else {"sampling_rate": rate})
        made = calibrate(METHODS["dp-sgd"], FACTS, given, Privacy(noise_multiplier=3.0), lambda: told.append("slow"))
        assert told == expected
        assert made.plan.sampled is (rate is not None)


def test_nothing_is_sampled_under_replace_one_and_one_class_is_no_task() -> None:
    replaced = Facts(n=1000, m=3, d=4, adjacency="replace-one")
    with pytest.raises(UserError, match="no accounting for sampling") as sampled:
        calibrate(METHODS["dp-sgd"], replaced, {"steps": 2, "sampling_rate": 0.2}, Privacy(epsilon=1.0))
    with pytest.raises(UserError, match="one class only") as alone:
        calibrate(METHODS["dp-ls"], Facts(n=1000, m=1, d=4), {}, Privacy(epsilon=1.0))
    assert sampled.value.code == alone.value.code == "conflict"


def test_options_that_are_chosen_afterwards_leave_plan_and_guarantee_as_they_are() -> None:
    made = calibrate(METHODS["dp-sgd"], FACTS, {"steps": 2}, Privacy(epsilon=1.0))
    chosen = with_options(made, {"steps": 2, "learning_rate": 0.7}, {"name": "known"})
    assert (chosen.plan, chosen.guarantee, chosen.mechanism) == (made.plan, made.guarantee, made.mechanism)
    assert (chosen.options.learning_rate, chosen.tuning) == (0.7, {"name": "known"})
    with pytest.raises(ValueError, match="shapes the plan"):
        with_options(made, {"steps": 3}, {})
