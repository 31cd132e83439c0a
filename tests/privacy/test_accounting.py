"""(ε, δ) is exact, never too optimistic, and fast to compute."""

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
def test_calibration_never_overshoots_and_errs_by_less_than_2e_9(epsilon: float, delta: float) -> None:
    mu = accounting.mu_for(epsilon, delta)
    assert delta_in_100_digits(epsilon, mu) <= delta
    assert delta_in_100_digits(epsilon, mu * (1 + 1.5e-9)) > delta
    back = accounting.epsilon_for(mu, delta)
    assert delta_in_100_digits(back, mu) <= delta
    assert back < accounting.LEAST_EPSILON * (1 + 2e-9) or delta_in_100_digits(back * (1 - 2.5e-9), mu) > delta


def test_the_samplers_distance_is_paid_for_out_of_delta() -> None:
    eta = 1e-7
    mu = accounting.mu_for(1.0, 1e-5, eta)
    assert mu < accounting.mu_for(1.0, 1e-5)
    assert delta_in_100_digits(1.0, mu) + (1 + math.e) * eta <= 1e-5
    with pytest.raises(ValueError, match="uses up delta"):
        accounting.mu_for(8.0, 1e-5, 1e-8)


def test_an_epsilon_below_the_least_is_stated_as_the_least() -> None:
    assert accounting.epsilon_for(1e-9, 1e-5) == pytest.approx(accounting.LEAST_EPSILON)
    # Near it `delta_of` errs most, here to the wrong side of the root.
    for mu, delta in (
        (3.7963525717138885e-05, 1.5019059705345477e-08),
        (1.6997460956321172e-05, 4.555603385586367e-24),
    ):
        assert delta_in_100_digits(accounting.epsilon_for(mu, delta), mu) <= delta


MUS = (1e-3, 0.27, 1.0, 3.0)


@pytest.mark.parametrize("mu", MUS)
def test_the_best_guess_is_what_delta_of_epsilon_says_by_duality(mu: float) -> None:
    """For every ε the power is at most e^ε·α + δ(ε), with equality for one ε. The accuracy is (1 + δ(0))/2."""
    found = accounting.gaussian_attack(mu, 0.05)
    lines = [math.exp(i * mu / 200) * 0.05 + accounting.delta_of(i * mu / 200, mu) for i in range(1, 2000)]
    assert found.power == pytest.approx(min(lines), rel=1e-4)
    assert found.power <= min(lines) * (1 + 1e-12)
    assert found.accuracy == pytest.approx((1 + float(delta_in_100_digits(0.0, mu))) / 2, rel=1e-12)


def test_at_epsilon_1_a_guess_is_right_in_55_3_percent_and_finds_8_4_at_5_percent_false_alarms() -> None:
    found = accounting.gaussian_attack(accounting.mu_for(1.0, 1e-5), 0.05)
    assert (found.accuracy, found.power) == pytest.approx((0.5533, 0.0843), abs=1e-4)


@pytest.mark.parametrize("mu", MUS)
def test_k_steps_between_neighbours_are_k_times_mu(mu: float) -> None:
    power = 0.05
    for k in range(1, 4):
        power = accounting.gaussian_attack(mu, power).power
        assert accounting.gaussian_attack(k * mu, 0.05).power == pytest.approx(power, rel=1e-9)


def test_an_imperfect_sampler_helps_the_guess() -> None:
    plain, helped = accounting.gaussian_attack(0.5, 0.05), accounting.gaussian_attack(0.5, 0.05, 1e-3)
    assert helped.accuracy == pytest.approx(plain.accuracy + 1e-3)
    assert helped.power == pytest.approx(accounting.gaussian_attack(0.5, 0.051).power + 1e-3)
    assert accounting.gaussian_attack(0.5, 0.05, 1.0) == accounting.Attack(accuracy=1.0, power=1.0)


@pytest.mark.parametrize("alpha", [1e-3, 0.05, 0.4, 0.9])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 0.01), (8.0, 1e-5), (100.0, 1e-5)])
def test_the_bound_for_epsilon_and_delta_is_reached_by_the_leakiest_mechanism(
    epsilon: float, delta: float, alpha: float
) -> None:
    """With probability δ it reveals the data set. Otherwise it reveals the likelier one, with odds of e^ε."""
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    first, second = (0.0, 1 - delta - likely, likely, delta), (delta, likely, 1 - delta - likely, 0.0)
    power, left = 0.0, alpha
    for p, q in zip(first, second, strict=True):
        power += q * (min(left / p, 1.0) if p else 1.0)
        left = max(left - p, 0.0)
    found = accounting.attack(epsilon, delta, alpha)
    assert found.power == pytest.approx(power, rel=1e-9)
    assert found.accuracy == pytest.approx(sum(map(max, first, second)) / 2, rel=1e-9)


