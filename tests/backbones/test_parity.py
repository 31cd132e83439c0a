"""The features are those that the reference libraries compute from the same weights, in every naming of the table.

`bench/references.py` ran the libraries; here are their tensor names, and what came out.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones.vision_transformer.models import MODELS
from tests.backbones.tiny import build, kept, pictures, references, weights_of, write

REFERENCES = references()
# Position embeddings shrink (12 pixels) by the same code in all cases of a library.
SHRUNK = ("vit-ti16", "dinov2-s14", "dinov2-s14-reg")
CASES = [(name, size) for name in REFERENCES for size in ("16", "26")] + [(name, "12") for name in SHRUNK]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_feature_is_the_librarys_at_its_own_and_at_other_resolutions(name: str, size: str, tmp_path: Path) -> None:
    """Naming, activation and pooling are those of the row of the table. No shape shows them."""
    expected, file = REFERENCES[name]["features"][size], write(weights_of(name), tmp_path)
    for pool, features in expected.items():
        assert relative(build(file, name, int(size), pool)(pictures(int(size))), np.array(features)) < 1e-5
    said = build(file, name).describe()
    assert said["pooling"] in expected
    assert said["dim"] == len(expected[said["pooling"]][0])


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("vit-ti16", "pos_embed"),
        ("virchow2", "reg_token"),
        ("virchow2", "blocks.1.ls2.gamma"),
        ("dinov2-g14", "encoder.layer.0.mlp.weights_in.weight"),
        ("clip-b16", "visual.ln_pre.weight"),
        ("siglip-b16", "vision_model.head.probe"),
    ],
)
def test_the_comparison_notices_each_part(name: str, leaf: str, tmp_path: Path) -> None:
    """Planted faults: one tensor off by a tenth, and the features differ a hundred times more than allowed."""
    weights = weights_of(name)
    weights[leaf] = weights[leaf] * 1.1
    ((_, expected), *_) = REFERENCES[name]["features"]["16"].items()
    assert relative(build(write(weights, tmp_path), name)(pictures(16)), np.array(expected)) > 1e-3


def test_bfloat16_is_near(tmp_path: Path) -> None:
    backbone = build(write(weights_of("vit-ti16"), tmp_path), precision="bfloat16")
    features = backbone(pictures(16))
    assert features.dtype == np.float32
    assert backbone.describe()["precision"] == "bfloat16"
    assert 1e-5 < relative(features, np.array(REFERENCES["vit-ti16"]["features"]["16"]["cls"])) < 0.02


@pytest.mark.skipif("DPFC_REFERENCE_WEIGHTS" not in os.environ, reason="DPFC_REFERENCE_WEIGHTS names no folder")
def test_real_weights_give_the_features_that_were_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ViT-Ti/16 (AugReg): vit_ti16_augreg.safetensors with timm's names, and vit_ti16_reference.npz with Pillow's
    `resized_224` of some pictures and `features_224`, the class tokens that PyTorch computed of them.
    """
    folder = Path(os.environ["DPFC_REFERENCE_WEIGHTS"])
    stored = np.load(folder / "vit_ti16_reference.npz")
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    place = kept(MODELS["vit-ti16"], tmp_path, {"any": np.ones(1)})
    place.write_bytes((folder / "vit_ti16_augreg.safetensors").read_bytes())
    prepared = backbones.load(
        backbones.Wanted(name="vit-ti16", image_shape=(224, 224, 3), preprocess="native", batch=8)
    )
    assert relative(prepared(stored["resized_224"]), stored["features_224"]) < 1e-4
