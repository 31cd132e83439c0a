"""What public facts say will go badly."""

import pytest

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import calibrate
from dpfc_cli.training.request import Privacy
from dpfc_cli.training.warn import WIDE, warnings_of, warnings_of_width


def test_wide_features_are_told_from_the_first_that_take_minutes() -> None:
    assert warnings_of_width(WIDE) == []
    (said,) = warnings_of_width(10_000)
    assert "10,000 dimensions make a Gram matrix of 0.8 GB" in said


@pytest.mark.parametrize(("delta", "told"), [(1 / 1000, False), (0.00101, True)])
def test_a_delta_above_one_in_n_is_told(delta: float, told: bool) -> None:
    privacy = Privacy(epsilon=50.0, delta=delta, allow_large_delta=True)
    said = warnings_of(calibrate(METHODS["dp-whitened"], Facts(n=1000, m=2, d=4), {}, privacy))
    assert [("is larger than 1/n" in text) for text in said] == [True] * told
