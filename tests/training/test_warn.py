"""What public facts say will go badly."""

import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.queries import Gram
from dpfc_cli.training.calibrate import calibrate, warnings_of, warnings_of_width
from dpfc_cli.training.request import Privacy
from tests.support import CHAIN, calibrated_at, plan_of

FACTS = Facts(n=100, m=2, d=9)


def of_noise(length: float) -> list[str]:
    """What is said where a class has a signal of 50."""
    return warnings_of(calibrated_at(FACTS, plan_of(FACTS, (Gram(CHAIN), 1.0)), 3 / length))


def test_wide_features_are_told_from_the_first_that_take_minutes() -> None:
    assert warnings_of_width(8_192) == []
    assert len(warnings_of_width(8_193)) == 1
    (said,) = warnings_of_width(10_000)
    assert "10,000 dimensions make a Gram matrix of 0.8 GB" in said


@pytest.mark.parametrize(("delta", "told"), [(1 / 1000, False), (0.00101, True)])
def test_a_delta_above_one_in_n_is_told(delta: float, told: bool) -> None:
    privacy = Privacy(epsilon=50.0, delta=delta, allow_large_delta=True)
    said = warnings_of(calibrate(METHODS["dp-whitened"], Facts(n=1000, m=2, d=4), {}, privacy))
    assert [("is larger than 1/n" in text) for text in said] == [True] * told


def test_noise_hides_a_class_from_half_of_its_signal_on() -> None:
    assert of_noise(25.0) == []
    (said,) = of_noise(25.1)
    assert "less than 2 times as much signal as there is noise (about 50 records against noise of length 25," in said


@pytest.mark.parametrize(
    ("length", "shown"), [(1234.4, "1,234"), (999_999_999.0, "999,999,999"), (1e9, "1e+09"), (1.234e20, "1.23e+20")]
)
def test_a_length_of_noise_is_shown_with_all_digits_unless_these_are_very_many(length: float, shown: str) -> None:
    assert f"noise of length {shown}, with 9 dimensions" in of_noise(length)[0]
