"""Checkpoints that are not what they should be: the model is built or refused, and the message names the tensor."""

import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dpfc_cli.backbones.vision_transformer.checkpoint import tensors
from dpfc_cli.errors import UserError
from tests.backbones.tiny import build, pictures, references, weights_of, write
from tests.support import refuses

# Text towers, classifiers and projections: in the files, of no use here.
UNUSED = (
    *("text_model", "pooler", "mask_token", "logit_", "visual.proj", "token_embedding", "ln_final", "head.weight"),
    *("head.bias", "text_projection"),
)


@pytest.mark.parametrize("name", ["vit-ti16", "phikon", "clip-b16", "siglip-b16"])
def test_each_tensor_is_missed_or_is_of_no_use(name: str, tmp_path: Path) -> None:
    whole = weights_of(name)
    own = "head." if name == "siglip-b16" else "none"
    unused = {
        tensor
        for tensor in whole
        if tensor.startswith(("transformer.", "positional")) or any(part in tensor for part in UNUSED)
    } - {tensor for tensor in whole if tensor.startswith(f"vision_model.{own}")}
    # Of the two blocks one will do.
    for tensor in (tensor for tensor in whole if ".1." not in tensor and tensor not in unused):
        with refuses("damaged"):
            build(write({key: array for key, array in whole.items() if key != tensor}, tmp_path), name)
    used = {key: array for key, array in whole.items() if key not in unused}
    features = [build(write(each, tmp_path), name)(pictures(16)) for each in (whole, used)]
    assert np.array_equal(features[0], features[1])


def test_an_unknown_tensor_is_never_passed_over_even_inside_a_block(tmp_path: Path) -> None:
    cases = [(name, "blocks.0.attn.q_norm.weight") for name in references()]
    for name, tensor in [*cases, ("clip-b16", "visual.transformer.resblocks.1.gate")]:
        strange = weights_of(name) | {tensor: np.ones(3, np.float32)}
        with refuses("unsupported", match=re.escape(tensor)):
            build(write(strange, tmp_path), name)


def test_positions_that_are_too_many_for_the_tokens_are_refused(tmp_path: Path) -> None:
    """A class token and four registers may have one position each, or the class token alone."""
    weights = weights_of("virchow2")
    for kept in (17, 18, 20, 21):
        file = write(weights | {"pos_embed": weights["pos_embed"][:, -kept:]}, tmp_path)
        with nullcontext() if kept in (17, 21) else refuses("damaged", match=f"{kept}, 32"):
            build(file, "virchow2")


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    weights = weights_of("phikon")
    twice = weights | {"encoder.layer.0.mlp.fc1.weight": weights["encoder.layer.0.intermediate.dense.weight"]}
    with refuses("damaged"):
        build(write(twice, tmp_path), "phikon")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    """They are wider, or deeper, or from another library."""
    whole = weights_of("vit-ti16")
    wide = {name: np.concatenate([array, array]) for name, array in whole.items()}
    deep = {name.replace("blocks.1.", "blocks.2."): array for name, array in whole.items()} | whole
    for weights, code in ((wide, "damaged"), (deep, "damaged"), (weights_of("clip-b16"), "unsupported")):
        with refuses(code):
            build(write(weights, tmp_path))


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


@pytest.mark.parametrize("name", ["siglip-b16", "virchow2"])
def test_whatever_a_tensor_is_the_model_is_built_or_refused(name: str, tmp_path: Path) -> None:
    whole = weights_of(name)
    # Of the two blocks one will do.
    for i, tensor in enumerate(tensor for tensor in whole if ".1." not in tensor):
        for odd in ODD[i % 3 :: 3]:
            try:
                build(write({**whole, tensor: odd}, tmp_path), name)
            except UserError as error:
                assert error.code in ("damaged", "unsupported"), error  # noqa: PT017
    build(write(whole, tmp_path), name)


@pytest.mark.parametrize("number", ["99999999", "9" * 5_000, "5"])
def test_a_block_of_any_number_is_missed_at_once(number: str, tmp_path: Path) -> None:
    """The blocks used to be listed up to the largest number."""
    more = {f"blocks.{number}.norm1.weight": np.ones(32, np.float32)}
    with refuses("damaged"):
        build(write({**weights_of("vit-ti16"), **more}, tmp_path))


# How it is stored


def test_bfloat16_files_are_read(tmp_path: Path) -> None:
    rounded = {key: array.astype(ml_dtypes.bfloat16) for key, array in weights_of("vit-ti16").items()}
    features = build(write(rounded, tmp_path))(pictures(16))
    again = build(write({key: array.astype(np.float32) for key, array in rounded.items()}, tmp_path))
    assert np.array_equal(features, again(pictures(16)))


def test_a_damaged_file_is_the_users_to_replace(tmp_path: Path) -> None:
    file = write(weights_of("vit-ti16"), tmp_path)
    file.write_bytes(file.read_bytes()[:1000])
    with refuses("damaged"):
        build(file)


def test_a_tensor_that_is_a_hole_of_the_disk_is_refused_by_what_it_declares(
    tmp_path: Path, room: Callable[[float], None]
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
        room(1e7)
        with refuses("memory"):
            read()
