"""Checkpoints that are not what they should be: one message, which names the tensor."""

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dpfc_cli import backbones
from tests.backbones.tiny import build, pictures, random_weights, references, write
from tests.support import refuses

REFERENCES = references()
# Text towers, classifiers and projections: in the files, of no use here.
UNUSED = (
    "text_model", "pooler", "classifier", "logit_scale", "_projection", "visual.proj", "token_embedding", "ln_final",
    "head.weight", "head.bias", "head/", "pre_logits",
)  # fmt: skip


def weights_of(name: str) -> dict[str, np.ndarray]:
    return random_weights(REFERENCES[name]["shapes"])


# What a file holds


DIALECTS = ["timm-siglip", "transformers-5-vit", "transformers-4-clip-whole", "openai-clip", "augreg"]


@pytest.mark.parametrize("name", DIALECTS)
def test_each_tensor_is_missed_or_is_of_no_use(name: str, tmp_path: Path) -> None:
    case, whole = REFERENCES[name], weights_of(name)
    unused = [
        tensor for tensor in whole if any(part in tensor for part in UNUSED) or tensor.startswith(("t", "positional"))
    ]
    # Of the two blocks one will do.
    for tensor in (tensor for tensor in whole if "1." not in tensor and "_1/" not in tensor and tensor not in unused):
        rest = {key: array for key, array in whole.items() if key != tensor}
        with refuses("damaged"):
            build(write(rest, tmp_path, case["kind"], case["config"]))
    used = {key: array for key, array in whole.items() if key not in unused}
    features = [build(write(each, tmp_path, case["kind"], case["config"]))(pictures(16)) for each in (whole, used)]
    assert np.array_equal(features[0], features[1])


def test_an_unknown_tensor_is_never_passed_over_even_inside_a_block(tmp_path: Path) -> None:
    cases = [(name, "blocks.0.attn.q_norm.weight") for name in REFERENCES]
    for name, tensor in [*cases, ("openai-clip", "visual.transformer.resblocks.1.gate")]:
        case, strange = REFERENCES[name], weights_of(name) | {tensor: np.ones(3, np.float32)}
        with refuses("unsupported", match=re.escape(tensor)):
            build(write(strange, tmp_path, case["kind"], case["config"]))


def test_positions_that_are_too_many_for_the_tokens_are_refused(tmp_path: Path) -> None:
    """A class token and four registers may have one position each, or the class token alone, or none of them."""
    weights = weights_of("timm-virchow2")
    for kept in (17, 18, 20, 21):
        file = write(weights | {"pos_embed": weights["pos_embed"][:, -kept:]}, tmp_path)
        with nullcontext() if kept in (17, 21) else refuses("damaged", match=f"{kept}, 32"):
            build(file)


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    weights = weights_of("transformers-5-vit")
    twice = weights | {"encoder.layer.0.intermediate.dense.weight": weights["layers.0.mlp.fc1.weight"]}
    with refuses("damaged"):
        build(write(twice, tmp_path, config=REFERENCES["transformers-5-vit"]["config"]))


# How it is stored


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_bfloat16_files_are_read(kind: str, tmp_path: Path) -> None:
    name = "big-vision" if kind == "npz" else "timm-vit"
    rounded = {key: array.astype(ml_dtypes.bfloat16) for key, array in weights_of(name).items()}
    config = {"num_attention_heads": 2}
    features = build(write(rounded, tmp_path, kind, config))(pictures(16))
    again = build(write({k: a.astype(np.float32) for k, a in rounded.items()}, tmp_path, kind, config))
    assert np.array_equal(features, again(pictures(16)))


def test_a_damaged_file_is_the_users_to_replace(tmp_path: Path) -> None:
    for kind, name in (("safetensors", "timm-vit"), ("npz", "augreg")):
        file = write(weights_of(name), tmp_path, kind)
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with refuses("damaged"):
            build(file)
        # A bit turned inside an archive is caught by its checksum; safetensors has none, the manifest's SHA-256 tells.
        if kind == "npz":
            file.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
            with refuses("damaged"):
                build(file)


