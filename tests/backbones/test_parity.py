"""The features are those that the reference libraries compute from the same weights, in every dialect.

`bench/references.py` ran the libraries; here are their tensor names, and what came out.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import backbones
from tests.backbones.tiny import build, pictures, random_weights, references, write

REFERENCES = references()
# Position embeddings shrink (12 pixels) by the same code in all cases of a library.
SHRUNK = ("timm-vit", "augreg", "transformers-5-vit", "transformers-5-dinov2-reg")
# The names before transformers' version 5 are held against the same function: its native resolution is enough.
CASES = [(name, "16") for name in REFERENCES]
CASES += [(name, "26") for name in REFERENCES if "-4-" not in name] + [(name, "12") for name in SHRUNK]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_feature_is_the_librarys_at_its_own_and_at_other_resolutions(name: str, size: str, tmp_path: Path) -> None:
    case = REFERENCES[name]
    file = write(random_weights(case["shapes"]), tmp_path, case["kind"], case["config"])
    pool, expected = next(iter(case["features"][size].items()))
    assert relative(build(file, int(size), pool)(pictures(int(size))), np.array(expected)) < 1e-5


@pytest.mark.parametrize("name", ["timm-vit-reg-scale", "transformers-5-deit-distilled", "openai-clip"])
def test_the_mean_is_over_the_patches_tokens_alone(name: str, tmp_path: Path) -> None:
    case = REFERENCES[name]
    file = write(random_weights(case["shapes"]), tmp_path, case["kind"], case["config"])
    assert relative(build(file, 16, "mean")(pictures(16)), np.array(case["features"]["16"]["mean"])) < 1e-5


def test_the_pooling_a_checkpoint_was_trained_with_is_the_default(tmp_path: Path) -> None:
    for name, pool in (("timm-vit", "cls"), ("timm-vit-gap", "mean"), ("timm-siglip", "map")):
        case = REFERENCES[name]
        backbone = build(write(random_weights(case["shapes"]), tmp_path, config=case["config"]))
        assert backbone.describe()["pooling"] == pool


@pytest.mark.parametrize(
    ("name", "leaf"),
    [
        ("timm-vit", "pos_embed"),
        ("timm-vit-reg-scale", "reg_token"),
        ("timm-vit-reg-scale", "blocks.1.ls2.gamma"),
        ("transformers-5-dinov2-giant", "encoder.layer.0.mlp.gate_proj.weight"),
        ("transformers-5-deit-distilled", "embeddings.distillation_token"),
        ("transformers-5-clip", "pre_layrnorm.weight"),
        ("timm-siglip", "attn_pool.latent"),
    ],
)
def test_the_comparison_notices_each_part(name: str, leaf: str, tmp_path: Path) -> None:
    """Planted faults: one tensor off by a tenth, and the features differ a hundred times more than allowed."""
    case = REFERENCES[name]
    weights = random_weights(case["shapes"])
    weights[leaf] = weights[leaf] * 1.1 + 0.1
    pool, expected = next(iter(case["features"]["16"].items()))
    assert relative(build(write(weights, tmp_path, config=case["config"]), 16, pool)(pictures(16)), expected) > 1e-3


def test_bfloat16_is_near(tmp_path: Path) -> None:
    case = REFERENCES["timm-vit"]
    file = write(random_weights(case["shapes"]), tmp_path, config=case["config"])
    backbone = build(file, precision="bfloat16")
    features = backbone(pictures(16))
    assert features.dtype == np.float32
    assert backbone.describe()["precision"] == "bfloat16"
    assert 1e-5 < relative(features, np.array(case["features"]["16"]["cls"])) < 0.02


@pytest.mark.skipif("DPFC_REFERENCE_WEIGHTS" not in os.environ, reason="DPFC_REFERENCE_WEIGHTS names no folder")
def test_real_weights_give_the_features_that_were_stored() -> None:
    """ViT-Ti/16 and what PyTorch computed with it: see `bench/parity.py`."""
    folder = Path(os.environ["DPFC_REFERENCE_WEIGHTS"])
    stored = np.load(folder / "vit_ti16_reference.npz")
    weights = str(folder / "vit_ti16_augreg.safetensors")
    prepared = backbones.load("vit-ti16", (224, 224, 3), preprocess="native", weights=weights, batch=8, prepared=True)
    assert relative(prepared(stored["resized_224"]), stored["features_224"]) < 1e-4
