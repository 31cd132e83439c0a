"""A short form of the campaign of kills: `make torture` runs it for hours."""

from pathlib import Path

import pytest

from tests.torture import machine
from tests.torture.test_faults import ended


@pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")
def test_a_command_that_is_killed_leaves_what_the_next_run_can_use(tmp_path: Path) -> None:
    jobs = ("import", "train", "ledger")
    result = ended("kills", tmp_path, "--count", "10", "--ways", "call", "write", "--jobs", *jobs)
    assert result.returncode == 0, result.stdout + result.stderr
