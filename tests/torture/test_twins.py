"""A short form of the campaign of equal trainings: `make torture` runs 2,000 schedules."""

from pathlib import Path

import pytest

from tests.torture import machine
from tests.torture.test_faults import ended


@pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")
def test_equal_trainings_at_once_make_no_head_that_is_not_charged_and_charge_nothing_twice(tmp_path: Path) -> None:
    result = ended("twins", tmp_path, "--count", "12")
    assert result.returncode == 0, result.stdout + result.stderr
