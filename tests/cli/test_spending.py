"""What trainings cost together: charged before a record is looked at, summed, and said."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import rounding
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from dpfc_cli.training.ledger import read
from tests.cli.conftest import Dpfc, heads


def test_a_training_says_what_its_records_have_cost_so_far(dpfc: Dpfc, features: Path) -> None:
    for count in (1, 2):
        said = " ".join(dpfc("train", "--epsilon", "2", "--method", "dp-ls").stdout.split())
        epsilon = epsilon_for(mu_for(2.0, 1e-5) * count**0.5, 1e-5)
        assert (
            f"spent so far epsilon = {rounding.epsilon(epsilon)} at delta = 1e-05 for one record, under zero-out "
            f"adjacency by {count}" in said
        )
        assert "not in it" not in said
    assert "spent so far" not in dpfc("train", "--non-private", "--method", "dp-ls").stdout


def test_what_the_sum_leaves_out_is_named_beside_it(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    np.save(arrays / "train_y.npy", np.load(arrays / "train_y.npy")[::-1])
    assert dpfc("import", str(arrays), "--out", "turned", "--classes", "3").exit_code == 0
    # As a set of an earlier version.
    Path("features/turned/records.digests").unlink()
    ls = ("--method", "dp-ls", "--features")
    assert dpfc("train", "--epsilon", "1", *ls, "turned").exit_code == 0
    assert dpfc("train", "--non-private", *ls, "blobs").exit_code == 0
    trained = dpfc("train", "--epsilon", "1", *ls, "blobs", "--adjacency", "replace-one")
    for said in (trained.stdout, trained.stderr):
        assert "under zero-out adjacency" in said
        assert "not in it: 1 training without a guarantee (epsilon = ∞)" in said
        assert "not in it: turned, which may hold some of the same records" in said
    # Its noise covers more than zero-out.
    assert "(an upper bound)" in trained.stdout.split("spent so far")[1]
    sampled = ("--method", "dp-sgd", "--steps", "5", "--sampling-rate", "0.1", "--features", "blobs")
    third = dpfc("train", "--sigma", "9", *sampled)
    assert "(an upper bound)" in third.stdout.split("spent so far")[1]
    assert "this training makes it at most" in third.stderr


def test_before_the_charge_a_training_says_what_it_will_make_of_what_is_spent(dpfc: Dpfc, features: Path) -> None:
    line = ("train", "--epsilon", "1", "--method", "dp-ls")
    assert "spent" not in dpfc(*line).stderr
    made = epsilon_for(mu_for(1.0, 1e-5) * 2**0.5, 1e-5)
    said = "These records have epsilon = 1.0000 at delta = 1e-05 for one record, under zero-out adjacency spent; this "
    said += "training makes it"
    assert f"{said} {rounding.epsilon(made)}." in dpfc(*line).stderr
    assert len(read(Path("features/blobs.ledger.sqlite"))) == 2
    before = Path("features/blobs.ledger.sqlite").read_bytes()
    assert dpfc(*line, "--memory", "1KB").exit_code == 2
    planned = " ".join(dpfc(*line, "--dry-run").stdout.split())
    third = epsilon_for(mu_for(1.0, 1e-5) * 3**0.5, 1e-5)
    assert f"spent with this epsilon = {rounding.epsilon(third)} at delta = 1e-05" in planned
    assert Path("features/blobs.ledger.sqlite").read_bytes() == before


def test_every_training_is_charged_and_budget_composes_them(dpfc: Dpfc, features: Path) -> None:
    for _ in range(2):
        assert dpfc("train", "--method", "dp-ls", "--epsilon", "1").exit_code == 0
    rows = read(Path("features/blobs.ledger.sqlite"))
    assert len(rows) == 2
    spent = json.loads(dpfc("budget", "--json", "--delta", "1e-5").stdout)["spent"]
    mu = (rows[0].mu ** 2 + rows[1].mu ** 2) ** 0.5  # type: ignore[operator]
    assert spent["epsilon"]["1e-05"] == pytest.approx(epsilon_for(mu, 1e-5))
    assert len(heads()) == 2


def test_sets_of_the_same_records_are_composed_whatever_their_names(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    assert dpfc("import", str(arrays), "--out", "again", "--shards", "2").exit_code == 0
    for name in ("blobs", "again"):
        assert dpfc("train", "--epsilon", "1", "--features", name).exit_code == 0
    np.save(arrays / "test_y.npy", np.load(arrays / "test_y.npy")[::-1])
    assert dpfc("import", str(arrays), "--out", "untrained").exit_code == 0
    assert json.loads(dpfc("budget", "--json", "--features", "untrained").stdout)["spent"]["epsilon"]["1e-05"] > 1.4
    shutil.copytree(arrays, "blobs")
    for asked in ([], ["--features", "blobs"], ["--features", "features/again"]):
        spent = json.loads(dpfc("budget", "--json", "--delta", "1e-5", *asked).stdout)["spent"]
        assert spent["feature_sets"] == ["again", "blobs"]
        assert spent["epsilon"]["1e-05"] > 1.4


def test_budget_names_the_spent_sets_that_it_did_not_count(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    """It is not known which records a set of an earlier version has. It must not be passed over in silence."""
    for split in ("train", "test"):
        for name in "xy":
            part = np.load(arrays / f"{split}_{name}.npy")[:100]
            np.save(arrays / f"{split}_{name}.npy", part)
    assert dpfc("import", str(arrays), "--out", "part", "--classes", "3").exit_code == 0
    Path("features/part/records.digests").unlink()
    for name in ("blobs", "part"):
        assert dpfc("train", "--method", "dp-ls", "--epsilon", "1", "--features", name).exit_code == 0
    shown = dpfc("budget", "--features", "blobs")
    assert shown.exit_code == 0
    assert "Not counted: part" in shown.stderr.replace("\n", " ")


def test_killed_after_the_charge_the_charge_stands_and_no_head_is_left(dpfc: Dpfc, features: Path) -> None:
    program = """
import os, signal, sys
from dpfc_cli.privacy import curator, sums
curator.draw_noise = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["dpfc", "train", "--epsilon", "1"]
from dpfc_cli.cli.app import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert ended.returncode == -9
    assert len(read(Path("features/blobs.ledger.sqlite"))) == 1
    assert heads() == []


def test_nothing_is_summed_before_the_charge(dpfc: Dpfc, features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpfc_cli.training import ledger

    order: list[str] = []
    real_charge = ledger.charge
    monkeypatch.setattr(ledger, "charge", lambda *a: (order.append("charge"), real_charge(*a))[1])
    from dpfc_cli.privacy import curator, sums

    real_sum, real_noise = sums.exact_sum, curator.draw_noise
    monkeypatch.setattr(sums, "exact_sum", lambda *a: (order.append("sum"), real_sum(*a))[1])
    monkeypatch.setattr(curator, "draw_noise", lambda *a: (order.append("noise"), real_noise(*a))[1])
    assert dpfc("train", "--method", "dp-ls", "--epsilon", "1").exit_code == 0
    assert order == ["charge", *["sum", "noise"] * 3]
