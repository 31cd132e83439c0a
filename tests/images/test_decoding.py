"""Pictures pictures become pixels by one rule. Whether one can be decoded depends on its own bytes alone."""

import errno
import io
import itertools
import json
import mmap
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.geometry import Geometry
from dpfc_cli.images import decoding
from dpfc_cli.images.decoding import (
    BLOCK,
    FILTERS,
    MOST_PIXELS,
    MOST_SCANS,
    MOST_SEGMENTS,
    MOST_STRIPS,
    TOGETHER,
    Room,
    bound,
    declared,
    decode,
    fitted,
    levels,
)
from dpfc_cli.images.pictures import Preparation, UnreadableError
from dpfc_cli.memory import proved
from tests.images import written
from tests.images.pictures import AS_SQUARE, png
from tests.support import refuses

PLAIN = Preparation()
TWELVE = Preparation(window=(0, 4095))
TURNED = Preparation(exif=True)


def noise(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8))


def encoded(image: Image.Image | np.ndarray, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, form, **options)
    return file.getvalue()


def refused(data: bytes, preparation: Preparation = PLAIN) -> str:
    """What the picture `there/a.jpg` is refused with."""
    with pytest.raises(UnreadableError, match="'…'") as caught:
        decode(data, "there/a.jpg", preparation)
    assert caught.value.code == "bad-record"
    assert GUARDED in str(caught.value)
    return str(caught.value)


# What a picture becomes


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    for form in ("GIF", "PNG", "WEBP", "TIFF"):
        for more in (frames[1:], []):
            asked = Preparation()
            data = encoded(frames[0], form, save_all=True, append_images=more, lossless=True)
            assert (decode(data, "a", asked) == [200, 0, 0]).all()
            assert asked.notices == ({"frames"} if more else set())


@pytest.mark.parametrize(("cases", "fewest"), [(written.tiffs, 140), (written.pngs, 170), (written.ppms, 60)])
def test_what_was_written_is_read_or_refused(cases: Callable[[], Iterator[written.Case]], fewest: int) -> None:
    """fewest: how many of them are read, at least. The others are rare."""
    read = 0
    for case in cases():
        for window in (None, case.window):
            try:
                found = decode(case.data, "a", Preparation(window=window))
            except UnreadableError:
                continue
            expected, read = case.expected(window), read + 1
            assert expected is not None, case.name
            np.testing.assert_array_equal(found, expected, err_msg=case.name)
            if case.stored is not None:
                # It unpacks bits with a package that is not installed for tests.
                with suppress(NotImplementedError):
                    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(case.data)), case.stored)
    assert read >= fewest


