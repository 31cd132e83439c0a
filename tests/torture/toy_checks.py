"""Tests of `toy`. Each of them leaves some faults unseen."""

from tests.torture.toy import clipped


def test_a_large_value_is_clipped() -> None:
    assert clipped(3, 2) == 2


def test_a_small_value_stays() -> None:
    assert clipped(1, 2) == 1