def test_pickles_in_an_archive_are_not_opened(tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    np.savez(file, allow_pickle=True, **weights_of("augreg"), trap=np.array([{}], object))
    with refuses("damaged"):
        build(file)
    np.savez(file, allow_pickle=True, **(weights_of("augreg") | {"cls": np.array([{}], object)}))
    with refuses("damaged"):
        build(file)


def test_pickles_are_refused_with_the_reason_and_the_way_out(tmp_path: Path) -> None:
    for name in ("model.pt", "pytorch_model.bin", "x.pth", "y.ckpt"):
        (tmp_path / name).write_bytes(b"\x80\x04.")
        for weights in (str(tmp_path / name), f"hf:some/where/{name}", str(tmp_path)):
            with refuses("unsupported", match=r"safetensors\.torch\.save_file", parameter="weights"):
                backbones.check(backbones.Wanted(name="vit-b16", preprocess="paper", weights=weights))


def test_weights_that_are_not_there_or_no_weights_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        (tmp_path / "two" / f"{name}.safetensors").touch()
    for weights, code in (
        (str(tmp_path / "two"), "conflict"),
        (str(tmp_path / "none.safetensors"), "missing"),
        (str(tmp_path / "notes.txt"), "unsupported"),
        (str(tmp_path), "missing"),
        ("hf:timm", "bad-value"),
    ):
        with refuses(code, parameter="weights"):
            backbones.check(backbones.Wanted(name="vit-b16", preprocess="paper", weights=weights))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    file = write(weights_of("timm-vit"), tmp_path)
    with refuses("conflict", match="32, not 768", parameter="weights"):
        backbones.load(backbones.Wanted(name="vit-b16", image_shape=(16, 16, 3), weights=str(file)))


def test_a_pooling_that_the_checkpoint_lacks_is_refused(tmp_path: Path) -> None:
    for name, pool in (("timm-vit", "map"), ("timm-siglip", "cls")):
        file = write(weights_of(name), tmp_path, config=REFERENCES[name]["config"])
        with refuses("conflict", parameter="pool"):
            build(file, pool=pool)


# Which activation a CLIP was trained with

OWN = "timm/vit_base_patch32_clip_224.openai/open_clip_model.safetensors"
PLAIN = {"architecture": "vit_base_patch32_clip_224", "pretrained_cfg": {"tag": "laion2b_e16"}}


def activation_of(file: Path, **others: Any) -> str:
    backbone = build(file, home=OWN, activation="quick_gelu", epsilon=1e-5, **others)
    activation: str = backbone.describe()["architecture"]["activation"]
    return activation


ACTIVATIONS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_act": "gelu"}, "gelu"),
    ({"vision_config": {"hidden_act": "gelu"}, "model_type": "clip"}, "gelu"),
    # transformers leaves out what is its format's default.
    ({"vision_config": {"patch_size": 4}, "model_type": "clip"}, "quick_gelu"),
    ({"model_type": "clip_vision_model"}, "quick_gelu"),
    (PLAIN, "gelu"),
    ({"architecture": "vit_base_patch32_clip_224"}, "gelu"),
    ({"architecture": "vit_base_patch32_clip_224", "tag": "openai"}, "quick_gelu"),
    (PLAIN | {"pretrained_cfg": {"tag": "openai"}}, "quick_gelu"),
    # Fine-tuned with the activation that the architecture names.
    (PLAIN | {"pretrained_cfg": {"tag": "openai_ft_in1k"}}, "gelu"),
    (PLAIN | {"architecture": "vit_base_patch32_clip_quickgelu_224"}, "quick_gelu"),
    (PLAIN | {"model_args": {"act_layer": "quick_gelu"}}, "quick_gelu"),
    (PLAIN | {"pretrained_cfg": {"tag": "new", "notes": ["natively QuickGELU"]}}, "quick_gelu"),
    (PLAIN | {"pretrained_cfg": {"tag": "metaclip_2pt5b"}}, "quick_gelu"),
    (PLAIN | {"pretrained_cfg": {"tag": "laion400m_e32"}}, "quick_gelu"),
    (PLAIN | {"architecture": "vit_base_patch16_clip_224", "pretrained_cfg": {"tag": "laion400m_e32"}}, "gelu"),
    (PLAIN | {"pretrained_cfg": "senseless"}, "gelu"),
]


def test_a_clip_is_run_with_the_activation_it_was_trained_with(tmp_path: Path) -> None:
    for config, activation in ACTIVATIONS:
        assert activation_of(write(weights_of("openai-clip"), tmp_path, config=config)) == activation, config


def test_a_clip_that_does_not_say_its_activation_is_refused_unless_it_is_the_tables_own(tmp_path: Path) -> None:
    file = write(weights_of("openai-clip"), tmp_path)
    for config in (None, {}, {"num_attention_heads": 2}, {"architecture": 1}):
        file = write(weights_of("openai-clip"), tmp_path, config=config)
        with refuses("missing") as caught:
            activation_of(file)
        assert '"hidden_act": "gelu"' in caught.value.remedy
    assert activation_of(file, located_as=f"hf:{OWN}") == "quick_gelu"