def test_a_tiff_that_libraries_read_in_two_ways_is_refused() -> None:
    grey, colours = written.drawn("u", 8, 1), written.drawn("u", 8, 3)
    wide, palette = written.drawn("u", 16, 1), tuple(range(0, 65_536, 257)) * 3
    for data in (
        written.tiff(wide, 16, 0),
        written.tiff(grey.view(np.int8), 8),
        written.tiff(grey, 8, None),
        written.tiff(grey, 8, 3, more={320: tuple(value // 257 for value in palette)}),
        written.tiff(grey, 8, more={254: (1,)}),
        written.tiff(written.drawn("u", 8, 5), 8, 2, extra=(0, 0)),
        # A strip of which there is nothing, and strips that are missing.
        written.tiff(colours, 8, 2, rows=6, more={279: (6 * 63, 0, 6 * 63)}),
        written.tiff(colours, 8, 2, rows=6, more={273: (8,), 279: (6 * 63,)}),
    ):
        refused(data, Preparation(window=(0, 255)))
    found = decode(written.tiff(grey, 8, 3, more={320: palette}), "a", PLAIN)
    np.testing.assert_array_equal(found, np.repeat(grey, 3, 2))
    inks = written.drawn("u", 8, 4)
    inks[..., 3] = 0
    np.testing.assert_array_equal(decode(written.tiff(inks, 8, 5), "a", PLAIN), 255 - inks[..., :3])


def test_a_window_is_for_grey_values_alone() -> None:
    """Colours and transparency of 16 bits lose their low bytes, whatever the window says."""
    for samples, colour in ((2, 4), (3, 2), (4, 6)):
        for few in (False, True):
            asked, values = Preparation(), written.drawn("u", 16, samples) // (16 if few else 1)
            decode(written.png(values, 16, colour, {}), "a", asked)
            assert asked.notices == ({"dark"} if few else set())
        refused(written.png(values, 16, colour, {}), TWELVE)


def test_a_picture_that_lies_in_its_transparency_is_refused() -> None:
    shape = noise((8, 8)).convert("L")
    for colour in ("black", "white"):
        image = Image.new("RGB", (8, 8), colour)
        image.putalpha(shape)
        for form in ("PNG", "TIFF", "WEBP"):
            refused(encoded(image, form, **({"lossless": True, "exact": True} if form == "WEBP" else {})))
        refused(encoded(image.convert("LA"), "PNG"))
    # What there is besides is read as without it.
    image = noise((8, 8))
    image.putalpha(shape)
    np.testing.assert_array_equal(decode(encoded(image, "PNG"), "a", PLAIN), noise((8, 8)))


def test_a_jpeg_of_every_kind_is_read_as_pillow_reads_it() -> None:
    exif = Image.Exif()
    exif[0x010E] = "x" * 3_000
    kinds: list[dict[str, Any]] = [
        {},
        {"quality": 95},
        {"restart_marker_blocks": 3},
        {"optimize": True},
        {"exif": exif},
    ]
    for mode, progressive, sampling in itertools.product(("RGB", "L", "CMYK"), (False, True), (0, 1, 2)):
        for options in kinds:
            sampled = options | ({} if mode == "CMYK" else {"subsampling": sampling})
            data = encoded(noise((45, 33)).convert(mode), "JPEG", progressive=progressive, **sampled)
            expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
            for end in (b"", bytes(512), b"a video", data):
                np.testing.assert_array_equal(decode(data + end, "a", PLAIN), expected)


def damaged(data: bytes, end: bytes) -> Iterator[bytes]:
    """A file of which a part is missing or became zeros, with its end behind."""
    for at in range(len(data) // 3, len(data) - 24, len(data) // 23):
        yield data[:at] + end
        yield data[:at] + bytes(len(data) - at - len(end)) + end
        yield data[:at] + bytes(len(data) - at)


def test_a_damaged_picture_is_refused_also_if_its_end_was_repaired() -> None:
    """libjpeg fills what is missing with grey, and Pillow does not say so; nor does it look at checksums of PNG."""
    for progressive in (False, True):
        for data in damaged(encoded(noise((64, 64)), "JPEG", progressive=progressive), b"\xff\xd9"):
            refused(data)
    for image in (noise((64, 64)), noise((64, 64)).quantize(16), np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16):
        whole = encoded(image, "PNG")
        for data in damaged(whole, whole[-12:]):
            refused(data)
    whole = encoded(noise((64, 64)), "GIF")
    for data in itertools.islice(damaged(whole, b"\0;"), 0, None, 4):
        refused(data)


def test_resizing_and_cropping_in_one_step_equals_two_up_to_rounding() -> None:
    """The two steps are torchvision's Resize and CenterCrop, written out."""
    for geometry in (
        Geometry(resize=(384, 384), crop=256),
        Geometry(resize=256, crop=224),
        Geometry(resize=248, crop=224, filter="bilinear"),
        Geometry(resize=(33, 47), crop=31),
        Geometry(resize=224, crop=224),
    ):
        for size in ((500, 375), (375, 500), (32, 32), (1, 1), (640, 11), (300, 301), (1030, 777)):
            image, crop = noise(size), geometry.crop
            if isinstance(geometry.resize, int):
                width, height = (
                    geometry.resize if s == min(size) else int(geometry.resize * s / min(size)) for s in size
                )
            else:
                height, width = geometry.resize
            left, top = (round((s - crop) / 2.0) for s in (width, height))
            whole = image.resize((width, height), FILTERS[geometry.filter])
            expected = np.asarray(whole.crop((left, top, left + crop, top + crop)), int)
            found = np.asarray(fitted(image, geometry), int)
            assert found.shape == (crop, crop, 3)
            off = np.abs(found - expected)
            # Each of the two passes may round differently.
            assert off.max() <= 2
            assert (off > 0).mean() <= 0.05


def test_a_crop_larger_than_the_picture_is_black_around_it_and_a_line_becomes_no_giant_picture() -> None:
    found = np.asarray(fitted(Image.new("RGB", (8, 8), (9, 9, 9)), Geometry(resize=8, crop=12)))
    assert found.shape == (12, 12, 3)
    assert (found[2:10, 2:10] == 9).all()
    assert found.sum() == 9 * 3 * 64
    # If it was resized before it is cropped, it would have 256 by 5 million pixels.
    assert fitted(Image.new("RGB", (20_000, 1)), Geometry(resize=256, crop=224)).size == (224, 224)


def grey(values: object, form: str = "PNG", dtype: type = np.uint16) -> bytes:
    return encoded(np.array(values, dtype).reshape(1, -1), form)


def test_a_window_gives_grey_values_of_more_than_eight_bits_all_levels() -> None:
    for form in ("PNG", "TIFF"):
        data = grey([0, 1, 2048, 4094, 4095, 65535], form)
        assert decode(data, "a", TWELVE)[0, :, 0].tolist() == [0, 0, 128, 255, 255, 255]
        assert decode(data, "a", PLAIN)[0, :, 0].tolist() == [0, 0, 8, 15, 15, 255]
    # Values without a range of their own are read with a window alone.
    for dtype in (np.int32, np.float32):
        data = grey([100, 300, 500], "TIFF", dtype)
        assert "no stated range" in refused(data)
        assert decode(data, "a", Preparation(window=(100, 500)))[0, :, 0].tolist() == [0, 128, 255]
    assert "no numbers" in refused(grey([1, np.nan], "TIFF", np.float32), TWELVE)
    # In a folder of both kinds, pictures of 8 bits would become black.
    assert (decode(encoded(np.full((2, 2), 200, np.uint8), "PNG"), "a", TWELVE) == 200).all()


def test_large_pictures_are_converted_in_parts_as_a_whole() -> None:
    values = np.arange(3 * BLOCK // 2, dtype=np.uint32).reshape(3, -1)
    expected = np.rint(values.clip(5, 1_000_000).astype(float) / 999_995 * 255 - 5 * 255 / 999_995)
    found = levels(values, (5, 1_000_000))
    assert np.abs(found - expected).max() <= 1
    assert (found[0, 0], found[-1, -1]) == (0, 255)


def test_a_picture_that_uses_few_of_its_files_values_is_told() -> None:
    for data, told in (
        (grey([0, 4095]), True),
        (grey([60_000, 61_000]), True),
        (grey([0, 16_383]), True),
        (grey([0, 16_384]), False),
        (grey([0, 3], dtype=np.uint8), False),
    ):
        without, windowed = Preparation(), Preparation(window=(0, 4095))
        decode(data, "a.png", without)
        decode(data, "a.png", windowed)
        assert (without.notices, windowed.notices) == ({"dark"} if told else set(), set())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_picture_is_turned_as_its_exif_says_if_that_is_asked_for(form: str) -> None:
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(noise((32, 16)), form, exif=exif, **({"lossless": True} if form == "WEBP" else {}))
        plain = decode(data, "a", PLAIN)
        assert plain.shape == (16, 32, 3)
        asked, not_asked = Preparation(exif=True), Preparation()
        for each in (asked, not_asked):
            decode(data, "a", each)
        assert not asked.notices
        assert not_asked.notices == ({"turned"} if 2 <= orientation <= 8 else set())
        # Where the first row and the first column of the stored picture lie is the tag's definition.
        rows_first = np.moveaxis(plain, (0, 1), (1, 0)) if orientation in (5, 6, 7, 8) else plain
        expected = rows_first[:: -1 if orientation in (3, 4, 7, 8) else 1, :: -1 if orientation in (2, 3, 6, 7) else 1]
        np.testing.assert_array_equal(decode(data, "a", TURNED), expected)


def test_a_tiff_is_turned_once_and_the_size_is_that_of_the_turned_picture() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8), "TIFF", exif=exif)
    for preparation in (PLAIN, TURNED):
        # Pillow itself turns TIFF.
        np.testing.assert_array_equal(decode(data, "a", preparation), [[[255, 0, 0]], [[0, 0, 255]]])
    exif[0x0112] = 8
    stored = np.zeros((8, 16, 3), np.uint8)
    stored[:, 12:] = 250
    cropped = Preparation(exif=True, geometry=Geometry(resize=(8, 4), crop=4))
    # The right end of the stored picture is the top of the turned one, and the crop leaves it out.
    assert decode(encoded(stored, "PNG", exif=exif), "a", cropped).max() < 250


# What is refused


def test_what_is_no_picture_of_a_common_format_or_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", bytes(100), b"%!PS-Adobe"):
        refused(data)
    for form in ("EPS", "ICO", "TGA"):
        assert "not an image of a known format" in refused(encoded(Image.new("RGB", (16, 16)), form))
    # Decoders of JPEG like to fill the missing part with grey.
    whole = encoded(noise((32, 32)), "JPEG", quality=90)
    for length in range(0, len(whole) - 2, 13):
        refused(whole[:length])
    monkeypatch.setattr(decoding, "MOST_PIXELS", 399)
    assert "more than 399 pixels" in refused(png(1, (20, 20)))


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "group4"])
def test_no_library_says_past_our_own_message_what_is_wrong_with_a_picture(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """libtiff writes to standard error by itself. It would say which records are damaged."""
    rng, image = np.random.default_rng(0), noise((40, 40)).convert("1" if compression == "group4" else "RGB")
    whole, messages = encoded(image, "TIFF", compression=compression), []
    for _ in range(20):
        data = bytearray(whole)
        data[int(rng.integers(8, len(data)))] ^= 0xFF
        try:
            decode(bytes(data), "a.tif", PLAIN)
        except UserError as error:
            messages.append(str(error))
    assert messages
    assert all(GUARDED in text for text in messages)
    assert capfd.readouterr() == ("", "")


def test_pillows_warnings_about_a_picture_are_not_shown(tmp_path: Path) -> None:
    # The entry is SamplesPerPixel, a SHORT of count 1. Pillow logs a complaint that there are far too many.
    entry = b"\x15\x01\x03\x00\x01\x00\x00\x00"
    (tmp_path / "1.tif").write_bytes(
        encoded(Image.new("RGB", (6, 4)), "TIFF").replace(entry + b"\x03", entry + b"\x99")
    )
    # This needs a process of its own, because pytest handles every logger.
    program = """
import sys
from dpfc_cli.errors import UserError
from dpfc_cli.images.decoding import decode
from dpfc_cli.images.pictures import Preparation
try:
    decode(open(sys.argv[1], "rb").read(), "1.tif", Preparation())
except UserError:
    print("refused")
"""
    command = [sys.executable, "-c", program, str(tmp_path / "1.tif")]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("refused\n", "")


# Headers of files that would take far more time or memory than a picture of their size

SHORT, LONG, LONG8 = 3, 4, 16


def with_segments(marker: int, segments: int, content: bytes = b"Exif\0\0") -> bytes:
    whole = encoded(noise((16, 16)), "JPEG")
    return whole[:2] + (struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content) * segments + whole[2:]


def test_a_jpeg_with_very_many_scans_or_segments_is_refused() -> None:
    """Each scan goes over the whole picture, so 500 kB could take an hour. Segments are joined one by one."""

    def with_scans(more: int) -> bytes:
        """A progressive JPEG with ten scans and `more` repetitions of the last one."""
        whole = encoded(noise((16, 16)), "JPEG", progressive=True)
        last = whole[whole.rindex(b"\xff\xc4") : -2]
        return whole[:-2] + last * more + whole[-2:]

    assert decode(with_scans(0), "a.jpg", PLAIN).shape == (16, 16, 3)
    assert f"more than {MOST_SCANS} scans" in refused(with_scans(MOST_SCANS))
    assert "segments of EXIF data" in refused(with_segments(0xE1, MOST_SEGMENTS + 1))
    # Only scans are counted as scans.
    scans = b"\xff\xda" * 2 * MOST_SCANS
    jpeg = encoded(noise((16, 16)), "JPEG")
    for data in (with_segments(0xFE, 2, scans), jpeg + scans, with_segments(0xE1, MOST_SEGMENTS)):
        np.testing.assert_array_equal(decode(data, "a.jpg", PLAIN), decode(jpeg, "a.jpg", PLAIN))


def tiff(tags: list[tuple[int, int, int, int]], data: bytes = b"", *, order: str = "<", big: bool = False) -> bytes:
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


def test_a_tiff_whose_tiles_rows_or_strips_take_too_much_is_refused() -> None:
    data = zlib.compress(bytes(100_000))
    places = [(259, SHORT, 1, 8), (324, LONG, 1, -1), (325, LONG, 1, len(data))]
    for order in "<>":
        for kind, big in ((SHORT, False), (LONG, False), (SHORT, True), (LONG, True), (LONG8, True)):
            whole = tiff([*places, (322, kind, 1, 65_520), (323, kind, 1, 32_768)], data, order=order, big=big)
            assert declared(whole) == 65_520 * 32_768
            assert "pixels" in refused(whole)
    # libtiff takes memory for all rows of a strip of YCbCr, also for those that the picture does not have.
    tags = [(259, SHORT, 1, 5), (262, SHORT, 1, 6), (278, LONG, 1, 50_000_000), (273, LONG, 1, -1), (279, LONG, 1, 9)]
    assert declared(tiff(tags, bytes(9))) == 500_000_000
    assert "pixels" in refused(tiff(tags, bytes(9)))
    # Each strip takes 250 bytes of memory and 20 µs. Strips may share their bytes, so a small file may have many.
    assert "strips" in refused(tiff([(273, LONG, MOST_STRIPS + 1, -1), (279, LONG, 1, 100)], bytes(100)))
    for length in range(0, 40, 3):
        refused(tiff([])[:length])
    # A tile slightly larger than its picture is usual.
    data = zlib.compress(bytes([9]) * 256 * 256)
    tile = [(322, SHORT, 1, 256), (323, SHORT, 1, 256), (324, LONG, 1, -1), (325, LONG, 1, len(data))]
    whole = tiff([(259, SHORT, 1, 8), *tile], data)
    assert declared(whole) == 256 * 256
    assert (decode(whole, "a.tif", PLAIN) == 9).all()


def test_the_canvas_of_a_webp_is_known_before_a_decoder_takes_memory_for_it() -> None:
    """Other formats state their size before they take memory."""
    for mode in ("RGB", "RGBA"):
        for lossless in (True, False):
            assert declared(encoded(Image.new(mode, (123, 45)), "WEBP", lossless=lossless)) == 123 * 45
    assert not any(declared(encoded(noise((3, 2)), form)) for form in ("PNG", "GIF", "BMP", "PPM"))


# Memory: a lack of it stops the run, and never makes a null record

TRIAL = """
import json, resource, sys
from pathlib import Path
from dpfc_cli.errors import UserError
from dpfc_cli.images.prefetch import batches
from tests.images.pictures import SQUARE, open_images

folder, megabytes = sys.argv[1], int(sys.argv[2])
split = open_images("imagefolder:" + folder, geometry=SQUARE).splits["train"]
# What is loaded when it is first used is loaded now.
split.pixels(1, 2)
now = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (now + (megabytes << 20), resource.RLIM_INFINITY))
wanted = [(None, split.pixels, i, i + 1) for i in range(split.n)]
try:
    null = [split.pixels.name(batch.start) for _, batch in batches(wanted, workers=4) if batch.null[0]]
    print(json.dumps({"null": null}))
except UserError as error:
    print(json.dumps({"code": error.code, "first": "00.jpg" in error.full}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS has no effect elsewhere")
def test_a_large_picture_makes_no_null_record_of_its_neighbours_and_stops_the_run_if_it_does_not_fit(
    tmp_path: Path,
) -> None:
    """A progressive JPEG takes 230 to 270 MiB to decode, six pictures take 25 MiB each, and one is cut off."""
    for name in "ab":
        (tmp_path / name).mkdir()
    Image.new("CMYK", (4480, 4480)).save(tmp_path / "a" / "00.jpg", progressive=True)
    for i in range(11, 17):
        Image.new("RGB", (2560, 2560)).save(tmp_path / "b" / f"{i}.png", compress_level=1)
    (tmp_path / "b" / "17.png").write_bytes(png(1)[:50])
    # A heap of its own for each thread would take room that the limit counts.
    environment = os.environ | {"MALLOC_ARENA_MAX": "1"}
    for megabytes, expected in ((320, {"null": ["b/17.png"]}), (220, {"code": "memory", "first": True})):
        command = [sys.executable, "-c", TRIAL, str(tmp_path), str(megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert json.loads(done.stdout) == expected


def failing(decode: Callable[..., object], *errors: Exception) -> Callable[..., object]:
    """`decode`, which fails with these errors first."""
    left = list(errors)

    def failed(*given: object, **named: object) -> object:
        if left:
            raise left.pop(0)
        return decode(*given, **named)

    return failed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError("broken data stream when reading image file"), None),
        (MemoryError(), "memory"),
        (RecursionError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (OSError(errno.EMFILE, "Too many open files"), "unreadable"),
        (OSError(errno.EIO, "Input/output error"), "unreadable"),
    ],
    ids=repr,
)
def test_a_picture_becomes_null_by_its_own_bytes_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: str | None
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", failing(Image.open, error))
        assert (decode(png(7), "a.png", AS_SQUARE) == 7).all()
    monkeypatch.setattr(Image, "open", failing(Image.open, error, error))
    with pytest.raises(UserError) as refused:
        decode(png(7), "a.png", AS_SQUARE)
    assert isinstance(refused.value, UnreadableError) == (code is None)
    assert refused.value.code == (code or "bad-record")


def test_a_failure_without_proved_memory_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """libjpeg's lack of memory looks like a damaged file. So without the memory nobody knows which of both it is."""

    def refuse(*given: object, **named: object) -> object:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    refused(b"no picture")
    monkeypatch.setattr(mmap, "mmap", refuse)
    with refuses("memory"):
        decode(b"no picture", "a.png", AS_SQUARE)
    # What succeeds needs no proof.
    with proved(1):
        pass


def test_decoders_run_at_once_as_far_as_their_bounds_fit() -> None:
    assert bound(0, MOST_PIXELS) == TOGETHER
    room, together = Room(10), Barrier(3, timeout=600)
    inside, order = Event(), []
    # It is free again after an error.
    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"), room.share(10):
            raise ValueError("damaged")

    def small() -> None:
        with room.share(5):
            together.wait()
            inside.wait(600)
            order.append("small")

    def large() -> None:
        # More than there is: it waits until nobody else is there.
        with room.share(99):
            order.append("large")

    threads = [Thread(target=small), Thread(target=small), Thread(target=large)]
    threads[0].start()
    threads[1].start()
    together.wait()
    threads[2].start()
    inside.set()
    for thread in threads:
        thread.join(600)
    assert order == ["small", "small", "large"]
