"""`dpfc evaluate`: figures with intervals, on a terminal with the digits that the test set carries, as JSON in full."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.files import sha256_of
from dpfc_cli.heads.metrics import wilson
from tests.cli.conftest import Dpfc, heads
from tests.support import blobs


@pytest.fixture
def trained(dpfc: Dpfc, features: Path) -> Path:
    """The only head, trained on 600 records in three classes that have 150 test records."""
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    return Path("heads") / heads()[0]


def test_json_has_the_figures_in_full_and_their_intervals(dpfc: Dpfc, trained: Path) -> None:
    found = json.loads(dpfc("evaluate", "--json").stdout)
    assert (found["head"], found["n"], found["split"], found["warnings"]) == (str(trained), 150, "test", [])
    assert found["interval"] == list(wilson(round(150 * found["top1"]), 150))
    assert (found["top5"], found["top5_interval"], found["mean_average_precision"]) == (None, None, None)
    assert [(each["class"], each["n"]) for each in found["per_class"]] == [("0", 50), ("1", 50), ("2", 50)]
    for each in found["per_class"]:
        assert each["interval"] == list(wilson(round(50 * each["top1"]), 50))


def test_shown_are_whole_percents_of_150_records_and_no_top_5_of_three_classes(dpfc: Dpfc, trained: Path) -> None:
    shown = dpfc("evaluate").stdout
    assert re.search(r"^top-1 +\d+ % \(95 % interval \d+–\d+ %\)$", shown, re.M)
    assert "top-5" not in shown
    assert len(re.findall(r"^[012] +50 +\d+ % +\d+–\d+ %$", shown, re.M)) == 3
    assert not re.search(r"\d\.\d+ ?%", shown)


def test_top_5_is_shown_of_more_classes(dpfc: Dpfc) -> None:
    x, y = blobs(700, 8, 7, seed=3, apart=8.0)
    np.savez("seven.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    assert dpfc("import", "seven.npz", "--classes", "7").exit_code == 0
    assert dpfc("train", "--epsilon", "8").exit_code == 0
    assert re.search(r"^top-5 +\d+ % \(95 % interval \d+–\d+ %\)$", dpfc("evaluate").stdout, re.M)


def test_the_head_is_an_argument_and_by_default_the_newest_private_one(dpfc: Dpfc, trained: Path) -> None:
    assert dpfc("train", "--epsilon", "4", "--out", "heads/newer.safetensors").exit_code == 0
    by_default = dpfc("evaluate", "--json")
    assert json.loads(by_default.stdout)["head"] == "heads/newer.safetensors"
    assert "Head: heads/newer.safetensors (the newest private one" in by_default.stderr
    named = dpfc("evaluate", str(trained), "--json")
    assert json.loads(named.stdout)["head"] == str(trained)
    assert "Head: " not in named.stderr


def test_warnings_are_shown_and_are_in_the_json(dpfc: Dpfc, trained: Path) -> None:
    warned = dpfc("evaluate", "--split", "train", "--json")
    (warning,) = json.loads(warned.stdout)["warnings"]
    assert "Do not publish them" in warning
    assert f"Warning: {warning}" in warned.stderr


# With noise


def test_released_figures_have_an_interval_their_noise_and_what_they_cost(dpfc: Dpfc, trained: Path) -> None:
    shown = dpfc("evaluate", "--epsilon", "1", "--purpose", "paper")
    assert shown.exit_code == 0
    assert re.search(r"^top-1 +\d+ % \(95 % interval \d+–\d+ %; the noise alone: ± [\d.]+ %\)$", shown.stdout, re.M)
    assert re.search(r"^records \(noisy\) +\d+$", shown.stdout, re.M)
    assert re.search(r"^this cost +epsilon = 1.0000 at delta = 1e-05 for one record$", shown.stdout, re.M)
    assert "Figures per class are not released" in shown.stderr
    assert "Features: features/blobs" in shown.stderr
    training, _, evaluated = dpfc("budget").stdout.partition("# Charged to the records of the test split")
    assert re.search(r" dp-whitened +written .* 8\.0000$", training, re.M)
    assert re.search(r"^1e-05 +8\.0000$", training, re.M)
    assert re.search(r" evaluation +written .* 1\.0000$", evaluated, re.M)
    assert re.search(r"^1e-05 +1\.0000$", evaluated, re.M)


def test_the_json_of_released_figures_has_what_the_ledger_has(dpfc: Dpfc, trained: Path) -> None:
    found = json.loads(dpfc("evaluate", str(trained), "--epsilon", "60", "--delta", "1e-6", "--json").stdout)
    figures = found["figures"]
    assert hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest() == found["sha256"]
    assert (found["head"], figures["head_sha256"]) == (str(trained), sha256_of(trained))
    assert (figures["epsilon"], figures["delta"], figures["unit"], figures["split"]) == (60, 1e-6, "record", "test")
    assert [each["class"] for each in figures["per_class"]] == ["0", "1", "2"]
    assert (found["spent"], found["fits"]) == (pytest.approx(60, rel=1e-6), None)
    spent = json.loads(dpfc("budget", "--json").stdout)
    assert [row["method"] for row in spent["spent"]["trainings"]] == ["dp-whitened"]
    (other,) = spent["spent_on_other_splits"]
    assert (other["split"], other["epsilon"]["1e-06"]) == ("test", pytest.approx(60, rel=1e-6))
    assert [(row["method"], row["sha256"]) for row in other["trainings"]] == [("evaluation", found["sha256"])]


def test_epsilon_is_spent_on_no_set_that_nobody_named(dpfc: Dpfc, trained: Path) -> None:
    Path("features/blobs").rename("features/other")
    refused = dpfc("evaluate", "--epsilon", "2")
    assert refused.exit_code == 2
    assert "Name the set: --features." in " ".join(refused.stderr.split())
    idle = dpfc("evaluate", "--features", "other", "--by", "me")
    assert idle.exit_code == 2
    assert "--by has no meaning without --epsilon" in idle.stderr
    assert not list(Path("features").glob("other.ledger*"))
