"""`dpfc budget`: what is said of noise that was asked about, and of what the ledgers hold."""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import rounding
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import Claim, epsilon_for
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.privacy.queries import Gradient
from dpfc_cli.training import ledger
from dpfc_cli.training.card import entry_of
from tests.cli.conftest import Dpfc
from tests.support import CHAIN, calibrated_at, plan_of


def charged(mu: float = 0.3, rate: float = 1.0, adjacency: Adjacency = "zero-out", claim: Claim = "private") -> None:
    """A training on the records of `features/blobs`, with a head of its own name."""
    facts = Facts(n=600, m=3, d=8, adjacency=adjacency)
    plan = plan_of(facts, *[(Gradient(CHAIN, np.zeros((9, 3)), clip=1.0), 1.0)] * 5, rate=rate)
    made = None if claim == "non-private" else mu
    calibrated = calibrated_at(facts, plan, made, claim, epsilon_for(mu, 1e-5), "dp-sgd")
    head = f"blobs-{claim}-{adjacency}-{mu:g}.safetensors"
    at = datetime.now(UTC).isoformat(timespec="seconds")
    row = entry_of(calibrated, FeatureSet(Path("features/blobs")), head, at)
    ledger.charge(Path("features/blobs.ledger.sqlite"), row)


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a piped output: their lines, each a list of cells."""
    found = text.split("# ")[1:]
    return [[re.split(r" {2,}", line.strip()) for line in table.splitlines()[1:]] for table in found]


def test_what_a_sigma_means_is_said_once_for_methods_that_release_alike(dpfc: Dpfc) -> None:
    shown = dpfc("budget", "--sigma", "10", "--delta", "1e-5")
    ((header, *rows),) = tables(shown.stdout)
    assert header == ["method", "delta", "steps", "releases", "epsilon", "paper's"]
    assert [name for row in rows for name in row[0].split(", ")] == list(METHODS)
    assert rows[-1][0] == "dp-sgd, dp-momentum, dp-adam"
    assert {len(row) for row in rows} == {len(header)}
    as_json = json.loads(dpfc("budget", "--sigma", "10", "--delta", "1e-5", "--json").stdout)
    assert [row["method"] for row in as_json["conversion"]] == list(METHODS)


def test_a_sigma_is_that_of_equal_releases_and_said_to_be(dpfc: Dpfc) -> None:
    shown = dpfc("budget", "--epsilon", "1")
    assert "if all releases of a training are equal" in shown.stdout
    assert "train divides the budget unequally" in shown.stderr


def test_figures_stand_under_each_other_and_are_never_too_small(dpfc: Dpfc) -> None:
    for asked, name in (("--epsilon", "sigma"), ("--sigma", "epsilon")):
        exact = json.loads(dpfc("budget", asked, "3.7", "--delta", "1e-5", "--json").stdout)["conversion"]
        ((_, *rows),) = tables(dpfc("budget", asked, "3.7", "--delta", "1e-5").stdout)
        shown = {method: row[-2:] for row in rows for method in row[0].split(", ")}
        for row in exact:
            for figure, true in zip(shown[row["method"]], (row[name], row["paper"]), strict=True):
                assert re.fullmatch(r"\d+\.\d{4}", figure)
                assert 0 <= float(figure) - true * (1 - 2e-9) < 1.01e-4


def test_what_no_figure_can_say_is_said_by_a_bound(dpfc: Dpfc) -> None:
    assert {tuple(row[-2:]) for row in tables(dpfc("budget", "--sigma", "1e-5").stdout)[0][1:]} == {("∞", "∞")}
    huge = tables(dpfc("budget", "--sigma", "1e300").stdout)[0][1:]
    assert {tuple(row[-2:]) for row in huge} == {("≤ 0.0001", "≤ 0.0001")}


def test_a_conversion_shows_no_ledger_unless_asked(dpfc: Dpfc, features: Path) -> None:
    charged()
    assert "Charged" not in dpfc("budget", "--epsilon", "1").stdout
    assert list(json.loads(dpfc("budget", "--epsilon", "1", "--json").stdout)) == ["conversion"]
    assert "Charged" in dpfc("budget", "--epsilon", "1", "--features", "blobs").stdout


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({}, "exact"),
        ({"rate": 0.1, "mu": 2.0}, "an upper bound"),
        ({"adjacency": "replace-one"}, "an upper bound"),
        ({"rate": 0.1, "claim": "research"}, "exact"),
    ],
)
def test_a_sum_is_called_exact_only_where_it_is(dpfc: Dpfc, features: Path, training: dict, said: str) -> None:
    charged(0.2)
    charged(**training)
    assert f"Spent by these together, for one record ({said}, zero-out adjacency)" in dpfc("budget").stdout
    assert json.loads(dpfc("budget", "--json").stdout)["spent"]["exact"] == (said == "exact")


def test_every_row_names_its_head_and_the_title_how_far_the_ledgers_know(dpfc: Dpfc, features: Path) -> None:
    charged(0.2)
    charged(0.3, claim="non-private")
    shown = dpfc("budget").stdout
    assert f"as far as the ledgers in {features.parent.resolve()} know" in shown
    private, spent, others = tables(shown)
    assert private[0] == ["when (UTC)", "feature set", "head", "method", "state", "adjacency", "delta", "epsilon"]
    assert [row[2] for row in private[1:]] == ["blobs-private-zero-out-0.2"]
    assert [row[2:] for row in others[1:]] == [["blobs-non-private-zero-out-0.3", "dp-sgd", "charged", "non-private"]]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", private[1][0])
    assert spent[1][1] == private[1][-1]
    trainings = json.loads(dpfc("budget", "--json").stdout)["spent"]["trainings"]
    assert [t["head"] for t in trainings] == [
        "blobs-private-zero-out-0.2.safetensors",
        "blobs-non-private-zero-out-0.3.safetensors",
    ]


def test_a_ledger_is_named_by_its_whole_path_even_without_its_set(dpfc: Dpfc, features: Path) -> None:
    charged()
    shutil.rmtree(features)
    found = json.loads(dpfc("budget", "--json").stdout)["spent"]["ledger"]
    assert found == str(Path("features/blobs.ledger.sqlite").resolve())


def test_an_epsilon_that_was_asked_for_is_shown_as_such() -> None:
    for epsilon in (0.01, 0.1, 1.0, 1.1, 8.0, 100.0):
        assert rounding.epsilon(epsilon * (1 + 1e-9)) == f"{epsilon:.4f}"
        assert rounding.epsilon(epsilon * (1 + 1e-8)) > f"{epsilon:.4f}"
    assert rounding.epsilon(0.0) == "0.0000"
