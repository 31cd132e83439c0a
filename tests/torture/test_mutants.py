"""Mutation testing sees what tests do not look at. (The campaign itself, `tests.torture.mutants`, takes hours.)"""

import json
import subprocess
import sys

from tests.torture import planted, trials

TOY, CHECKS = planted.ROOT / "tests/torture/toy.py", "tests/torture/toy_checks.py::"
LARGE, SMALL = f"{CHECKS}test_a_large_value_is_clipped", f"{CHECKS}test_a_small_value_stays"
PROGRAM = """
import json, sys
from tests.torture import test_mutants
json.dump(test_mutants.survivors(), sys.stdout)
"""


def survivors() -> list[list[str]]:
    """Which mutants of the toy survive both of its tests, and which survive one of them."""
    trials.load(())
    sound = compile(TOY.read_text(), str(TOY), "exec")
    assert not trials.verdict_of("tests.torture.toy", TOY, sound, {LARGE: 1.0, SMALL: 1.0}).killed
    return [
        [
            mutant.after
            for mutant, tree in planted.planted("toy.py", TOY.read_text())
            if not trials.verdict_of("tests.torture.toy", TOY, compile(tree, str(TOY), "exec"), tests).killed
        ]
        for tests in ({LARGE: 1.0, SMALL: 1.0}, {LARGE: 1.0})
    ]


def test_a_mutant_survives_if_no_test_looks_or_if_it_does_the_same() -> None:
    """In a process of its own, because each mutant is a fork of one that has imported nothing of dpfc_cli."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, cwd=planted.ROOT)
    same = "if value >= most:"
    assert json.loads(ended.stdout) == [[same], ["if True:", same, "return None"]]
