"""A Vision Transformer as a backbone: a record's features are its own, in any batch, on any number of devices."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones.vision_transformer import vit
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.backbones.vision_transformer.transformer import Transformer
from dpfc_cli.geometry import Geometry
from tests.backbones.tiny import build, pictures, random_weights, references, write
from tests.support import refuses

CASE = references()["timm-vit"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(random_weights(CASE["shapes"]), tmp_path_factory.mktemp("weights"), config=CASE["config"])


@pytest.fixture(scope="module")
def small(file: Path) -> Transformer:
    return build(file, batch=4)


def ti16(folder: Path) -> Path:
    """A checkpoint of ViT-Ti/16's width, depth and patches, but small otherwise."""
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
    return write(random_weights(shapes), folder)


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


def test_the_description_says_which_vector_of_which_weights_from_which_pixels(tmp_path: Path) -> None:
    weights = ti16(tmp_path)
    said = backbones.load(
        backbones.Wanted(name="vit-ti16", image_shape=(224, 224, 3), weights=str(weights), preprocess="native")
    ).describe()
    assert json.loads(json.dumps(said)) == said
    assert said["weights"]["id"] == "model.safetensors"
    assert said["weights"]["dialect"] == "timm"
    assert len(said["weights"]["sha256"]) == 64
    assert said["preprocessing"].items() >= {"recipe": "native", "resize": 248, "crop": 224}.items()
    assert said["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert said.items() >= {"name": "vit-ti16", "pooling": "cls", "dim": 192, "grid": [14, 14]}.items()
    assert said["feature"] == "class token after the final normalisation"
    # The same weights in another place are the same backbone.
    again = backbones.load(
        backbones.Wanted(name="vit-ti16", image_shape=(224, 224, 3), weights=str(tmp_path), preprocess="native")
    ).describe()
    assert again | {"weights": None} == said | {"weights": None}
    assert again["weights"]["sha256"] == said["weights"]["sha256"]


OWN = {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 0.25]}
TWO = {"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 0.5, 0.25]}
SQUARE = {"input_size": [3, 224, 224], "crop_pct": 0.9, "crop_mode": "center", "interpolation": "bicubic"}
CONFIG, PIXELS, PROCESSOR, CLIP = (
    f"{name}config.json" for name in ("", "preprocessor_", "processor_", "open_clip_")
)  # fmt: skip
# Files beside the weights, and what the description says of the model; or the code of the refusal.
STATED: list[tuple[dict[str, Any], dict[str, Any] | str]] = [
    ({CONFIG: {"pretrained_cfg": OWN}}, OWN),
    ({CONFIG: OWN}, OWN),
    ({CONFIG: {"pretrained_cfg": SQUARE}}, {"mean": [0.5] * 3, "heads": 3, "activation": "gelu", "pooling": "cls"}),
    ({PIXELS: TWO | {"do_rescale": True, "rescale_factor": 1 / 255, "size": 224, "resample": 2}}, OWN),
    ({PIXELS: TWO | {"do_normalize": False}}, {"mean": [0] * 3, "std": [1] * 3}),
    ({PROCESSOR: {"image_processor": TWO}}, OWN),
    ({CLIP: {"preprocess_cfg": OWN}, PIXELS: TWO, CONFIG: OWN}, OWN),
    ({CONFIG: {"model_args": {"num_heads": 4, "norm_eps": 1e-5, "init_values": 1}}}, {"heads": 4, "epsilon": 1e-5}),
    ({CONFIG: {"model_args": {"act_layer": "quick_gelu", "img_size": 224}}}, {"activation": "quick_gelu"}),
    ({CONFIG: {"architecture": "vit_base_patch16_clip_quickgelu_224"}}, {"activation": "quick_gelu"}),
    ({CONFIG: {"model_type": "clip_vision_model", "hidden_size": 192}}, {"activation": "quick_gelu"}),
    ({CLIP: {"model_cfg": {"quick_gelu": True, "vision_cfg": {"width": 192}}}}, {"activation": "quick_gelu"}),
    ({CLIP: {"model_cfg": {"quick_gelu": True, "vision_cfg": {"timm_model_name": "x"}}}}, {"activation": "gelu"}),
    ({CONFIG: {"global_pool": "avg"}}, {"pooling": "mean"}),
    ({CONFIG: {"mean": [0.1] * 3}}, "damaged"),
    ({PIXELS: {"image_std": [0.1] * 3}}, "damaged"),
    ({CONFIG: OWN | {"std": [0, 1, 1]}}, "damaged"),
    ({CONFIG: OWN | {"mean": [0.1, "x", 0.1]}}, "damaged"),
    ({CONFIG: OWN | {"std": 1}}, "damaged"),
    ({CONFIG: {"global_pool": "max"}}, "damaged"),
    ({CONFIG: {"model_args": {"act_layer": "silu"}}}, "damaged"),
    ({PIXELS: {"do_rescale": False}}, "damaged"),
    ({PIXELS: {"rescale_factor": 1 / 127.5}}, "damaged"),
    ({CONFIG: OWN, PIXELS: TWO | {"image_mean": [0.5] * 3}}, "conflict"),
    ({CONFIG: {"num_hidden_layers": 11}}, "conflict"),
    ({CONFIG: {"patch_size": 32}}, "conflict"),
    ({CLIP: {"model_cfg": {"vision_cfg": {"width": 384}}}}, "conflict"),
    ({CONFIG: {"global_pool": "map"}}, "conflict"),
    # 14 × 14 places are as many as 7 × 28.
    ({CONFIG: {"model_args": {"img_size": [112, 448]}}}, "unsupported"),
    ({CONFIG: {"pretrained_cfg": {"input_size": [3, 112, 448]}}}, "unsupported"),
    ({CONFIG: {"model_args": {"norm_layer": "rmsnorm"}}}, "unsupported"),
    ({CLIP: {"model_cfg": {"vision_cfg": {"pool_type": "avg"}}}}, "unsupported"),
]
# The recipe of the model's authors: 224 pixels of 248, bicubic.
NATIVE: list[tuple[dict[str, Any], bool]] = [
    ({CONFIG: {"pretrained_cfg": SQUARE}, PIXELS: {"size": {"shortest_edge": 248}, "resample": 3}}, False),
    ({CONFIG: {"pretrained_cfg": SQUARE}}, True),
    ({PIXELS: {"size": {"shortest_edge": 248}, "crop_size": 224, "do_center_crop": True, "resample": 3}}, True),
    ({CLIP: {"preprocess_cfg": {"interpolation": "bicubic"}}}, True),
    *(({CONFIG: SQUARE | other}, False) for other in (
        {"input_size": [3, 384, 384]}, {"crop_pct": 1.0}, {"crop_mode": "squash"}, {"interpolation": "bilinear"},
    )),
    ({PIXELS: {"size": 224}}, False),
    ({PIXELS: {"resample": 2}}, False),
    ({CLIP: {"preprocess_cfg": {"size": 224}}}, False),
]  # fmt: skip


def beside(folder: Path, files: dict[str, Any], preprocess: str) -> dict[str, Any]:
    """What is said of a model with these files beside its weights, in one level."""
    for name in (CONFIG, PIXELS, PROCESSOR, CLIP):
        (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    side = {"paper": 256, "native": 224}[preprocess]
    wanted = backbones.Wanted(name="vit-ti16", image_shape=(side, side, 3), weights=str(folder), preprocess=preprocess)
    said = backbones.load(wanted).describe()
    return {**said, **said["architecture"], **said["preprocessing"]}


def test_what_files_beside_the_weights_state_is_used_or_refused(tmp_path: Path) -> None:
    ti16(tmp_path)
    for files, expected in STATED:
        with refuses(expected) if isinstance(expected, str) else nullcontext():
            said = beside(tmp_path, files, "paper")
            assert said.items() >= (expected.items() if isinstance(expected, dict) else set()), files


def test_pictures_that_are_to_be_prepared_otherwise_are_refused_by_the_recipe_of_the_authors(tmp_path: Path) -> None:
    ti16(tmp_path)
    for files, same in NATIVE:
        with nullcontext() if same else refuses("conflict"):
            beside(tmp_path, files, "native")


def test_paper_preprocessing_of_patches_of_14_drops_the_last_pixels() -> None:
    for name, model in MODELS.items():
        paper, native = backbones.geometry_of(name, "paper"), backbones.geometry_of(name, "native")
        assert paper == Geometry(resize=(384, 384), crop=256)
        assert native is not None
        assert paper.crop // model.patch == {14: 18, 16: 16, 32: 8}[model.patch]
        assert native.crop == {"rad-dino": 518, "medsiglip": 448}.get(name, 224)
        assert backbones.geometry_of(name) == (native if model.recipe == "native" else paper)
        assert model.width is None or model.width % model.heads == 0
    assert backbones.geometry_of("scattering", "paper") is None


def test_the_default_batch_keeps_intermediates_bounded(file: Path) -> None:
    for size in (16, 64):
        backbone = build(file, size, batch=None)
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
