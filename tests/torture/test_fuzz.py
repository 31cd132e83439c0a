"""A short form of the fuzzing of readers, without coverage guidance and with one seed."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture import fuzz, targets
from tests.torture.target import Target
from tests.torture.targets import TARGETS

ROOT = Path(__file__).parents[2]


def test_damaged_input_ends_in_an_error_of_the_user_or_in_a_value(tmp_path: Path) -> None:
    """In a process of its own: memory is limited there, and a crash would end it. The corpus is tried first."""
    count = 100 * len(TARGETS)
    line = [sys.executable, "-m", "tests.torture.fuzz", "--plain", "--results", str(tmp_path / "results.jsonl")]
    line += ["--count", str(count), "--slice", "100"]
    result = subprocess.run(line, check=False, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{count:,}" in result.stdout.splitlines()[-1]


def test_whole_inputs_are_read(tmp_path: Path) -> None:
    """Otherwise the changes would only be tried on what is refused at once."""
    for name, target in TARGETS.items():
        for data in target.seeds():
            place = tmp_path / name
            place.mkdir(exist_ok=True)
            if name != "words":
                target.run(data, place)
                fuzz._cleared(place)


def test_every_file_of_the_corpus_has_a_target() -> None:
    files = list(fuzz.CORPUS.glob("*"))
    assert all(any(path in fuzz.corpus(name) for name in TARGETS) for path in files)
    assert all(path.stat().st_size <= 7_000 for path in files)


def test_a_reader_that_fails_is_a_find_and_the_input_becomes_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(data: bytes, place: Path) -> None:
        if b"x" in data:
            raise ZeroDivisionError

    monkeypatch.setitem(targets.TARGETS, "planted", Target(seeds=lambda: [b"abcxdef" * 9], run=run))
    reason = fuzz.tried("planted", b"abcxdef", tmp_path)
    assert reason == "ZeroDivisionError"
    assert fuzz.smaller(b"abcxdef" * 9, lambda data: fuzz.tried("planted", data, tmp_path) == reason) == b"x"


def test_the_same_seed_makes_the_same_inputs() -> None:
    def made() -> list[bytes]:
        rng = random.Random(3)
        return [fuzz.mutated(rng, [b"abc" * 20, b'{"a": [1]}'], text) for text in ("", "json") for _ in range(50)]

    assert made() == made()
    assert len(set(made())) > 80
