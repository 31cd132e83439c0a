"""Encoded pictures become pixels. Resizing and cropping in one step gives the same as doing both in turn."""

import io

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images import Geometry, Preparation
from dpfc_cli.images.decoding import FILTERS, decode, fitted

SIZES = [(500, 375), (375, 500), (32, 32), (1, 1), (640, 11), (300, 301), (1030, 777)]
GEOMETRIES = [
    Geometry(resize=(384, 384), crop=256),
    Geometry(resize=256, crop=224),
    Geometry(resize=248, crop=224, filter="bilinear"),
    Geometry(resize=(33, 47), crop=31),
    Geometry(resize=224, crop=224),
]


def noise(size: tuple[int, int], seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8))


def in_two_steps(image: Image.Image, geometry: Geometry) -> np.ndarray:
    """torchvision's Resize and CenterCrop, written out."""
    if isinstance(geometry.resize, int):
        short = min(image.size)
        width, height = (geometry.resize if s == short else int(geometry.resize * s / short) for s in image.size)
    else:
        height, width = geometry.resize
    whole = image.resize((width, height), FILTERS[geometry.filter])
    left, top = (round((s - geometry.crop) / 2.0) for s in (width, height))
    return np.asarray(whole.crop((left, top, left + geometry.crop, top + geometry.crop)), int)


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_one_step_equals_two_up_to_rounding(size: tuple[int, int], geometry: Geometry) -> None:
    image = noise(size)
    expected, found = in_two_steps(image, geometry), np.asarray(fitted(image, geometry), int)
    assert found.shape == (geometry.crop, geometry.crop, 3)
    off = np.abs(found - expected)
    # Each of the two passes may round differently.
    assert off.max() <= 2
    assert (off > 0).mean() <= 0.05


def test_a_crop_larger_than_the_picture_is_black_around_it() -> None:
    found = np.asarray(fitted(Image.new("RGB", (8, 8), (9, 9, 9)), Geometry(resize=8, crop=12)))
    assert found.shape == (12, 12, 3)
    assert (found[2:10, 2:10] == 9).all()
    assert found.sum() == 9 * 3 * 64


def test_a_line_of_pixels_does_not_become_a_giant_picture() -> None:
    """If it was resized before it is cropped, it would have 256 by 5 million pixels."""
    assert fitted(Image.new("RGB", (20_000, 1)), Geometry(resize=256, crop=224)).size == (224, 224)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_every_shape_and_mode_becomes_the_square_of_the_geometry(mode: str) -> None:
    file = io.BytesIO()
    noise((50, 30)).convert(mode).save(file, "JPEG")
    found = decode(file.getvalue(), "a.jpg", Preparation(geometry=Geometry(resize=(38, 38), crop=25)))
    assert (found.shape, found.dtype) == ((25, 25, 3), np.dtype(np.uint8))


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", bytes(100), b"%!PS-Adobe"])
def test_what_is_not_a_picture_is_named_in_a_message_that_must_not_be_published(data: bytes) -> None:
    with pytest.raises(UserError, match=r"'there/a\.jpg' cannot be decoded.*do not publish"):
        decode(data, "there/a.jpg", Preparation())


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "group4"])
def test_no_library_says_past_our_own_message_what_is_wrong_with_a_picture(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """libtiff writes to standard error by itself. It would say which records are damaged."""
    whole, rng = io.BytesIO(), np.random.default_rng(0)
    noise((40, 40)).convert("1" if compression == "group4" else "RGB").save(whole, "TIFF", compression=compression)
    refused = []
    for _ in range(20):
        data = bytearray(whole.getvalue())
        data[int(rng.integers(8, len(data)))] ^= 0xFF
        try:
            decode(bytes(data), "a.tif", Preparation())
        except UserError as error:
            refused.append(str(error))
    assert refused
    assert all(GUARDED in text for text in refused)
    assert capfd.readouterr() == ("", "")
