"""`dpfc forecast`: what is shown, and that it leaves no trace in the private set."""

import errno
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dpfc_cli import files
from dpfc_cli.cli import display
from dpfc_cli.extensions.planning import forecast as forecasts
from dpfc_cli.training.calibrate import HIDES
from tests.cli.conftest import Dpfc, each_is_refused
from tests.support import blobs, feature_set


@pytest.fixture
def known(dpfc: Dpfc, tmp_path: Path) -> str:
    """A public set of 300 + 100 records in 3 classes."""
    x, y = blobs(400, 8, 3, seed=9, apart=2.0)
    np.savez(tmp_path / "known.npz", train_x=x[:300], train_y=y[:300], test_x=x[300:], test_y=y[300:])
    feature_set(tmp_path / "known.npz", "known", classes=3)
    return "known"


def trace(folder: Path) -> dict[str, str]:
    """Every file below, with its digest."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def full(*_: Any, **__: Any) -> None:
    """A disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_facts_alone_give_a_table_without_an_accuracy(dpfc: Dpfc) -> None:
    line = ("forecast", "--persons", "500", "--classes", "flu,cold", "--model", "vit-s16", "--epsilon", "8,0.1")
    shown = dpfc(*line, "--cap", "3", ends=0)
    title, header, low, high = shown.stdout.splitlines()[:4]
    assert {"dp-whitened", "500", "persons", "2", "384", "1e-05"} <= set(title.split())
    assert header.split() == ["epsilon", "kept", "guessed", "fit", "under", "3"]
    # 50.7 % and 79.8 % are those of docs/choosing.md.
    assert (low.split(), high.split()) == (["0.1", "24", "%", "50.7", "%", "488"], ["8", "98", "%", "79.8", "%", "0"])
    assert "--on" in shown.stdout
    assert HIDES in shown.stderr
    # For a program it is in the object.
    told = dpfc(*line, "--json", ends=0)
    assert (HIDES in str(json.loads(told.stdout)["warnings"]), told.stderr) == (True, "")
    assert list(Path().iterdir()) == []


def test_without_a_word_about_the_records_it_is_of_the_newest_set(dpfc: Dpfc, arrays: Path) -> None:
    for name in ("older", "newer"):
        feature_set(arrays, name, classes=3)
    shown = dpfc("forecast", "--features", "newer", "--epsilon", "8", ends=0)
    newest = dpfc("forecast", "--epsilon", "8", ends=0)
    assert (newest.stdout, "newer" in newest.stderr) == (shown.stdout, True)


def test_a_stand_in_gives_an_accuracy_its_interval_and_what_it_is_worth(
    dpfc: Dpfc, features: Path, known: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slides: None
) -> None:
    before = trace(tmp_path)
    line = ("forecast", "--features", "blobs", "--on", known, "--epsilon", "0.1,8", "--records-per-person", "5")
    shown = dpfc(*line, "--plot", "plot.txt", ends=0)
    _, header, _, high = shown.stdout.splitlines()[:4]
    assert header.split()[:3] == ["epsilon", "accuracy", "95"]
    assert high.split()[-1] == "69.417"
    said = dpfc(*line, "--json")
    found = json.loads(said.stdout)
    accuracies = [each["accuracy"] for each in found["outlooks"]]
    assert f"{100 * accuracies[1]:.0f}" in high.split()[1]
    assert 0 < accuracies[0] < accuracies[1] <= 1
    assert forecasts.MEASURED in shown.stdout
    # What was tried is said, and nothing else is expected beside it.
    poor = dpfc("forecast", "--records", "30", "--classes", "3", "--on", known, "--epsilon", "0.1")
    assert HIDES not in poor.output
    assert " 300 records" in shown.stdout
    assert "expected, by trainings on known" in Path("plot.txt").read_text("utf-8")
    # A plot that cannot be written takes nothing else away.
    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", full)
        failed = dpfc(*line, "--plot", "plot.txt")
    assert (failed.exit_code, failed.stdout) == (7, shown.stdout)
    assert "plot.txt" in failed.stderr
    monkeypatch.setattr(display, "out", Console(width=80, force_terminal=True, highlight=False, color_system=None))
    lines = dpfc(*line, "--cap", "3").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    # It is a table: a line for each ε.
    assert [each.split()[0] for each in lines if each.endswith(("0.5787", "69.417"))] == ["0.1", "8"]
    # The scores of the trials are kept beside the public set. Nothing else is new, and nothing is changed.
    new = {str(tmp_path / "plot.txt"), str(tmp_path / "features/known.tuning.jsonl")}
    after = trace(tmp_path)
    assert set(after) - set(before) == new
    assert {path: after[path] for path in before} == before


def test_other_private_records_with_the_same_facts_give_the_same_bytes(
    dpfc: Dpfc, features: Path, known: str, tmp_path: Path
) -> None:
    line = ("forecast", "--features", "blobs", "--on", known, "--epsilon", "1", "--json")
    first = dpfc(*line)
    # Records of one class that are all alike, under the same name.
    shutil.rmtree("features/blobs")
    for split, n in (("train", 600), ("test", 150)):
        np.save(tmp_path / "arrays" / f"{split}_x.npy", np.full((n, 8), 7, np.float32))
        np.save(tmp_path / "arrays" / f"{split}_y.npy", np.full(n, 2))
    feature_set("arrays", "blobs", classes=3)
    again = dpfc(*line)
    assert (first.exit_code, first.stdout, first.stderr) == (0, again.stdout, again.stderr)


def test_what_makes_no_sense_is_refused_in_the_words_of_the_command(dpfc: Dpfc) -> None:
    facts = "--records 9 --classes 2 --dimensions 4"
    lines = {
        "": "missing records",
        f"{facts} --epsilon 1,a": "bad-value epsilons",
        f"{facts} --plot a.svg": "conflict plot",
        "--on none --plot a.gif": "missing none",
        "--records 9 --classes 2 --model scattering": "conflict model",
    }
    each_is_refused(dpfc, lines, "forecast")
