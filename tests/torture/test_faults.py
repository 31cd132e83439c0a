"""A short form of the campaign of failing system calls, and tests of what campaigns are made of."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import campaign, machine, scenes, witness
from tests.torture.scenes import JOBS, Reference
from tests.torture.witness import Seen

ROOT = Path(__file__).parents[2]
shim = pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")


def ended(name: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", f"tests.torture.{name}", "--results", str(folder / "results.jsonl"), *arguments]
    # With the shim in it, the campaign need not start itself again.
    environment = {**os.environ, "LD_PRELOAD": str(machine.compiled(folder))}
    return subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True, env=environment)


@shim
def test_a_system_call_that_fails_ends_in_a_message_and_breaks_nothing(tmp_path: Path) -> None:
    jobs = ("import", "train", "evaluate", "budget", "statement", "list")
    result = ended("faults", tmp_path, "--count", "20", "--jobs", *jobs)
    assert result.returncode == 0, result.stdout + result.stderr


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"minutes": None, "workers": 1, **changes})


def test_a_campaign_goes_on_where_it_stopped_and_counts_what_broke(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, cases = tmp_path / "results.jsonl", [{"job": "a", "what": "b", "at": at} for at in range(6)]
    results.write_text(json.dumps({"case": cases[0], "broke": ["a planted fault"]}) + '\n{"case": {"job"')
    tried = tmp_path / "tried"

    def attempt(case: campaign.Case, place: Path) -> list[str]:
        with tried.open("a") as file:
            file.write(f"{case['at']}\n")
        return ["another one"] if case["at"] == 4 else []

    assert campaign.carry_out(cases, attempt, options(), results, tmp_path) == 2
    assert sorted(tried.read_text().split()) == ["1", "2", "3", "4", "5"]
    assert "a planted fault" in capsys.readouterr().out
    assert campaign.carry_out(cases, attempt, options(), results, tmp_path) == 2
    assert "0 of them are left" in capsys.readouterr().out


def done(code: int, said: str = "") -> machine.Ended:
    return machine.Ended(code=code, signal=None, out="", err=said, seconds=1.0, hit=True)


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
    wrong = scenes.judged("train", reference, tmp_path, done(code, said), fault=True, killed=False)
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
