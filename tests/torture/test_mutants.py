"""The short form of mutation testing: faults that would make ε a lie are seen, each by a test that takes little time.

`python -m tests.torture.mutants` plants all faults. That takes hours.
"""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from tests.torture import mutants


class Fault(NamedTuple):
    """A mutant, and a test that fails on it."""

    module: str
    function: str
    line: str
    becomes: str
    test: str


FAULTS = {}
TOY, CHECKS = mutants.ROOT / "tests/torture/toy.py", "tests/torture/toy_checks.py::"
LARGE, SMALL = f"{CHECKS}test_a_large_value_is_clipped", f"{CHECKS}test_a_small_value_stays"

PROGRAM = """
import json, sys
from tests.torture import mutants, test_mutants
mutants.load(("jax.numpy", "scipy.stats", "hypothesis.extra.numpy", "mpmath"))
json.dump(test_mutants.verdicts(), sys.stdout)
"""


def verdicts() -> dict[str, bool | list[str]]:
    """Which named faults are killed, and which mutants of the toy survive its tests."""
    said: dict[str, bool | list[str]] = {}
    for module in dict.fromkeys(fault.module for fault in FAULTS.values()):
        for mutant, tree in mutants.planted(module, mutants.source_of(module)):
            for name, fault in FAULTS.items():
                if mutant.name == fault[:4]:
                    path = mutants.ROOT / "dpfc_cli" / module
                    code = compile(tree, str(path), "exec")
                    said[name] = mutants.verdict_of(mutants.import_name(module), path, code, {fault.test: 1.0}).killed
    for name, tests in (("both tests", (LARGE, SMALL)), ("one test", (LARGE,))):
        said[name] = [
            mutant.after
            for mutant, tree in mutants.planted("toy.py", TOY.read_text())
            if not mutants.verdict_of(
                "tests.torture.toy", TOY, compile(tree, str(TOY), "exec"), dict.fromkeys(tests, 1.0)
            ).killed
        ]
    return said


@pytest.fixture(scope="module")
def said() -> dict[str, bool | list[str]]:
    """In a process of its own, because each mutant is a fork of one that has imported nothing of dpfc_cli."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, cwd=mutants.ROOT)
    found: dict[str, bool | list[str]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_would_make_epsilon_a_lie_is_seen(fault: str, said: dict[str, bool | list[str]]) -> None:
    assert said[fault] is True


def test_a_mutant_survives_if_no_test_looks_or_if_it_does_the_same(said: dict[str, bool | list[str]]) -> None:
    same = "if value >= most:"
    assert said["both tests"] == [same]
    assert said["one test"] == ["if True:", same, "return None"]


def test_every_mutant_that_is_argued_away_exists_and_has_a_reason() -> None:
    argued = mutants.reasons()
    made = {
        mutant.name
        for module in {name[0] for name in argued}
        for mutant, _ in mutants.planted(module, mutants.source_of(module))
    }
    assert set(argued) <= made
    assert all(len(reason.split()) > 3 for reason in argued.values())
