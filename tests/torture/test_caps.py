"""A short form of the campaign of caps: `make torture` runs it with 8 processes and 1,000 tries."""

from pathlib import Path

import pytest

from tests.torture import caps, machine
from tests.torture.test_faults import ended
from tests.torture.witness import Seen


@pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")
def test_processes_that_charge_at_once_never_pass_a_cap_together(tmp_path: Path) -> None:
    result = ended("caps", tmp_path, "--count", "3", "--processes", "3", "--attempts", "60")
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_was_spent_is_summed_without_dpfc() -> None:
    """Of each set the most used split; a set of which nothing is said counts for everybody."""
    sets = [{"kind": "set", "set": name, "population": population} for name, population in caps.SETS.items()]
    releases = [{"times": 4, "sigma": 2.0}]
    charges = [
        {"kind": "charge", "set": name, "split": split, "releases": releases}
        for name, split in (("east", "train"), ("east", "train"), ("east", "test"), ("east-again", "test"))
    ]
    seen = Seen(files={}, facts=[*sets, *charges], wrong=[])
    assert (caps.spent(seen, "east"), caps.spent(seen, "west")) == (3.0, 0.0)
    more = [{"kind": "charge", "set": "unsaid", "split": "train", "releases": releases}]
    for epsilon, over in ((3.0, True), (30.0, False)):
        cap = [{"kind": "cap", "population": "east", "epsilon": epsilon, "delta": 1e-5}]
        assert bool(caps.passed(Seen(files={}, facts=[*seen.facts, *more, *cap], wrong=[]))) is over
