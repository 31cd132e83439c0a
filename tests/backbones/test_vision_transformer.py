"""A Vision Transformer as a backbone: a record's features are its own, in any batch, on any number of devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones.vision_transformer import vit
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.backbones.vision_transformer.transformer import Transformer
from dpfc_cli.files import sha256_of
from dpfc_cli.geometry import Geometry
from tests.backbones.tiny import build, kept, pictures, random_weights, weights_of, write


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(weights_of("vit-ti16"), tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def small(file: Path) -> Transformer:
    return build(file, batch=4)


def ti16(cache: Path) -> Path:
    """A checkpoint of ViT-Ti/16's width, depth and patches, but small otherwise, in a cache."""
    shapes = {
        "cls_token": [1, 1, 192],
        "pos_embed": [1, 197, 192],
        "patch_embed.proj.weight": [192, 3, 16, 16],
        "patch_embed.proj.bias": [192],
        "norm.weight": [192],
        "norm.bias": [192],
    }
    for i in range(12):
        for name, outputs, inputs in (("attn.qkv", 576, 192), ("attn.proj", 192, 192), ("mlp.fc1", 8, 192)):
            shapes |= {f"blocks.{i}.{name}.weight": [outputs, inputs], f"blocks.{i}.{name}.bias": [outputs]}
        shapes |= {f"blocks.{i}.mlp.fc2.weight": [192, 8], f"blocks.{i}.mlp.fc2.bias": [192]}
        shapes |= {f"blocks.{i}.norm{n}.{leaf}": [192] for n in (1, 2) for leaf in ("weight", "bias")}
    return kept(MODELS["vit-ti16"], cache, random_weights(shapes))


# A record's features depend on its own pixels alone


def test_a_records_features_are_the_same_bits_whatever_the_others_hold(small: Transformer) -> None:
    batch = pictures(16, 4)
    features = small(batch)
    for row in (0, 3):
        for others in (np.zeros_like(batch), np.full_like(batch, 255), pictures(16, 4, seed=9)):
            others[row] = batch[row]
            assert np.array_equal(small(others)[row], features[row])


def test_features_are_the_same_where_one_head_after_the_other_attends(
    small: Transformer, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = pictures(16)
    expected = np.asarray(small(shown))
    monkeypatch.setattr(vit, "LARGEST", 0)
    assert np.allclose(build(file, batch=3)(shown), expected, atol=1e-5)


def test_rows_may_be_handed_in_without_waiting_and_their_array_filled_anew(small: Transformer) -> None:
    batch = pictures(16, 4)
    expected = small(batch)
    shared = batch.copy()
    pending = small.submit(shared)
    shared[:] = 0
    assert np.array_equal(np.asarray(pending), expected)
    assert np.array_equal(np.asarray(small.submit(batch[:3])), expected[:3])
    with pytest.raises(ValueError, match="at most 4"):
        small.submit(pictures(16, 5))


DEVICES = """
import sys, numpy as np, jax
from tests.backbones.tiny import build, pictures
backbone = build(sys.argv[1], batch=5)
assert len(jax.devices()) == 4 and backbone.batch == 8, backbone.batch
submitted = backbone.submit(pictures(16, 8))
assert len(submitted.sharding.device_set) == 4
assert {shard.data.shape for shard in submitted.addressable_shards} == {(2, 32)}
np.save(sys.argv[2], backbone(pictures(16, 11)))
"""


def test_four_devices_share_the_batch_and_give_what_one_gives(small: Transformer, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "four.npy"
    root = Path(__file__).parents[2]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", DEVICES, str(file), str(out)], check=True, env=os.environ | flags, cwd=root)
    np.testing.assert_allclose(np.load(out), small(pictures(16, 11)), atol=1e-5)


# Through `backbones.load`


def test_the_description_says_which_vector_of_which_weights_from_which_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    digest = sha256_of(ti16(tmp_path))
    said = backbones.load(backbones.Wanted(name="vit-ti16", image_shape=(224, 224, 3), preprocess="native")).describe()
    assert json.loads(json.dumps(said)) == said
    assert said["weights"] == {"id": "hf:timm/vit_tiny_patch16_224.augreg_in21k/model.safetensors", "sha256": digest}
    assert said["preprocessing"].items() >= {"recipe": "native", "resize": 248, "crop": 224}.items()
    assert said["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert said.items() >= {"name": "vit-ti16", "pooling": "cls", "dim": 192, "grid": [14, 14]}.items()
    assert said["feature"] == "class token after the final normalisation"


def test_paper_preprocessing_of_patches_of_14_drops_the_last_pixels() -> None:
    for name, model in MODELS.items():
        paper, native = backbones.geometry_of(name, "paper"), backbones.geometry_of(name, "native")
        assert paper == Geometry(resize=(384, 384), crop=256)
        assert native is not None
        assert paper.crop // model.patch == {14: 18, 16: 16, 32: 8}[model.patch]
        assert native.crop == {"rad-dino": 518, "medsiglip": 448}.get(name, 224)
        assert backbones.geometry_of(name) == (native if model.recipe == "native" else paper)
        assert model.width % model.heads == 0
    assert backbones.geometry_of("scattering", "paper") is None


def test_the_default_batch_keeps_intermediates_bounded(file: Path) -> None:
    for size in (16, 64):
        backbone = build(file, size=size, batch=None)
        pixels = np.zeros((backbone.batch, size, size, 3), np.uint8)
        program: Any = backbone._run
        compiled = program.func.lower(pixels, backbone.outer, backbone.blocks, **program.keywords).compile()
        used = compiled.memory_analysis()
        assert used is not None
        assert used.temp_size_in_bytes <= 640 << 20


def test_the_names_cost_no_import_of_jax() -> None:
    code = (
        "import sys, dpfc_cli.backbones as b; b.check(b.Wanted(name='vit-b16'));"
        "assert not {'jax', 'numpy', 'huggingface_hub', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
