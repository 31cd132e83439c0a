"""ConvNeXt, the family beside the transformers: it gives the features of timm and of transformers.

`bench/references.py` ran the libraries; here are the names of their tensors, and what came out.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import convnext
from dpfc_cli.backbones.family import Backbone
from dpfc_cli.geometry import Geometry
from tests.backbones.tiny import pictures, random_weights, write
from tests.support import refuses

REFERENCES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "convnext.json").read_text("utf-8")
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of the table that is as small as the references, with mean and standard deviation one half."""
    case = REFERENCES["timm"]
    model = replace(convnext.MODELS["convnext-t"], depths=tuple(case["depths"]), widths=tuple(case["widths"]))
    monkeypatch.setitem(convnext.MODELS, "convnext-t", model)
    for module in ("MEAN", "STD"):
        monkeypatch.setattr(f"dpfc_cli.backbones.convnext.network.{module}", (0.5, 0.5, 0.5))


def loaded(file: Path, size: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Backbone:
    monkeypatch.setattr(convnext, "NATIVE", Geometry(resize=size, crop=size))
    return backbones.load(
        backbones.Wanted(name="convnext-t", image_shape=(size, size, 3), weights=str(file), **{"batch": 2} | options)
    )


def weights_of(name: str) -> dict[str, np.ndarray]:
    return random_weights(REFERENCES[name]["shapes"])


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize("name", ["timm", "transformers"])
def test_the_feature_is_the_librarys(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 72 pixels the third stage sees 4 of 9 pairs of places, and drops the last one."""
    case = REFERENCES[name]
    backbone = loaded(write(weights_of(name), tmp_path, config=case["config"]), 72, monkeypatch)
    features = backbone(pictures(72))
    assert relative(features, np.array(case["features"]["72"]["mean"])) < 1e-5
    said = backbone.describe()
    assert json.loads(json.dumps(said)) == said
    assert said.items() >= {"name": "convnext-t", "pooling": "mean", "dim": 24, "grid": [2, 2]}.items()
    assert said["weights"]["dialect"] == name
    batch = pictures(72)
    batch[1] = 0
    assert np.array_equal(backbone(batch)[0], features[0])


def test_bfloat16_is_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one stage only, which is compiled faster."""
    model = replace(convnext.MODELS["convnext-t"], depths=(1,), widths=(8,))
    monkeypatch.setitem(convnext.MODELS, "convnext-t", model)
    weights = {name: array for name, array in weights_of("timm").items() if name.startswith(("stem", "stages.0"))}
    weights |= {f"head.norm.{leaf}": np.ones(8, np.float32) for leaf in ("weight", "bias")}
    file = write(weights, tmp_path)
    whole, rounded = (loaded(file, 32, monkeypatch, precision=each)(pictures(32)) for each in ("float32", "bfloat16"))
    assert 1e-5 < relative(rounded, whole) < 0.02


@pytest.mark.parametrize("name", ["timm", "transformers"])
def test_each_tensor_is_missed_or_a_part_of_the_classifier_or_a_scale(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weights_of(name)
    free = ("head.fc", "classifier", "gamma", "layer_scale_parameter")
    for tensor in (tensor for tensor in whole if not any(part in tensor for part in free)):
        rest = {key: array for key, array in whole.items() if key != tensor}
        with refuses("damaged"):
            loaded(write(rest, tmp_path), 64, monkeypatch)


@pytest.mark.parametrize(
    ("changed", "code", "named"),
    [
        ({"stages.0.blocks.0.mlp.grn.weight": [32]}, "unsupported", "mlp.grn"),
        ({"stages.0.blocks.1.gamma": [8]}, "unsupported", "blocks.1.gamma"),
        ({"stages.00.blocks.0.gamma": [8]}, "unsupported", "stages.00"),
        ({"stages.0.blocks.0.conv_dw.weight": [8, 1, 5, 5]}, "damaged", "5, 5, 8"),
        ({"stem.0.weight": [8, 1, 4, 4]}, "damaged", "4, 4, 1, 8"),
        ({"head.norm.weight": [8]}, "damaged", "8,"),
    ],
)
def test_weights_of_another_model_are_refused_by_a_tensor(
    changed: dict[str, list[int]], code: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = weights_of("timm") | {name: np.ones(shape, np.float32) for name, shape in changed.items()}
    with refuses(code, match=named):
        loaded(write(weights, tmp_path), 64, monkeypatch)


def test_colours_are_those_that_timm_wrote_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 0.25]}
    config = {"pretrained_cfg": own, "model_args": {"norm_eps": 1e-6, "patch_size": 4}, "global_pool": "avg"}
    said = loaded(write(weights_of("timm"), tmp_path, config=config), 64, monkeypatch).describe()
    assert said["preprocessing"].items() >= own.items()


def test_what_a_network_of_another_kind_needs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for config, code in (
        ({"model_args": {"norm_eps": 1e-5}}, "conflict"),
        ({"model_args": {"act_layer": "gelu_tanh"}}, "conflict"),
        ({"model_args": {"head_norm_first": True}}, "unsupported"),
        ({"global_pool": "token"}, "conflict"),
        ({"pretrained_cfg": {"crop_pct": 0.9, "input_size": [3, 64, 64]}}, "conflict"),
        ({"hidden_act": "relu"}, "damaged"),
    ):
        file = write(weights_of("timm"), tmp_path, config=config)
        with refuses(code):
            loaded(file, 64, monkeypatch)
    with refuses("conflict", parameter="pool"):
        loaded(file, 64, monkeypatch, pool="cls")
    with refuses("unsupported", parameter="model"):
        backbones.classifier(backbones.Wanted(name="convnext-t", weights=str(file)))
    with refuses("unsupported"):
        loaded(write({"blocks.0.norm1.weight": np.ones(3, np.float32)}, tmp_path), 64, monkeypatch)
