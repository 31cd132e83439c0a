"""The features are those that the reference libraries compute from the same weights, in every dialect.

`bench/references.py` ran the libraries; here are their tensor names, and what came out.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones.vision_transformer.models import MODELS
from tests.backbones.tiny import build, pictures, random_weights, references, write

REFERENCES = references()
# Position embeddings shrink (12 pixels) by the same code in all cases of a library.
SHRUNK = ("timm-vit", "augreg", "transformers-5-vit", "transformers-5-dinov2-reg")
# The names before transformers' version 5 are held against the same function: its native resolution is enough.
CASES = [(name, "16") for name in REFERENCES]
# So it is for what has no positions of its own kind.
OTHERS = (
    *SHRUNK,
    "timm-vit-reg-scale",
    "timm-virchow2",
    "transformers-5-deit-distilled",
    "openai-clip",
    "big-vision-siglip",
)
CASES += [(name, "26") for name in OTHERS] + [(name, "12") for name in SHRUNK]


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.linalg.norm(theirs, axis=1).min())


@pytest.mark.parametrize(("name", "size"), CASES)
def test_the_feature_is_the_librarys_at_its_own_and_at_other_resolutions(name: str, size: str, tmp_path: Path) -> None:
    case = REFERENCES[name]
    file = write(random_weights(case["shapes"]), tmp_path, case["kind"], case["config"])
    for pool, expected in case["features"][size].items():
        assert relative(build(file, int(size), pool)(pictures(int(size))), np.array(expected)) < 1e-5


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
        ("timm-virchow2", "reg_token"),
        ("open-clip-timm", "visual.trunk.cls_token"),
    ],
)
def test_the_comparison_notices_each_part(name: str, leaf: str, tmp_path: Path) -> None:
    """Planted faults: one tensor off by a tenth, and the features differ a hundred times more than allowed."""
    case = REFERENCES[name]
    weights = random_weights(case["shapes"])
    weights[leaf] = weights[leaf] * 1.1 + 0.1
    pool, expected = next(iter(case["features"]["16"].items()))
    assert relative(build(write(weights, tmp_path, config=case["config"]), 16, pool)(pictures(16)), expected) > 1e-3


FIELDS = {
    "rad-dino": "transformers-5-dinov2",
    "medsiglip": "transformers-5-siglip-whole",
    "biomedclip": "open-clip-timm",
    "phikon": "transformers-5-vit",
    "phikon-v2": "transformers-5-dinov2",
    "uni": "timm-uni",
    "uni2-h": "timm-uni2-h",
    "virchow2": "timm-virchow2",
}
"""The towers of clinical fields, and the reference of the same configuration."""


@pytest.mark.parametrize("name", FIELDS)
def test_a_model_of_a_field_is_in_the_table_as_its_reference_is_run(name: str, tmp_path: Path) -> None:
    """Activation and pooling, which no shape shows. So the comparison above holds for the row of the table, too."""
    case, row = REFERENCES[FIELDS[name]], MODELS[name]
    stated = case["config"].get("vision_config", case["config"]).get("hidden_act", "gelu")
    assert row.activation == {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}[stated]
    file = write(random_weights(case["shapes"]), tmp_path, case["kind"], {"num_attention_heads": 2})
    said = build(file, pool=None, published=row.pool).describe()
    assert said["pooling"] == row.pool
    assert row.pool in case["features"]["16"]
    assert said["dim"] == len(case["features"]["16"][row.pool][0])


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
    """ViT-Ti/16 (AugReg): vit_ti16_augreg.safetensors with timm's names, and vit_ti16_reference.npz with Pillow's
    `resized_224` of some pictures and `features_224`, the class tokens that PyTorch computed of them.
    """
    folder = Path(os.environ["DPFC_REFERENCE_WEIGHTS"])
    stored = np.load(folder / "vit_ti16_reference.npz")
    weights = str(folder / "vit_ti16_augreg.safetensors")
    prepared = backbones.load(
        backbones.Wanted(name="vit-ti16", image_shape=(224, 224, 3), preprocess="native", weights=weights, batch=8)
    )
    assert relative(prepared(stored["resized_224"]), stored["features_224"]) < 1e-4
