"""What the commands say of sets that share some records. How it is counted: `tests/training/test_sharing_*.py`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.heads.head import Head
from tests.cli.conftest import Dpfc
from tests.support import blobs

LS = ("train", "--method", "dp-ls", "--delta", "1e-3", "--epsilon", "1", "--features")


@pytest.fixture
def sets(dpfc: Dpfc, tmp_path: Path) -> None:
    """`grown` has all 20 rows of `clinic` and 10 more. `apart` has none of these 30."""
    x, y = blobs(60, 3, 2)
    for name, rows in (("clinic", slice(20)), ("grown", slice(30)), ("apart", slice(30, 60))):
        np.savez(tmp_path / f"{name}.npz", train_x=x[rows], train_y=y[rows])
        assert dpfc("import", f"{name}.npz", "--out", name, "--classes", "2").exit_code == 0


def words(said: str) -> str:
    return " ".join(said.split())


def test_budget_says_which_sets_share_records_and_train_says_the_total_alone(dpfc: Dpfc, sets: None) -> None:
    assert dpfc(*LS, "clinic").exit_code == 0
    shown = dpfc(*LS, "grown", "--out", "grown.safetensors")
    assert "These records have epsilon = 1.0000 at delta = 0.001 for one record" in words(shown.stderr)
    assert "spent so far epsilon = 1.5138 at delta = 0.001" in words(shown.stdout)
    budget = dpfc("budget", "--features", "grown", "--delta", "1e-3")
    assert re.search(r"^0\.001 +1\.5138$", budget.stdout, re.M)
    assert re.search(
        r"^# Sets that share records with this one\nfeature set +trainings +records in both\nclinic +1 +20$",
        budget.stdout,
        re.M,
    )
    assert "The total is for the record that the trainings cost most." in words(budget.stderr)
    found = json.loads(dpfc("budget", "--features", "grown", "--json").stdout)["spent"]
    assert (found["shared"], found["feature_sets"]) == ([{"feature_set": "clinic", "records": 20}], ["clinic", "grown"])
    assert (found["exact"], found["not_counted"], found["said_to_share"]) == (True, [], [])
    listed = {each["name"]: each for each in json.loads(dpfc("list", "--json").stdout)["sets"]}
    assert [listed[name]["trainings"] for name in ("clinic", "grown", "apart")] == [2, 2, 0]
    # How many records are shared goes to the holder, and into nothing that is handed over.
    assert Head.load("grown.safetensors").card["ledger"]["trainings"] == 1
    trained = json.loads(dpfc(*LS, "grown", "--json").stdout)["spent"]
    assert "shared" not in trained
    assert trained["epsilon"]["0.001"] == pytest.approx(1.933, abs=1e-3)


def test_also_is_kept_by_a_training_and_by_budget_and_a_rehearsal_only_counts_it(dpfc: Dpfc, sets: None) -> None:
    assert dpfc(*LS, "clinic").exit_code == 0
    told = dpfc("budget", "--features", "apart")
    assert "Not counted: clinic. It is not known whether they share records with this set" in words(told.stderr)
    assert "say so (--also)" in words(told.stderr)
    rehearsed = dpfc(*LS, "apart", "--also", "clinic", "--dry-run")
    assert "spent with this epsilon = 1.5138 at delta = 0.001 (an upper bound)" in words(rehearsed.stdout)
    assert not Path("features/apart.ledger.sqlite").exists()
    said = dpfc("budget", "--features", "apart", "--also", "clinic", "--by", "Ada", "--delta", "1e-3")
    assert re.search(r"^clinic +1 +it is said$", said.stdout, re.M)
    assert re.search(r"^# What was said of that\nother set +by +when \(UTC\)\nclinic +Ada +2", said.stdout, re.M)
    assert re.search(r"^0\.001 +1\.0000$", said.stdout, re.M)
    assert "Not counted" not in said.stderr
    assert "all trainings are added up for each record" in words(said.stderr)
    assert dpfc(*LS, "apart").exit_code == 0
    spent = json.loads(dpfc("budget", "--features", "clinic", "--delta", "1e-3", "--json").stdout)["spent"]
    assert spent["epsilon"]["0.001"] == pytest.approx(1.5138, abs=1e-4)
    assert [each["by"] for each in spent["said_to_share"]] == ["Ada"]
    # A training that is refused has said it, too.
    assert dpfc("budget", "--features", "apart", "--cap", "2", "--delta", "1e-3").exit_code == 0
    assert dpfc(*LS, "grown", "--epsilon", "1.5", "--also", "apart").exit_code == 2
    assert "does not fit under the cap" in words(dpfc(*LS, "grown", "--epsilon", "1.5").stderr)


REFUSED = [
    (("budget", "--also", "apart"), "--also needs --features"),
    (("budget", "--features", "clinic", "--also", "clinic"), "--also names clinic itself"),
    (("budget", "--features", "clinic", "--also", "nowhere"), "There is no feature set 'nowhere'"),
    (("budget", "--features", "clinic", "--also", "apart", "--note", "why"), "--note has no meaning without --cap"),
    (("budget", "--features", "clinic", "--also", "apart", "--by", ""), "--by must be a text"),
    ((*LS, "clinic", "--also", "clinic"), "--also names clinic itself"),
]


def test_what_makes_no_sense_is_refused_and_leaves_nothing(dpfc: Dpfc, sets: None) -> None:
    for line, says in REFUSED:
        refused = dpfc(*line)
        assert (refused.exit_code, says in words(refused.stderr)) == (2, True), refused.stderr
        assert not list(Path("features").glob("*.sqlite"))


def test_budget_says_of_each_split_who_used_it_and_that_a_cap_is_passed_there(
    dpfc: Dpfc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another set, with one more than the test rows, was trained on where the cap was not known."""
    x, y = blobs(60, 3, 2)
    np.savez(tmp_path / "clinic.npz", train_x=x[:30], train_y=y[:30], test_x=x[30:50], test_y=y[30:50])
    np.savez(tmp_path / "later.npz", train_x=x[30:51], train_y=y[30:51])
    assert dpfc("import", "clinic.npz", "--out", "clinic", "--classes", "2").exit_code == 0
    assert dpfc("budget", "--features", "clinic", "--cap", "1", "--delta", "1e-3").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setenv("DPFC_FEATURES", "far")
        assert dpfc("import", "later.npz", "--out", "later", "--classes", "2").exit_code == 0
        used = dpfc(*LS[:-3], "--epsilon", "3", "--features", "later", "--by", "Ada", "--purpose", "a try")
        assert used.exit_code == 0
    for path in Path("far").iterdir():
        path.rename(Path("features", path.name))
    shown = dpfc("budget", "--features", "clinic", "--delta", "1e-3")
    own, _, other = shown.stdout.partition("# Charged to the records of the test split")
    assert "Ada" not in own
    assert re.search(r"^a try +Ada +later", other, re.M)
    assert "A training counts for the test split if" in words(shown.stderr)
    assert "More is spent on the test split than the cap allows (epsilon = 1 at delta = 0.001 for clinic)" in words(
        shown.stderr
    )
