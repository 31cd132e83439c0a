"""(ε, δ) is exact, never overshoots, and is quick."""

import math

import mpmath
import pytest

from dpfc_cli.privacy import accounting

EPSILONS = (1e-4, 1e-3, 0.01, 0.1, 1.0, 8.0, 50.0, 100.0)
DELTAS = (1e-30, 1e-20, 1e-12, 1e-9, 1e-5, 1e-2)


def delta_in_100_digits(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(100):
        e, u = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(-e / u + u / 2) - mpmath.exp(e) * mpmath.ncdf(-e / u - u / 2)


@pytest.mark.parametrize(
    ("releases", "epsilon", "sigma"),
    [
        (3, 0.01, 422.249), (3, 0.1, 53.260), (3, 1, 6.4616), (3, 8, 1.0396),
        (11, 0.01, 808.545), (11, 0.1, 101.985), (11, 1, 12.3731), (11, 8, 1.9907),
    ],
)  # fmt: skip
def test_golden_noise_multipliers(releases: int, epsilon: float, sigma: float) -> None:
    assert math.sqrt(releases) / accounting.mu_for(epsilon, 1e-5) == pytest.approx(
        sigma, abs=5e-4 if sigma > 50 else 5e-5
    )


def test_sigma_10_with_eleven_releases_is_1_264_exactly_and_1_647_by_the_papers_conversion() -> None:
    mu = accounting.mu_of_sigma(10, 11)
    assert accounting.epsilon_for(mu, 1e-5) == pytest.approx(1.264, abs=5e-4)
    assert accounting.zcdp_epsilon(mu, 1e-5) == pytest.approx(1.647, abs=6e-4)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_calibration_never_overshoots_and_errs_by_less_than_1e_6(epsilon: float, delta: float) -> None:
    mu = accounting.mu_for(epsilon, delta)
    assert delta_in_100_digits(epsilon, mu) <= delta
    assert delta_in_100_digits(epsilon, mu * (1 + 1e-6)) > delta
    back = accounting.epsilon_for(mu, delta)
    assert delta_in_100_digits(back, mu) <= delta


def test_calibration_agrees_with_dp_accounting() -> None:
    from dp_accounting import get_sigma_gaussian

    for epsilon in (0.1, 1.0, 8.0):
        assert 1 / accounting.mu_for(epsilon, 1e-5) == pytest.approx(get_sigma_gaussian(epsilon, 1e-5), rel=1e-6)


def test_the_samplers_distance_is_paid_for_out_of_delta() -> None:
    eta = 1e-7
    mu = accounting.mu_for(1.0, 1e-5, eta)
    assert mu < accounting.mu_for(1.0, 1e-5)
    assert delta_in_100_digits(1.0, mu) + (1 + math.e) * eta <= 1e-5
    with pytest.raises(ValueError, match="uses up delta"):
        accounting.mu_for(8.0, 1e-5, 1e-8)


def test_with_sigma_the_samplers_distance_raises_epsilon() -> None:
    eta, mu = 1e-9, 0.5
    epsilon = accounting.epsilon_for(mu, 1e-5, eta)
    assert epsilon > accounting.epsilon_for(mu, 1e-5)
    assert delta_in_100_digits(epsilon, mu) + (1 + math.exp(epsilon)) * eta <= 1e-5
    assert math.isinf(accounting.epsilon_for(mu, 1e-5, 1e-5))


def test_what_is_nearly_free_is_stated_as_the_least_epsilon() -> None:
    assert accounting.epsilon_for(1e-9, 1e-5) == pytest.approx(accounting.LEAST_EPSILON)


OUT_OF_RANGE = [
    *((epsilon, 1e-5) for epsilon in (0, 9e-5, -1, 101, math.nan, math.inf)),
    *((1, delta) for delta in (0, 9e-31, 1, 2, math.nan)),
]


@pytest.mark.parametrize(("epsilon", "delta"), OUT_OF_RANGE)
def test_out_of_range_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        accounting.mu_for(epsilon, delta)


def test_the_papers_conversion_inverts() -> None:
    assert accounting.zcdp_epsilon(accounting.zcdp_mu(2.5, 1e-6), 1e-6) == pytest.approx(2.5)


def test_no_privacy_is_infinite_and_no_release_is_free() -> None:
    assert math.isinf(accounting.epsilon_for(math.inf, 1e-5))
    assert accounting.epsilon_for(0.0, 1e-5) == 0
    assert accounting.default_delta(1_281_167) == 1 / 1_281_167
    assert accounting.default_delta(50_000) == 1e-5


@pytest.mark.parametrize("mu", [10.5, 11.0, 12.0])
def test_a_large_epsilon_is_found_though_the_samplers_distance_soon_takes_over(mu: float) -> None:
    """Steps that double go from 104.8 to 209.7, where e^ε·η alone exceeds δ."""
    found = accounting.epsilon_for(mu, 1e-5, 1e-68)
    assert found == pytest.approx(accounting.epsilon_for(mu, 1e-5), rel=1e-6)
    assert 90 < found < 130
