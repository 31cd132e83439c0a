"""Files that would take far more time or memory than a picture of their size are refused by their own bytes."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.images import Preparation
from dpfc_cli.images.decoding import MOST_SCANS, MOST_SEGMENTS, MOST_STRIPS, declared, decode
from dpfc_cli.images.sets import UnreadableError

Tag = tuple[int, int, int, int]
SHORT, LONG, LONG8 = 3, 4, 16


def jpeg(**options: object) -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(values).save(file, "JPEG", **options)
    return file.getvalue()


def with_scans(more: int) -> bytes:
    """A progressive JPEG with ten scans and `more` repetitions of the last one."""
    whole = jpeg(progressive=True)
    last = whole[whole.rindex(b"\xff\xc4") : -2]
    return whole[:-2] + last * more + whole[-2:]


def with_segments(marker: int, segments: int, content: bytes = b"Exif\0\0") -> bytes:
    whole = jpeg()
    return whole[:2] + (struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content) * segments + whole[2:]


def tiff(tags: list[Tag], data: bytes = b"", *, order: str = "<", big: bool = False) -> bytes:
    """A TIFF of 10 by 10 grey pixels with these tags in the place of others. The offset −1 is that of the data."""
    usual = [(256, SHORT, 1, 10), (257, SHORT, 1, 10), (258, SHORT, 1, 8), (259, SHORT, 1, 1), (262, SHORT, 1, 1)]
    known = {tag[0]: tag for tag in [*usual, (277, SHORT, 1, 1), *tags]}
    head, entry, count = (16, 20, "Q") if big else (8, 12, "H")
    end = head + struct.calcsize(order + count) + entry * len(known) + (8 if big else 4)
    out = b"II" if order == "<" else b"MM"
    out += struct.pack(order + ("HHHQ" if big else "HI"), *((43, 8, 0, 16) if big else (42, 8)))
    out += struct.pack(order + count, len(known))
    for tag, kind, values, value in sorted(known.values()):
        out += struct.pack(order + ("HHQ" if big else "HHI"), tag, kind, values)
        field = struct.pack(order + {SHORT: "H", LONG: "I", LONG8: "Q"}[kind], end if value < 0 else value)
        out += field.ljust(8 if big else 4, b"\0")
    return out + bytes(8 if big else 4) + data


def refusal(data: bytes) -> str:
    with pytest.raises(UnreadableError) as refused:
        decode(data, "a", Preparation())
    return str(refused.value)


def test_a_jpeg_with_very_many_scans_is_refused() -> None:
    """Each scan goes over the whole picture. 500 kB could take an hour."""
    assert decode(with_scans(MOST_SCANS - 10), "a.jpg", Preparation()).shape == (16, 16, 3)
    assert f"more than {MOST_SCANS} scans" in refusal(with_scans(MOST_SCANS))


def test_only_scans_are_counted_as_scans() -> None:
    scans = b"\xff\xda" * 2 * MOST_SCANS
    plain = decode(jpeg(), "a.jpg", Preparation())
    np.testing.assert_array_equal(decode(with_segments(0xFE, 2, scans), "a.jpg", Preparation()), plain)
    np.testing.assert_array_equal(decode(jpeg() + scans, "a.jpg", Preparation()), plain)


def test_a_jpeg_whose_metadata_would_be_joined_very_often_is_refused() -> None:
    plain = decode(jpeg(), "a.jpg", Preparation())
    np.testing.assert_array_equal(decode(with_segments(0xE1, MOST_SEGMENTS), "a.jpg", Preparation()), plain)
    assert "segments of EXIF data" in refusal(with_segments(0xE1, MOST_SEGMENTS + 1))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "big"), [(SHORT, False), (LONG, False), (SHORT, True), (LONG, True), (LONG8, True)])
def test_a_tile_much_larger_than_its_picture_is_refused(order: str, kind: int, big: bool) -> None:
    data = zlib.compress(bytes(100_000))
    tile = [(259, SHORT, 1, 8), (322, kind, 1, 65_520), (323, kind, 1, 32_768)]
    places = [(324, LONG, 1, -1), (325, LONG, 1, len(data))]
    whole = tiff(tile + places, data, order=order, big=big)
    assert declared(whole) == 65_520 * 32_768
    assert "pixels" in refusal(whole)


def test_a_tile_slightly_larger_than_its_picture_is_usual() -> None:
    data = zlib.compress(bytes([9]) * 256 * 256)
    tags = [(259, SHORT, 1, 8), (322, SHORT, 1, 256), (323, SHORT, 1, 256)]
    whole = tiff([*tags, (324, LONG, 1, -1), (325, LONG, 1, len(data))], data)
    assert declared(whole) == 256 * 256
    assert (decode(whole, "a.tif", Preparation()) == 9).all()


def test_rows_that_are_converted_at_once_are_counted() -> None:
    """libtiff takes memory for all rows of a strip of YCbCr, also for those that the picture does not have."""
    tags = [(259, SHORT, 1, 5), (262, SHORT, 1, 6), (278, LONG, 1, 50_000_000), (273, LONG, 1, -1), (279, LONG, 1, 9)]
    assert declared(tiff(tags, bytes(9))) == 500_000_000
    assert "pixels" in refusal(tiff(tags, bytes(9)))


def test_a_tiff_of_very_many_strips_is_refused() -> None:
    """Each strip takes 250 bytes of memory and 20 µs. Strips may share their bytes, so a small file may have many."""
    assert "strips" in refusal(tiff([(273, LONG, MOST_STRIPS + 1, -1), (279, LONG, 1, 100)], bytes(100)))


@pytest.mark.parametrize("length", range(0, 40, 3))
def test_a_tiff_that_ends_in_its_header_is_an_error_and_no_more(length: int) -> None:
    assert "cannot be decoded" in refusal(tiff([])[:length])


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("lossless", [True, False])
def test_the_canvas_of_a_webp_is_known_before_a_decoder_takes_memory_for_it(mode: str, lossless: bool) -> None:
    file = io.BytesIO()
    Image.new(mode, (123, 45)).save(file, "WEBP", lossless=lossless)
    assert declared(file.getvalue()) == 123 * 45


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "PPM"])
def test_other_formats_state_their_size_before_they_take_memory(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, kind)
    assert declared(file.getvalue()) == 0
