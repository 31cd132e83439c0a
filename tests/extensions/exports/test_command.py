"""`dpfc export` and `dpfc push`, and heads that are named hf:OWNER/NAME."""

import json
import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head
from dpfc_cli.images.catalogue import open_images
from dpfc_cli.rounding import cost
from tests.cli.conftest import Dpfc, refusal
from tests.heads.test_hub import PLACE, TOKEN, Repositories, held, hub  # noqa: F401

DOCS = Path(__file__).parents[3] / "docs"


def test_a_head_on_the_hub_can_be_named_wherever_a_head_is_named(
    hub: type[Repositories],  # noqa: F811
    dpfc: Dpfc,
    features: Path,
) -> None:
    assert dpfc("train", "--epsilon", "2", "--method", "dp-ls", "--out", "a.safetensors").exit_code == 0
    figures = dpfc("evaluate", "a.safetensors", "--json")
    Path("exact.json").write_text(figures.stdout)
    Path("figures.json").write_text(dpfc("evaluate", "a.safetensors", "--epsilon", "2", "--json").stdout)
    refused = dpfc("push", "a.safetensors", f"hf:{PLACE}", "--evaluation", "exact.json", "--json")
    assert (refusal(refused), hub.commits) == ("private-records evaluation exact.json", {})
    tried = dpfc("push", "a.safetensors", f"hf:{PLACE}", "--dry-run")
    assert (tried.exit_code, hub.commits) == (0, {})
    told = json.loads(dpfc("push", "a.safetensors", f"hf:{PLACE}", "--evaluation", "figures.json", "--json").stdout)
    name = f"hf:{PLACE}/head.safetensors@{told['commit']}"
    assert told["head"] == name
    assert set(told["files"]) == set(held(hub)) == {"head.safetensors", "README.md"}
    for wrong in ("none.json", "exact.json"):
        assert dpfc("push", "a.safetensors", f"hf:{PLACE}", "--evaluation", wrong).exit_code == 2
    for line in (("evaluate",), ("statement",), ("verify",)):
        shown = dpfc(line[0], f"hf:{PLACE}", ends=0)
        assert name in shown.stdout
        assert json.loads(dpfc(line[0], f"hf:{PLACE}", "--json").stdout)["head"] == name
    assert json.loads(dpfc("evaluate", name, "--json").stdout)["top1"] == json.loads(figures.stdout)["top1"]
    made = dpfc("export", f"hf:{PLACE}", "--to", "npz", "--out", "a.npz")
    assert (made.exit_code, name in made.stdout) == (0, True)
    assert TOKEN not in "".join(each.output for each in (tried, made, refused))


def test_the_page_on_exports_says_what_happens(
    dpfc: Dpfc, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lines are run, except those on the hub and those of torch, which no test has."""
    page = (DOCS / "extensions/exports.md").read_text("utf-8")
    assert dpfc("train", "--epsilon", "8", "--out", "heads/flu.safetensors").exit_code == 0
    x, _ = FeatureSet(features).arrays("test")
    np.save("features.npy", x)
    for line in re.findall(r"^dpfc (export .*)$", page, re.M):
        if "--with-backbone" in line:
            # The features were imported.
            assert refusal(dpfc(*line.split(), "--json", ends=2)) == "unsupported with_backbone"
        else:
            assert cost(8, 1e-5) in dpfc(*line.split(), ends=0).stdout
    monkeypatch.syspath_prepend(str(tmp_path))
    values: dict[str, object] = {}
    onnx, sklearn, torch, numpy = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    found = Head.load("heads/flu.safetensors")
    for block in (onnx, sklearn):
        values.pop("names", None)
        exec(block, values)
        # Classes that were only counted are numbers for scikit-learn.
        assert [str(name) for name in values["names"]] == found.predict(x)  # type: ignore[attr-defined]
    assert "dpfc_head_torch" in torch
    exec(numpy, values)
    assert (values["card"], [each["step"] for each in values["steps"]]) == (  # type: ignore[attr-defined]
        json.loads(found.card.json),
        ["clip", "centre", "clip"],
    )


def test_pictures_go_through_backbone_and_head_in_one_graph(dpfc: Dpfc) -> None:
    assert dpfc("extract", "digits", "--limit", "60", "--pool", "mean", "--out", "digits").exit_code == 0
    assert dpfc("train", "--epsilon", "8", "--method", "dp-ls", "--out", "a.safetensors").exit_code == 0
    line = ("export", "a.safetensors", "--to", "onnx", "--with-backbone", "--out", "a.onnx")
    made = dpfc(*line, ends=0)
    assert re.search(r"^input +pixels: uint8, n × 8 × 8 × 1: pictures.*at their own size", made.stdout, re.M)
    pixels = open_images("digits").splits["test"].spread(60).pixels(0, 60)
    features, scores = onnxruntime.InferenceSession("a.onnx").run(["features", "scores"], {"pixels": pixels})
    x, _ = FeatureSet(Path("features/digits")).arrays("test")
    # The set keeps features as float16.
    assert np.abs(features - x).max() < 1e-2
    head = Head.load("a.safetensors")
    assert np.abs(scores - head.scores(features)).max() < 1e-5 * np.abs(scores).max()
    assert np.mean(head.scores(x).argmax(axis=1) == scores.argmax(axis=1)) > 0.9
    assert dpfc(*line).exit_code == 0
