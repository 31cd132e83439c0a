"""Public choices of how pictures are read: the window of grey values and the EXIF orientation."""

import io
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.errors import UserError
from dpfc_cli.images import Geometry, Preparation, decoding
from dpfc_cli.images.decoding import BLOCK, decode, levels

TWELVE = Preparation(window=(0, 4095))
TURNED = Preparation(exif=True)


def encoded(image: Image.Image | np.ndarray, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
    return file.getvalue()


def grey(values: object, form: str = "PNG", dtype: type = np.uint16) -> bytes:
    return encoded(np.array(values, dtype).reshape(1, -1), form)


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_a_window_gives_twelve_bits_in_sixteen_all_levels(form: str) -> None:
    data = grey([0, 1, 2048, 4094, 4095, 65535], form)
    np.testing.assert_array_equal(decode(data, "a", TWELVE)[0, :, 0], [0, 0, 128, 255, 255, 255])
    np.testing.assert_array_equal(decode(data, "a", Preparation())[0, :, 0], [0, 0, 8, 15, 15, 255])


@pytest.mark.parametrize(("form", "dtype"), [("TIFF", np.int32), ("TIFF", np.float32), ("PPM", np.uint16)])
def test_values_without_a_range_of_their_own_are_read_with_a_window(form: str, dtype: type) -> None:
    data = grey([100, 300, 500], form, dtype)
    with pytest.raises(UserError, match="no stated range"):
        decode(data, "a", Preparation())
    np.testing.assert_array_equal(decode(data, "a", Preparation(window=(100, 500)))[0, :, 0], [0, 128, 255])


def test_values_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="no numbers"):
        decode(grey([1, np.nan], "TIFF", np.float32), "a", TWELVE)


def test_a_window_leaves_pictures_of_eight_bits_alone() -> None:
    """In a folder of both kinds they would become black."""
    data = encoded(np.full((2, 2), 200, np.uint8), "PNG")
    assert (decode(data, "a", TWELVE) == 200).all()


def test_large_pictures_are_converted_in_parts_as_a_whole() -> None:
    values = np.arange(3 * BLOCK // 2, dtype=np.uint32).reshape(3, -1)
    expected = np.rint(values.clip(5, 1_000_000).astype(float) / 999_995 * 255 - 5 * 255 / 999_995)
    found = levels(values, (5, 1_000_000))
    assert np.abs(found - expected).max() <= 1
    assert (found[0, 0], found[-1, -1]) == (0, 255)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (grey([0, 4095]), True),
        (grey([60_000, 61_000]), True),
        (grey([0, 16_383]), True),
        (grey([0, 16_384]), False),
        (grey([0, 3], dtype=np.uint8), False),
    ],
)
def test_a_picture_that_uses_few_of_its_files_values_is_told(data: bytes, told: bool) -> None:
    names: list[str] = []
    decode(data, "a.png", Preparation(notice=names.append))
    decode(data, "b.png", Preparation(notice=names.append, window=(0, 4095)))
    assert names == ["a.png"] * told


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_exif_says_if_that_is_asked_for(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 32, 3), np.uint8))
    data = encoded(stored, form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
    plain = decode(data, "a", Preparation())
    # Where the first row and the first column of the stored picture lie is the tag's definition.
    rows_first = np.moveaxis(plain, (0, 1), (1, 0)) if orientation in (5, 6, 7, 8) else plain
    expected = rows_first[
        :: -1 if orientation in (3, 4, 7, 8) else 1,
        :: -1 if orientation in (2, 3, 6, 7) else 1,
    ]
    np.testing.assert_array_equal(decode(data, "a", TURNED), expected)
    assert plain.shape == (16, 32, 3)


def test_a_tiff_is_turned_once_whatever_is_asked_for() -> None:
    """Pillow does it, and has done so for all sets that there are."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8), "TIFF", exif=exif)
    for preparation in (Preparation(), TURNED):
        np.testing.assert_array_equal(decode(data, "a", preparation), [[[255, 0, 0]], [[0, 0, 255]]])


def test_the_size_is_that_of_the_turned_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    stored = np.zeros((8, 16, 3), np.uint8)
    stored[:, 12:] = 250
    found = decode(
        encoded(stored, "PNG", exif=exif), "a", Preparation(exif=True, geometry=Geometry(resize=(8, 4), crop=4))
    )
    # The right end of the stored picture is the top of the turned one, and the crop leaves it out.
    assert found.max() < 250


def test_the_copy_that_is_turned_is_a_part_of_the_memory_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def share(size: int) -> AbstractContextManager[None]:
        asked.append(size)
        return nullcontext()

    monkeypatch.setattr(decoding._room, "share", share)
    data = encoded(np.zeros((10, 10, 3), np.uint8), "PNG")
    for preparation in (Preparation(), TURNED):
        decode(data, "a", preparation)
    plain, turned = asked[1], asked[3]
    assert turned - plain == 4 * 100


def test_the_choices_are_stated_and_old_statements_stay_as_they_are() -> None:
    square = Geometry(resize=8, crop=8)
    assert Preparation().describe() is None
    assert Preparation(geometry=square).describe() == square.describe()
    assert Preparation(window=(0, 4095)).describe() == {"window": [0.0, 4095.0]}
    both = Preparation(geometry=square, window=(0, 1), exif=True).describe()
    assert both == {**square.describe(), "window": [0.0, 1.0], "exif": True}
