"""Checkpoints from strangers: whatever a tensor or a configuration is, the model is built or refused."""

import io
import json
import os
import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli import memory
from dpfc_cli.backbones import hub
from dpfc_cli.backbones.checkpoint import tensors
from dpfc_cli.backbones.stated import stated
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.errors import UserError
from dpfc_cli.files import json_of
from dpfc_cli.geometry import Geometry
from tests.backbones.tiny import build, random_weights, references, write
from tests.hostile import altered, places
from tests.support import refuses

REFERENCES = references()
NAMES = ["timm-siglip", "augreg"]
ODD: list[np.ndarray] = [
    np.array(1, np.float32),
    np.zeros(0, np.float32),
    np.ones((1, 1), np.float32),
    np.ones((3, 0, 2), np.float32),
    np.ones((2, 3, 4, 5), np.float32),
    np.ones((1,) * 7, np.float32),
    np.ones(33, np.int64),
    np.ones(33, bool),
]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_tensor_is_the_model_is_built_or_refused(name: str, tmp_path: Path) -> None:
    case = REFERENCES[name]
    whole = random_weights(case["shapes"])
    # Of the two blocks one will do.
    for i, tensor in enumerate(tensor for tensor in whole if "1." not in tensor and "_1/" not in tensor):
        for odd in ODD[i % 3 :: 3]:
            try:
                build(write({**whole, tensor: odd}, tmp_path, case["kind"], case["config"]))
            except UserError as error:
                assert error.code in ("damaged", "unsupported", "conflict"), error  # noqa: PT017
    build(write(whole, tmp_path, case["kind"], case["config"]))


@pytest.mark.parametrize("number", ["99999999", "9" * 5_000, "5"])
def test_a_block_of_any_number_is_missed_at_once(number: str, tmp_path: Path) -> None:
    """The blocks used to be listed up to the largest number."""
    whole = random_weights(REFERENCES["timm-vit"]["shapes"])
    more = {f"blocks.{number}.norm1.weight": np.ones(32, np.float32)}
    with pytest.raises(UserError) as caught:
        build(write({**whole, **more}, tmp_path))
    assert caught.value.code in ("damaged", "unsupported")


CONFIG = {
    "architecture": "vit_base_patch16_clip_224",
    "pretrained_cfg": {"tag": "openai", "notes": ["a"]},
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 2,
    "vision_config": {"model_type": "clip_vision_model", "hidden_act": "gelu", "num_attention_heads": 2},
}


def test_whatever_stands_in_a_configuration_the_model_is_built_or_refused(tmp_path: Path) -> None:
    file = write(random_weights(REFERENCES["openai-clip"]["shapes"]), tmp_path, config=CONFIG)
    build(file)
    for text in (text for place in places(CONFIG) for text in altered(CONFIG, place)):
        (tmp_path / "config.json").write_text(text)
        try:
            build(file)
        except UserError as error:
            assert error.code in ("damaged", "unsupported", "conflict"), error  # noqa: PT017


OTHERS = {
    "preprocessor_config.json": {
        "do_normalize": True, "do_rescale": True, "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "resample": 3,
        "image_std": [0.5] * 3, "size": {"height": 248, "width": 248}, "do_center_crop": True, "crop_size": 224,
    },
    "open_clip_config.json": {
        "model_cfg": {"quick_gelu": False, "vision_cfg": {"width": 192, "timm_pool": "token", "image_size": 224}},
        "preprocess_cfg": {"size": [224, 224], "resize_mode": "squash", "interpolation": "bicubic"},
    },
}  # fmt: skip
TIMM = {
    "architecture": "vit", "model_args": {"num_heads": 3, "img_size": 224}, "global_pool": "token",
    "pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.9, "crop_mode": "squash"},
}  # fmt: skip


def test_whatever_stands_in_the_files_beside_weights_is_used_or_refused() -> None:
    whole = {"config.json": TIMM, **OTHERS}
    for text in (text for place in places(whole) if place for text in altered(whole, place)):
        try:
            files = {name: said for name, said in json_of(text).items() if isinstance(said, dict)}
        except ValueError:
            continue
        located = hub.Located(id="x", file=Path(), config=files.pop("config.json", {}), expected=None, others=files)
        for native in (None, Geometry(resize=(248, 248), crop=224)):
            with suppress(UserError):
                stated(located, MODELS["vit-ti16"], native, width=192)


def test_a_configuration_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    file = write({"a": np.ones(1, np.float32)}, tmp_path)
    os.mkfifo(tmp_path / "config.json")
    assert hub.locate(str(file)).config == {}


def test_a_tensor_that_memory_cannot_hold_is_refused_by_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MB in an archive of 40 kB."""
    monkeypatch.setattr(memory, "free_memory", lambda: 1e7)
    header = io.BytesIO()
    fields: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (10_000_000,)}
    np.lib.format.write_array_header_1_0(header, fields)
    whole = random_weights(REFERENCES["augreg"]["shapes"])
    file = write({name: array for name, array in whole.items() if name != "cls"}, tmp_path, "npz")
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cls.npy", header.getvalue() + bytes(40_000_000))
    with refuses("memory", needed=80000000):
        build(file)


def test_a_tensor_that_is_a_hole_of_the_disk_is_refused_by_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (10_000_000,)
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 40_000_000]}
    header = json.dumps({"a": tensor}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + 40_000_000)
    with ExitStack() as stack:
        (read,) = tensors(path, stack).values()
        assert read().shape == shape
        monkeypatch.setattr(memory, "free_memory", lambda: 1e7)
        with refuses("memory"):
            read()
