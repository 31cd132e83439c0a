"""Calibration: from what was asked for to a plan, its noise and its guarantee. No record is needed for it."""

import math
from typing import Any

import pytest

from dpfc_cli.errors import parameter
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.ledger.public import facts_of
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import eta_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gram
from dpfc_cli.training.calibrate import Calibrated, calibrate, noised, warnings_of, warnings_of_width
from tests.support import CHAIN, calibrated_at, plan_of, refuses, replace

FACTS = Facts(n=1000, m=3, d=4)


def guaranteed(calibrated: Calibrated) -> accounting.Guarantee:
    assert calibrated.guarantee is not None
    return calibrated.guarantee


USUAL, MORE_NOISE = f"{parameter('epsilon')} such as 1", f"a larger {parameter('noise_multiplier')}"


@pytest.mark.parametrize(
    ("asked", "says", "remedy"),
    [
        ({"epsilon": 0.0}, "Epsilon", USUAL),
        ({"epsilon": 101.0}, "Epsilon", USUAL),
        ({"epsilon": 1.0, "delta": 0.0}, "Delta", USUAL),
        ({"epsilon": 1.0, "delta": 1.0, "allow_large_delta": True}, "Delta", USUAL),
        ({"noise_multiplier": 0.0}, "The noise multiplier", MORE_NOISE),
        ({"noise_multiplier": -1.0}, "The noise multiplier", MORE_NOISE),
        ({"noise_multiplier": math.inf}, "The noise multiplier", MORE_NOISE),
        ({"noise_multiplier": 0.01}, "Epsilon", MORE_NOISE),
        ({"epsilon": 100.0, "delta": 1e-30}, "The sampler's", USUAL),
    ],
)
def test_numbers_out_of_range_are_refused_with_a_remedy(asked: dict[str, Any], says: str, remedy: str) -> None:
    with refuses("bad-value", match=f"^{says} ") as refused:
        calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(**asked))
    assert refused.value.remedy == f"Choose {remedy}, or {parameter('delta')} such as 1e-5."


def test_the_noise_of_an_epsilon_is_the_least_that_keeps_it() -> None:
    made = calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(epsilon=2.0))
    eta = eta_of(made.plan)
    assert guaranteed(made) == accounting.Guarantee(
        epsilon=2.0, delta=1e-5, mu=accounting.mu_for(2.0, 1e-5, eta), eta=eta
    )
    assert made.claimed == made.guarantee
    assert calibrate(METHODS["dp-ls"], FACTS, {}, Privacy(epsilon=2.0, seed=1)).claimed is None


def test_the_conversion_of_zcdp_takes_more_noise_and_what_is_claimed_is_the_exact_epsilon() -> None:
    asked, published = Privacy(epsilon=2.0, accounting="zcdp"), {"as_published": True}
    made = calibrate(METHODS["dp-ls"], FACTS, published, asked)
    spent, delta = guaranteed(made), 1e-5
    assert spent.mu == pytest.approx(accounting.zcdp_mu(2.0, delta))
    assert accounting.zcdp_epsilon(spent.mu, delta) == pytest.approx(2.0)
    assert spent.epsilon == accounting.epsilon_for(spent.mu, delta, spent.eta) < 1.8
    assert math.fsum(1 / sigma**2 for sigma in made.noise.sigmas) == pytest.approx(spent.mu**2)
    with refuses("conflict"):
        calibrate(METHODS["dp-adam"], FACTS, {**published, "sampling_rate": 0.1}, asked)
    assert calibrate(METHODS["dp-ls"], FACTS, published, Privacy()).options.budget_split != (1 / 3,) * 3, "no noise"


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
        exact = poisson.epsilon_for(*poisson.sampled_of(made.plan, guaranteed(made).mu), 1e-5, guaranteed(made).eta)
        assert guaranteed(made).epsilon == exact


def test_the_noise_of_samples_is_the_least_that_keeps_an_epsilon() -> None:
    plan = plan_of(FACTS, (Gram(CHAIN), 1.0), rate=0.5)
    found, _ = noised(plan, FACTS, Privacy(epsilon=1.0))
    assert (found.epsilon, found.delta) == (1.0, 1e-5)
    spent = poisson.epsilon_for(*poisson.sampled_of(plan, found.mu), 1e-5, found.eta)
    assert 1 - 2e-6 <= spent <= 1


