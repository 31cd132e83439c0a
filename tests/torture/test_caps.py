"""A short form of the campaign of caps: `make torture` runs it with 8 processes, 1,000 tries and 200 kills."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.extraction.importing import import_features
from dpfc_cli.training.cap import set_cap
from tests.support import blobs
from tests.torture import caps, machine

PROGRAM = """
import json, sys
from pathlib import Path
import dpfc_cli.training.charge
from tests.torture import caps
case = json.loads(sys.argv[2])
sys.exit("; ".join(caps.race(case, Path(sys.argv[1]))) or None)
"""


@pytest.mark.skipif(machine.compiler() is None, reason="needs Linux")
@pytest.mark.parametrize("race", ["three ledgers", "sets that share records"])
def test_processes_that_train_at_once_never_pass_a_cap_together(tmp_path: Path, race: str) -> None:
    """On three sets of the same records, or on two that share some. The cap is set for one of them, and the others have
    no ledger yet.
    """
    work = tmp_path / "work"
    work.mkdir()
    x, y = blobs(60, 4, 3)
    np.savez(work / "raw.npz", train_x=x, train_y=y)
    features = import_features(work / "raw.npz", work / "features" / "blobs", classes=3).features
    set_cap(features, 1.0)
    case = {"job": "race", "what": race, "cap": 1.0, "processes": 3, "attempts": 45, "seed": 0}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(case)],
        check=False,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout


def test_what_was_spent_is_summed_without_dpfc() -> None:
    release = '[{"times": 4, "sigma": 2.0}]'
    rows = {"one": [{"releases": release}], "other": [{"releases": release}] * 2}
    assert caps.spent(rows) == 3.0
    assert caps.passed(rows, 3.0)
    assert not caps.passed(rows, 20.0)
