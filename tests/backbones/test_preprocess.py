"""Preprocessing: Pillow's resizing bit for bit, grey becomes colour, patches in their order."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dpfc_cli.backbones.preprocess import normalised, patches, resized
from dpfc_cli.geometry import Geometry

PAPER = Geometry(resize=(384, 384), crop=256)
KINDS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def pictures(height: int, width: int, colours: int = 3) -> np.ndarray:
    """Noise, a ramp, and extremes side by side: overshoots are cut at both ends."""
    random = np.random.default_rng(0)
    noise = random.integers(0, 256, (height, width, colours), dtype=np.uint8)
    ramp = np.broadcast_to(np.linspace(0, 255, width)[None, :, None], (height, width, colours)).astype(np.uint8)
    board = (255 * (np.indices((height, width)).sum(0) // 3 % 2))[..., None].repeat(colours, 2).astype(np.uint8)
    return np.stack([noise, ramp, board])


def pillows(picture: np.ndarray, geometry: Geometry) -> np.ndarray:
    image = Image.fromarray(picture.squeeze())
    width, height = image.size
    if isinstance(geometry.resize, int):
        across, down = (geometry.resize * side // min(width, height) for side in (width, height))
    else:
        down, across = geometry.resize
    image = image.resize((across, down), KINDS[geometry.filter])
    left, top = (round((side - geometry.crop) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + geometry.crop, top + geometry.crop)))


def ours(batch: np.ndarray, geometry: Geometry) -> np.ndarray:
    """As a backbone does it: all steps compiled together."""
    return np.asarray(jax.jit(partial(resized, geometry=geometry))(batch)).transpose(0, 2, 3, 1)


@pytest.mark.parametrize(
    ("height", "width", "geometry"),
    [
        (32, 32, PAPER),
        (28, 28, PAPER),
        (64, 48, PAPER),
        (32, 32, Geometry(resize=248, crop=224)),
        (40, 33, Geometry(resize=256, crop=224)),
        (32, 32, Geometry(resize=(224, 224), crop=224)),
        (300, 420, Geometry(resize=56, crop=48)),
        (224, 224, Geometry(resize=224, crop=224)),
        (32, 48, Geometry(resize=64, crop=64, filter="bilinear")),
        (96, 80, Geometry(resize=(33, 31), crop=24, filter="bilinear")),
    ],
)
def test_every_byte_is_pillows(height: int, width: int, geometry: Geometry) -> None:
    batch = pictures(height, width)
    expected = np.stack([pillows(picture, geometry) for picture in batch])
    assert np.array_equal(ours(batch, geometry), expected)


def test_pictures_shrunk_beyond_exactness_are_off_by_one_at_most() -> None:
    batch, small = pictures(700, 700, 1), Geometry(resize=16, crop=16)
    difference = ours(batch, small)[..., 0] - np.stack([pillows(picture, small) for picture in batch])
    assert np.abs(difference).max() <= 1


def test_grey_becomes_colour() -> None:
    batch = pictures(28, 28, 1)
    mean, std = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    planes = np.asarray(jax.jit(lambda batch: normalised(resized(batch, PAPER), mean, std))(batch))
    grey = ours(batch, PAPER)[..., 0] / 255
    assert planes.shape == (3, 3, 256, 256)
    for colour in range(3):
        np.testing.assert_allclose(planes[:, colour], (grey - mean[colour]) / std[colour], atol=1e-6)


def test_patches_lie_row_by_row_and_what_they_do_not_cover_is_dropped() -> None:
    side, patch = 11, 4
    planes = np.arange(2 * 3 * side * side, dtype=np.float32).reshape(2, 3, side, side)
    rows = np.asarray(patches(jnp.asarray(planes), patch))
    assert rows.shape == (2, 4, 48)
    expected = planes[1, :, 4:8, 0:4].transpose(1, 2, 0)
    assert np.array_equal(rows[1, 2].reshape(4, 4, 3), expected)
