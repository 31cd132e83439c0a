"""A short form of the campaign of caps: `make torture` runs it with 8 processes, 1,000 tries and 200 kills."""

from pathlib import Path

import pytest

from tests.torture import caps, machine
from tests.torture.test_faults import ended


@pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")
def test_processes_that_train_at_once_never_pass_a_cap_together(tmp_path: Path) -> None:
    result = ended("caps", tmp_path, "--count", "0", "--processes", "3", "--attempts", "60")
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_was_spent_is_summed_without_dpfc() -> None:
    release = '[{"times": 4, "sigma": 2.0}]'
    rows = {"one": [{"releases": release}], "other": [{"releases": release}] * 2}
    assert caps.spent(rows) == 3.0
    assert caps.passed(rows, 3.0)
    assert not caps.passed(rows, 20.0)
