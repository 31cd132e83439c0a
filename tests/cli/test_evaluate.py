"""`dpfc evaluate`: figures with intervals, on a terminal with the digits that the test set carries, as JSON in full."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

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
