"""Short forms of the campaigns that `make torture` runs for hours, and tests of what they are made of."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from tests.torture import campaign, faults, machine, scenes, twins
from tests.torture.scenes import Reference
from tests.torture.witness import Seen

ROOT = Path(__file__).parents[2]


def main(results: str) -> None:
    """Both campaigns, in one place. Faults: on three of the files that a training writes."""
    campaign.begun()
    few = faults.asked(["--count", "3", "--jobs", "train", "--faults", "ENOSPC", "torn write"])
    with machine.scratch() as root:
        scene, three = scenes.made(root), Namespace(count=3, seed=0, workers=1, minutes=1e9)
        for each, options in ((faults, few), (twins, three)):
            options.results = Path(results, each.__name__)
            assert each.tried(scene, options) == 0


def test_what_is_killed_or_fails_or_runs_at_once_breaks_nothing_and_charges_nothing_twice(tmp_path: Path) -> None:
    if machine.compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    line = [sys.executable, "-c", f"from tests.torture import test_campaigns; test_campaigns.main({str(tmp_path)!r})"]
    # With the shim in it, the campaign need not start itself again.
    environment = {**os.environ, "LD_PRELOAD": str(machine.compiled(tmp_path))}
    ended = subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def done(code: int, said: str = "") -> machine.Ended:
    return machine.Ended(code=code, signal=None, out="", err=said)


REFUSED = "Error: 'heads/a' cannot be written."
CHARGED = f"{REFUSED} The training was charged."
CHARGE = {"kind": "charge", "id": "c"}
WRITTEN = {"kind": "outcome", "id": "o", "charge": "c", "state": "written", "head": "a.safetensors", "sha256": "0"}
HEAD = {"heads/a.safetensors": "0"}


@pytest.mark.parametrize(
    ("files", "facts", "code", "said", "broken"),
    [
        ({}, [CHARGE, WRITTEN], 2, CHARGED, "written, and it is not"),
        (HEAD, [], 0, "", "has no charge"),
        ({"heads/a.safetensors": "1"}, [CHARGE, WRITTEN], 0, "", "another one than the ledger says"),
        ({}, [CHARGE], 2, REFUSED, "is not told"),
        ({}, [], 0, "", "without a charge and a head"),
        ({}, [], 1, "A defect in dpfc: OSError.", "exit code 1"),
        ({}, [], 2, "Error: something went wrong.", "names no file"),
    ],
)
def test_each_promise_that_is_broken_is_seen(
    tmp_path: Path, files: dict[str, str], facts: list[dict[str, object]], code: int, said: str, broken: str
) -> None:
    """Planted: what a training could leave that breaks a promise."""
    (tmp_path / "work" / "heads").mkdir(parents=True)
    for name in files:
        save_file({}, tmp_path / "work" / name, {"card": json.dumps({"ledger": {"charge": "c"}})})
    reference = Reference(ended=done(0), before=Seen({}, [], []), after=Seen(HEAD, [CHARGE, WRITTEN], []))
    after = Seen(files, facts, [])
    wrong = scenes.judged("train", reference, after, tmp_path, done(code, said), fault=True, leaves=False)
    assert any(broken in each for each in wrong), wrong
