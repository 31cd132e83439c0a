"""`dpfc statement`: the officer's copy is what `train` printed, from the file alone. And README on using that file."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from dpfc_cli.heads.head import Head
from dpfc_cli.training.ledger import read
from tests.cli.conftest import Dpfc


def test_the_statement_is_what_train_printed_with_the_files_digest(dpfc: Dpfc, features: Path) -> None:
    trained = dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors")
    again = dpfc("statement", "a.safetensors")
    assert again.exit_code == 0, again.output
    lines = trained.stdout.splitlines()
    assert lines[-1].startswith("spent so far")
    assert again.stdout.split() == " ".join(lines[:-1]).split()
    assert hashlib.sha256(Path("a.safetensors").read_bytes()).hexdigest() in again.stdout
    assert read(Path("features/blobs.ledger.sqlite"))[0].at in again.stdout
    (features / "manifest.json").unlink()
    assert dpfc("statement", "a.safetensors").stdout == again.stdout


def test_programs_get_card_digest_and_meaning(dpfc: Dpfc, features: Path) -> None:
    for out in ("a.safetensors", "b.nonprivate.safetensors"):
        private = out.startswith("a")
        privacy = ("--epsilon", "2") if private else ("--non-private",)
        assert dpfc("train", *privacy, "--method", "dp-ls", "--out", out).exit_code == 0
        told = json.loads(dpfc("statement", out, "--json").stdout)
        assert told["sha256"] == hashlib.sha256(Path(out).read_bytes()).hexdigest()
        assert told["card"] == Head.load(Path(out)).card
        assert (told["means"] is not None) == private
    assert "no guarantee" in dpfc("statement", "b.nonprivate.safetensors").stdout


@pytest.mark.parametrize("method", ["dp-whitened", "dp-ls"])
def test_heads_are_used_as_the_readme_says(dpfc: Dpfc, features: Path, arrays: Path, method: str) -> None:
    assert dpfc("train", "--epsilon", "8", "--method", method, "--out", "heads/eps1.safetensors").exit_code == 0
    x, y = np.load(arrays / "test_x.npy"), np.load(arrays / "test_y.npy")
    np.save("features.npy", x)
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    using = readme.partition("## Using a head")[2]
    code, words = re.search(r"```python\n(.*?)```\n\n(.*?)\n\n", using, re.S).groups()  # type: ignore[union-attr]
    names: dict[str, object] = {"print": lambda found: names.update(found=found)}
    exec(code, names)
    assert np.mean([int(name) == label for name, label in zip(names["found"], y, strict=True)]) > 0.9  # type: ignore[call-overload]
    assert "x ↦ x / max(C, ‖x‖), `centre` subtracts the tensor `chain.0`" in " ".join(words.split())
    with safe_open("heads/eps1.safetensors", framework="numpy") as file:
        for step in json.loads(file.metadata()["chain"]):
            if step["step"] == "clip":
                x = x / np.maximum(step["norm"], np.linalg.norm(x, axis=1, keepdims=True))
            else:
                x = x - file.get_tensor("chain.0")
        scores = x @ file.get_tensor("weight") + file.get_tensor("bias")
    assert np.abs(scores - names["scores"]).max() < 1e-4 * np.abs(scores).max()