@pytest.mark.parametrize("mu", MUS)
def test_what_is_known_of_a_gaussian_says_more_than_its_epsilon_and_delta(mu: float) -> None:
    of_mu = accounting.gaussian_attack(mu, 0.05)
    of_epsilon = accounting.attack(accounting.epsilon_for(mu, 1e-5), 1e-5, 0.05)
    assert of_mu.accuracy < of_epsilon.accuracy
    assert of_mu.power < of_epsilon.power


def test_the_papers_conversion_inverts() -> None:
    assert accounting.zcdp_epsilon(accounting.zcdp_mu(2.5, 1e-6), 1e-6) == pytest.approx(2.5)


def test_no_privacy_is_infinite_and_no_release_is_free() -> None:
    assert math.isinf(accounting.epsilon_for(math.inf, 1e-5))
    assert accounting.epsilon_for(0.0, 1e-5) == 0
    assert accounting.delta_of(1.0, 0.0) == 0


def test_the_default_delta_is_the_papers_where_that_is_below_one_in_n_and_falls_faster_elsewhere() -> None:
    """The sets of the catalogue keep the δ of the paper's tables. Where δ = 1e-5 is no longer below 1/n, n·δ falls."""
    assert {accounting.default_delta(n) for n in (1_400, 50_000, 60_000, 100_000)} == {1e-5}
    for n in (100_001, 1_281_167, 10**7, 2**53):
        assert accounting.default_delta(n) * n == pytest.approx(1e5 / n)
        accounting.check_privacy(1.0, accounting.default_delta(n))


@pytest.mark.parametrize("mu", [10.5, 11.0, 12.0])
def test_a_large_epsilon_is_found_though_the_samplers_distance_soon_takes_over(mu: float) -> None:
    """A search that doubles ε goes from 104.8 to 209.7, where e^ε·η alone exceeds δ."""
    found = accounting.epsilon_for(mu, 1e-5, 1e-68)
    assert found == pytest.approx(accounting.epsilon_for(mu, 1e-5), rel=1e-6)
    assert 90 < found < 130


@pytest.mark.parametrize(("epsilon", "mu"), [(1e-4, 10.2), (1.0, 10.5), (8.0, 12.0), (50.0, 18.0), (100.0, 40.0)])
def test_delta_keeps_its_digits_where_almost_nothing_is_private(epsilon: float, mu: float) -> None:
    assert epsilon / mu - mu / 2 < -5
    assert abs(accounting.delta_of(epsilon, mu) - delta_in_100_digits(epsilon, mu)) < 4e-16


def test_out_of_range_is_refused() -> None:
    for epsilon in (0, 9e-5, -1, 101, math.nan, math.inf):
        with pytest.raises(ValueError, match="must lie between"):
            accounting.mu_for(epsilon, 1e-5)
    for delta in (0.0, 9e-31, 1.0, 2.0, math.nan):
        for wrong in (accounting.mu_for, accounting.epsilon_for):
            with pytest.raises(ValueError, match="must lie between"):
                wrong(0.5, delta)


def test_no_smaller_epsilon_would_hold_with_the_samplers_distance() -> None:
    eta, mu = 1e-7, 0.5
    found = accounting.epsilon_for(mu, 1e-5, eta)
    assert delta_in_100_digits(found, mu) + (1 + math.exp(found)) * eta <= 1e-5
    assert math.isinf(accounting.epsilon_for(mu, 1e-5, 1e-5))
    smaller = found * (1 - 1e-8)
    assert delta_in_100_digits(smaller, mu) + (1 + math.exp(smaller)) * eta > 1e-5


def test_no_power_is_larger_than_1() -> None:
    assert accounting.gaussian_attack(5.0, 0.9, 0.05).power == 1
    assert accounting.gaussian_attack(0.5, 0.5, 0.5).power == 1
    assert accounting.attack(1.0, 0.5, 0.9).power == 1