def test_where_samples_take_the_least_noise_the_epsilon_is_what_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the noise ends there. It is made for the release that has the least noise."""
    plan = plan_of(FACTS, (Gram(CHAIN), 0.9), (Gram(CHAIN), 0.1), rate=0.5)

    def stated(sigma: float) -> accounting.Guarantee:
        monkeypatch.setattr(poisson, "mu_for", lambda *given: 1 / (sigma * 0.9**0.5))
        found, mechanism = noised(plan, FACTS, Privacy(epsilon=100.0))
        assert min(mechanism.sigmas) == pytest.approx(sigma)
        return found

    least = stated(poisson.LEAST_SAMPLED_SIGMA)
    assert least.epsilon == poisson.epsilon_for(*poisson.sampled_of(plan, least.mu), 1e-5, least.eta) < 50
    assert stated(1.005 * poisson.LEAST_SAMPLED_SIGMA).epsilon == 100.0


def test_full_passes_spend_what_is_asked_for_with_any_noise_and_any_neighbours() -> None:
    for facts in (FACTS, replace(FACTS, adjacency="replace-one")):
        found, mechanism = noised(plan_of(facts, (Gram(CHAIN), 1.0)), facts, Privacy(epsilon=99.9999))
        assert found.epsilon == 99.9999
        assert max(mechanism.sigmas) < poisson.LEAST_SAMPLED_SIGMA


def test_nothing_is_sampled_under_replace_one_and_one_class_is_no_task() -> None:
    replaced = Facts(n=1000, m=3, d=4, adjacency="replace-one")
    with refuses("conflict", parameter="sampling_rate") as sampled:
        calibrate(METHODS["dp-sgd"], replaced, {"steps": 2, "sampling_rate": 0.2}, Privacy(epsilon=1.0))
    with refuses("conflict", parameter="classes") as alone:
        calibrate(METHODS["dp-ls"], Facts(n=1000, m=1, d=4), {}, Privacy(epsilon=1.0))
    assert sampled.value.code == alone.value.code == "conflict"


@pytest.mark.parametrize("given", [{"gradient_clip": 1.0}, {"gradient_clip": 1.0, "steps": 3}])
def test_options_without_an_effect_are_refused(given: dict[str, Any]) -> None:
    with refuses("conflict", parameter="gradient_clip"):
        calibrate(METHODS["dp-fc"], FACTS, given, Privacy())


def test_too_small_a_sample_is_refused_before_anything_slow() -> None:
    given, told = {"steps": 2, "sampling_rate": 1e-9}, list[str]()
    for privacy in (Privacy(noise_multiplier=3.0), Privacy(epsilon=1.0)):
        with refuses("bad-value", match="sampling rate"):
            calibrate(METHODS["dp-sgd"], FACTS, given, privacy, lambda: told.append("slow"))
    assert not told


def test_a_delta_above_one_over_n_is_refused_unless_insisted_on(features: FeatureSet) -> None:
    method, facts = METHODS["dp-ls"], facts_of(features)
    with refuses("bad-value", parameter="delta"):
        calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01))
    made: Calibrated = calibrate(method, facts, {}, Privacy(epsilon=1.0, delta=0.01, allow_large_delta=True))
    assert made.guarantee is not None
    assert made.guarantee.delta == 0.01


NINE = Facts(n=100, m=2, d=9)


def of_noise(length: float) -> list[str]:
    """What is said where a class has a signal of 50."""
    return warnings_of(calibrated_at(NINE, plan_of(NINE, (Gram(CHAIN), 1.0)), 3 / length))


def test_wide_features_are_told_from_the_first_that_take_minutes() -> None:
    assert warnings_of_width(8_192) == []
    assert len(warnings_of_width(8_193)) == 1
    (said,) = warnings_of_width(10_000)
    assert "10,000 dimensions make a Gram matrix of 0.8 GB" in said
    assert "about 4 minutes" in said
    assert "6 GB of memory" in said


@pytest.mark.parametrize(("delta", "told"), [(1 / 1000, False), (0.00101, True)])
def test_a_delta_above_one_in_n_is_told(delta: float, told: bool) -> None:
    privacy = Privacy(epsilon=50.0, delta=delta, allow_large_delta=True)
    said = warnings_of(calibrate(METHODS["dp-whitened"], Facts(n=1000, m=2, d=4), {}, privacy))
    assert [("is larger than 1/n" in text) for text in said] == [True] * told


def test_too_few_steps_and_samples_that_most_records_are_not_in_are_told() -> None:
    for method, given, told in (
        ("dp-sgd", {}, 0),
        ("dp-adam", {"steps": 10}, 0),
        ("dp-sgd", {"steps": 10}, 1),
        ("dp-momentum", {"steps": 10}, 1),
        ("dp-momentum", {"steps": 10, "learning_rate": 1.0}, 0),
        ("dp-adam", {"steps": 10, "sampling_rate": 0.1}, 0),
        ("dp-adam", {"steps": 10, "sampling_rate": 0.09}, 1),
        # The rate is made for a length of vectors that nobody knows.
        ("dp-fc", {"as_published": True}, 1),
        ("dp-fc", {"as_published": True, "learning_rate": 1.0}, 0),
        ("dp-ls", {"as_published": True}, 0),
    ):
        facts = Facts(n=10_000, m=3, d=4)
        made = calibrate(METHODS[method], facts, given, Privacy(noise_multiplier=5.0))
        assert len(warnings_of(made)) == told, given


def test_noise_hides_a_class_from_its_signal_on_and_what_is_left_is_said() -> None:
    assert of_noise(50.0) == []
    for length, left in ((50.5, 50), (500.0, 5)):
        (said,) = of_noise(length)
        assert f"(about 50 records against noise of length {length:.0f}," in said
        assert f"Expect about {left} % or more of what can be learned without noise" in said


def test_of_other_methods_than_it_was_fitted_to_less_is_expected() -> None:
    few = Facts(n=1000, m=10, d=64)
    for method, words in (("dp-fc", "% or more"), ("dp-newton", "% or less"), ("dp-adam", "% or less")):
        (said,) = warnings_of(calibrate(METHODS[method], few, {}, Privacy(epsilon=0.1)))
        assert words in said
