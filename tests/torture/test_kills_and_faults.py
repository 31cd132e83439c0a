"""A short form of the campaigns of kills and faults, and tests of what they are made of."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import campaign, machine

ROOT = Path(__file__).parents[2]
shim = pytest.mark.skipif(machine.compiler() is None, reason="needs Linux and a C compiler")


def ended(name: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", f"tests.torture.{name}", "--results", str(folder / "results.jsonl"), *arguments]
    return subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True)


@shim
def test_a_command_that_is_killed_leaves_what_the_next_run_can_use(tmp_path: Path) -> None:
    jobs = ("import", "train", "ledger")
    result = ended("kills", tmp_path, "--count", "12", "--ways", "call", "write", "--jobs", *jobs)
    assert result.returncode == 0, result.stdout + result.stderr


@shim
def test_a_system_call_that_fails_ends_in_a_message_and_breaks_nothing(tmp_path: Path) -> None:
    jobs = ("import", "train", "evaluate", "budget", "statement", "list")
    result = ended("faults", tmp_path, "--count", "30", "--jobs", *jobs)
    assert result.returncode == 0, result.stdout + result.stderr


def options(**changes: object) -> argparse.Namespace:
    return argparse.Namespace(**{"minutes": None, "workers": 2, **changes})


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
