"""`dpfc statement`: the officer's copy is what `train` printed, from the file alone. And README on using that file."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from dpfc_cli import rounding
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.accounting import epsilon_for, mu_for
from tests.cli.conftest import Dpfc, charges


def test_the_statement_is_what_train_printed_with_the_files_digest(dpfc: Dpfc, features: Path) -> None:
    trained = dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors", "--full")
    again = dpfc("statement", "a.safetensors", ends=0)
    lines = [line for line in trained.stdout.splitlines() if not line.startswith("spent so far")]
    assert again.stdout.split() == " ".join(lines).split()
    assert "verify" in again.stderr
    assert hashlib.sha256(Path("a.safetensors").read_bytes()).hexdigest() in again.stdout
    assert charges()[0].at in again.stdout
    (features / "manifest.json").unlink()
    assert dpfc("statement", "a.safetensors").stdout == again.stdout


def test_programs_get_card_digest_and_meaning(dpfc: Dpfc, features: Path) -> None:
    for out in ("a.safetensors", "b.nonprivate.safetensors"):
        private = out.startswith("a")
        privacy = ("--epsilon", "2") if private else ("--non-private",)
        assert dpfc("train", *privacy, "--method", "dp-ls", "--out", out).exit_code == 0
        told = json.loads(dpfc("statement", out, "--json").stdout)
        assert told["sha256"] == hashlib.sha256(Path(out).read_bytes()).hexdigest()
        assert told["card"] == json.loads(Head.load(Path(out)).card.json)
        assert (told["means"] is not None) == private


def test_what_a_head_means_for_a_person_with_some_records_can_be_asked(dpfc: Dpfc, features: Path) -> None:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors").exit_code == 0
    means = json.loads(dpfc("statement", "a.safetensors", "--records-per-person", "3", "--json").stdout)["means"]
    assert means["groups"] == {"3": pytest.approx(epsilon_for(3 * mu_for(2.0, 1e-5), 1e-5))}
    shown = dpfc("statement", "a.safetensors", "--records-per-person", "3").stdout
    assert rounding.epsilon(means["groups"]["3"]) in shown


def test_a_head_is_used_without_dpfc_as_the_readme_says(dpfc: Dpfc, features: Path, arrays: Path) -> None:
    x, y = np.load(arrays / "test_x.npy"), np.load(arrays / "test_y.npy")
    for method in ("dp-whitened", "dp-ls"):
        path = f"heads/{method}.safetensors"
        assert dpfc("train", "--epsilon", "8", "--method", method, "--out", path).exit_code == 0
        head, taken = Head.load(path), x
        with safe_open(path, framework="numpy") as file:
            for step in json.loads(file.metadata()["chain"]):
                if step["step"] == "clip":
                    taken = taken / np.maximum(step["norm"], np.linalg.norm(taken, axis=1, keepdims=True))
                else:
                    taken = taken - file.get_tensor("chain.0")
            scores = taken @ file.get_tensor("weight") + file.get_tensor("bias")
        assert np.abs(scores - head.scores(x)).max() < 1e-4 * np.abs(scores).max()
        assert np.mean([int(name) == label for name, label in zip(head.predict(x), y, strict=True)]) > 0.9


def test_every_command_takes_the_newest_private_head_if_none_is_named(dpfc: Dpfc, features: Path) -> None:
    for out in ("older", "newer"):
        made = ("train", "--again", "--epsilon", "2", "--method", "dp-ls", "--out", f"heads/{out}.safetensors")
        assert dpfc(*made).exit_code == 0
    for line in ("evaluate", "statement", "verify", "predict blobs --out p.csv"):
        assert "heads/newer.safetensors" in dpfc(*line.split(), ends=0).stderr
    assert dpfc("predict", "heads/older.safetensors", "blobs", "--out", "q.csv").exit_code == 0
    assert dpfc("predict").exit_code == 2
