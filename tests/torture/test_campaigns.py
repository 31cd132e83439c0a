"""Short forms of the campaigns that `make torture` runs for hours, and tests of what they are made of."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import campaign, caps, machine, scenes, witness
from tests.torture.scenes import JOBS, Reference
from tests.torture.witness import Seen

ROOT = Path(__file__).parents[2]


def assert_nothing_breaks(tmp_path: Path, name: str, *options: str) -> None:
    if machine.compiler() is None:
        pytest.skip("needs Linux and a C compiler")
    line = [sys.executable, "-m", f"tests.torture.{name}", "--results", str(tmp_path / "results.jsonl"), *options]
    # With the shim in it, the campaign need not start itself again.
    environment = {**os.environ, "LD_PRELOAD": str(machine.compiled(tmp_path))}
    ended = subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_is_killed_or_fails_breaks_nothing_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """On a file of each kind: answers, ledger, journal, head."""
    assert_nothing_breaks(tmp_path, "faults", "--count", "18", "--jobs", "train", "--faults", "ENOSPC", "torn write")


def test_equal_trainings_at_once_charge_nothing_twice(tmp_path: Path) -> None:
    assert_nothing_breaks(tmp_path, "twins", "--count", "4")


def test_processes_that_charge_at_once_pass_no_cap_and_lose_no_charge(tmp_path: Path) -> None:
    assert_nothing_breaks(tmp_path, "caps", "--count", "1", "--processes", "8", "--attempts", "80")


def test_a_campaign_goes_on_where_it_stopped_and_counts_what_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, cases = tmp_path / "results.jsonl", [{"job": "a", "what": "b", "at": at} for at in range(6)]
    results.write_text(json.dumps({"case": cases[0], "broke": ["a planted fault"]}) + '\n{"case": {"job"')
    tried, options = tmp_path / "tried", argparse.Namespace(minutes=1.0, workers=1)

    def attempt(case: campaign.Case, place: Path) -> list[str]:
        with tried.open("a") as file:
            file.write(f"{case['at']}\n")
        return ["another one"] if case["at"] == 4 else []

    assert campaign.carry_out(cases, attempt, options, results, tmp_path) == 2
    assert sorted(tried.read_text().split()) == ["1", "2", "3", "4", "5"]
    assert "a planted fault" in capsys.readouterr().out
    assert campaign.carry_out(cases, attempt, options, results, tmp_path) == 2
    assert "0 of them are left" in capsys.readouterr().out


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    facts: list[dict[str, object]],
    code: int,
    said: str,
    broken: str,
) -> None:
    """Planted: what a training could leave that breaks a promise."""
    after = Seen(files, facts, [])
    monkeypatch.setattr(witness, "look", lambda work: after)
    monkeypatch.setattr(witness, "card", lambda path: {"ledger": {"charge": "c"}})
    before = Seen({}, [], [])
    reference = Reference(ended=done(0), before=before, after=Seen(HEAD, [CHARGE, WRITTEN], []))
    assert JOBS["train"].charges
    wrong = scenes.judged("train", reference, tmp_path, done(code, said), fault=True, leaves=False)
    assert any(broken in each for each in wrong), wrong


def test_the_witness_sees_what_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "heads").mkdir()
    (tmp_path / "features" / "set").mkdir(parents=True)
    (tmp_path / "heads" / "a.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    (tmp_path / witness.LEDGER).write_bytes(b"SQLite format 3\0 and no more")
    wrong = witness.look(tmp_path).wrong
    assert {each.split(":")[0] for each in wrong} == {
        *("features/set", witness.LEDGER, "heads/a.safetensors"),
    }


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
