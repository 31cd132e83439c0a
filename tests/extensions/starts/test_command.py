"""`dpfc zero-shot`: vectors of public facts in a file that `train` takes, and what they score on public records."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli.backbones.hub import File
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.geometry import Geometry
from tests.backbones.test_hub import Hub
from tests.backbones.tiny import kept, random_weights, tiny, write
from tests.cli.conftest import Dpfc, each_is_refused, refusal
from tests.extensions.starts.test_text import CASES, byte_pairs
from tests.support import feature_set

LINE = ("zero-shot", "--from", "classifier", "--model", "vit-ti16")


@pytest.fixture
def start(dpfc: Dpfc, arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """A command that makes vectors for two of three classes, of the weights of a perfect classifier."""
    feature_set(arrays, "animals", classes=("cat", "dog", "deer"))
    x, y = np.load(arrays / "train_x.npy"), np.load(arrays / "train_y.npy")
    head = np.stack([x[y == j].mean(axis=0) for j in range(3)])
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(MODELS, "vit-ti16", replace(MODELS["vit-ti16"], width=head.shape[1]))
    kept(MODELS["vit-ti16"], tmp_path / "cache", {"head.weight": head})
    Path("labels.txt").write_text("cat\ndog\nelk\n")
    return (*LINE, "--features", "animals", "--labels", "labels.txt")


def test_the_table_says_what_was_made_and_names_the_classes_without_a_vector(
    dpfc: Dpfc, start: tuple[str, ...]
) -> None:
    made = dpfc(*start, ends=0)
    shown = made.stdout
    assert re.search(r"^file +animals-classifier\.safetensors$", shown, re.M)
    assert re.search(r"^made of +the classifier of vit-ti16 \(hf:timm.*\), 3 rows$", shown, re.M)
    assert re.search(r"^classes with a vector +2 of 3$", shown, re.M)
    assert re.search(r"^without +deer$", shown, re.M)
    assert "top-1" not in shown
    assert "public" not in made.stderr.replace("--public-head", "")
    assert made.stderr.endswith(
        "Next: dpfc train --epsilon 1 --features animals --public-head animals-classifier.safetensors\n"
    )
    assert json.loads(dpfc(*start, "--json").stdout)["made"] is False


def test_the_next_command_starts_from_the_file(dpfc: Dpfc, start: tuple[str, ...]) -> None:
    line = dpfc(*start).stderr.splitlines()[-1].removeprefix("Next: dpfc ").split()
    assert "animals-classifier.safetensors" in dpfc(*line, "--full", ends=0).stdout


def test_json_has_everything(dpfc: Dpfc, start: tuple[str, ...]) -> None:
    found = json.loads(dpfc(*start, "--json").stdout)
    assert (found["path"], found["made"], found["dim"]) == ("animals-classifier.safetensors", True, 8)
    assert (found["classes"], found["without"], found["score"]) == (["cat", "dog"], ["deer"], None)
    assert found["origin"]["weights"]["id"] == MODELS["vit-ti16"].file.id
    score = json.loads(dpfc(*start, "--json", "--on", "animals").stdout)["score"]
    assert (score["features"], score["split"], score["n"]) == ("features/animals", "test", 150)
    assert (score["chance"], score["chance_top5"]) == (pytest.approx(1 / 3), 1.0)
    assert [each["class"] for each in score["per_class"]] == ["cat", "dog", "deer"]
    assert score["top1"] > 0.6


def test_no_set_is_needed_where_model_and_classes_are_named(dpfc: Dpfc, start: tuple[str, ...]) -> None:
    Path("names.txt").write_text("dog\nelk\nwolf\n")
    made = dpfc(*LINE, "--classes", "names.txt", "--labels", "labels.txt", ends=0)
    assert "Features:" not in made.stderr
    assert re.search(r"^file +vit-ti16-classifier\.safetensors$", made.stdout, re.M)
    assert re.search(r"^without +wolf$", made.stdout, re.M)
    assert made.stderr.endswith("Next: dpfc train --epsilon 1 --public-head vit-ti16-classifier.safetensors\n")


@pytest.mark.usefixtures("pictures")
def test_names_become_vectors_with_the_weights_that_made_the_features(
    dpfc: Dpfc,
    home: Hub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tiny CLIP from a hub on this machine: pictures, then names, then a training. Nothing but the set is named."""
    small = replace(tiny("clip-b16"), file=File(repository="some/clip"), native=Geometry(resize=16, crop=16))
    monkeypatch.setitem(MODELS, "clip-b16", small)
    content = write(random_weights(CASES["clip-b16"]["shapes"]), tmp_path).read_bytes()
    home.files["some/clip"] = {"model.safetensors": content, "tokenizer.json": json.dumps(byte_pairs()).encode()}
    extract = ("extract", "imagefolder:pictures", "--model", "clip-b16", "--preprocess", "native", "--out", "animals")
    assert dpfc(*extract, "--classes", "c0,c1,c2").exit_code == 0
    asked = len(home.asked)
    Path("words.txt").write_text("cat\nfire truck\nsea\n")
    start = dpfc("zero-shot", "--from", "text", "--classes", "words.txt", "--on", "animals", "--json", ends=0)
    found = json.loads(start.stdout)
    assert (found["path"], found["classes"], found["without"]) == ("animals-text.safetensors", ["c0", "c1", "c2"], [])
    weights = {"id": "hf:some/clip/model.safetensors", "sha256": hashlib.sha256(content).hexdigest()}
    assert found["origin"]["weights"] == weights
    assert found["origin"]["called"] == {"c0": "cat", "c1": "fire truck", "c2": "sea"}
    assert found["score"]["n"] == 6
    # The weights were there already, and the tokenizer was fetched.
    fetched = [path.rpartition("/")[2] for method, path, _ in home.asked[asked:] if method == "GET"]
    assert fetched == ["tokenizer.json"]
    assert dpfc("train", "--epsilon", "1", "--public-head", found["path"], "--dry-run").exit_code == 0
    # Other weights under that name are refused, and nothing is written.
    changed = json.loads(Path("features/animals/manifest.json").read_text())
    changed["backbone"]["weights"]["sha256"] = "0" * 64
    Path("features/animals/manifest.json").write_text(json.dumps(changed))
    refused = dpfc("zero-shot", "--from", "text", "--out", "other.safetensors", "--json", ends=2)
    assert refusal(refused) == "conflict weights"
    assert not Path("other.safetensors").exists()


def test_what_is_asked_wrongly_is_named_and_changes_nothing(dpfc: Dpfc, features: Path) -> None:
    lines = {
        "--from text": "missing model",
        "--from photos": "unknown-name source",
        "--from text --features blobs --model vit-b16": "unsupported model",
        "--from text --rows a": "conflict rows",
    }
    each_is_refused(dpfc, lines, "zero-shot")
