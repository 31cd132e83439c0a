"""DICOM: the pixel data and nothing else, in files that pydicom wrote."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    RLELossless,
)

from dpfc_cli import errors
from dpfc_cli.errors import UserError
from dpfc_cli.images import dicom
from dpfc_cli.images.decoding import decode
from dpfc_cli.images.sets import Preparation, UnreadableError
from tests.images.dicoms import written
from tests.images.pictures import open_images
from tests.support import refuses

PLAIN = Preparation()
RAMP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65


def test_the_bits_that_are_stored_are_the_range() -> None:
    expected = np.rint(RAMP / 4095 * 255)[..., None].repeat(3, axis=2)
    for syntax in (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless):
        np.testing.assert_array_equal(decode(written(RAMP, syntax), "a", PLAIN), expected)
    # Bright values may be low ones.
    inverted = written(RAMP, PhotometricInterpretation="MONOCHROME1")
    np.testing.assert_array_equal(decode(inverted, "a", PLAIN), 255 - decode(written(RAMP), "a", PLAIN))
    # Of several frames the first is taken.
    frames = written(np.stack([RAMP, RAMP[::-1]]), NumberOfFrames=2)
    np.testing.assert_array_equal(decode(frames, "a", PLAIN), expected)


def test_a_window_is_of_the_values_that_the_device_means() -> None:
    """Those of computed tomography are Hounsfield units: stored values of both signs, with a slope and an intercept."""
    stored = np.array([[-1000, 0], [500, 3000]], np.int16) // 2
    data = written(stored, BitsStored=16, HighBit=15, RescaleSlope="2", RescaleIntercept="-24")
    found = decode(data, "a", Preparation(window=(-1024, 976)))
    np.testing.assert_array_equal(found[..., 0], [[0, 128], [191, 255]])
    without = Preparation()
    assert np.ptp(decode(data, "ct", without)) < 64
    assert without.notices == {"dark"}


def test_colours_and_grey_values_of_eight_bits_are_taken_as_they_are() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
    np.testing.assert_array_equal(decode(written(colours), "a", Preparation(window=(0, 4095))), colours)
    planes = written(np.ascontiguousarray(colours.transpose(2, 0, 1)).reshape(6, 4, 3), PlanarConfiguration=1)
    np.testing.assert_array_equal(decode(planes, "a", PLAIN), colours)
    eight = np.arange(64, dtype=np.uint8).reshape(8, 8)
    np.testing.assert_array_equal(decode(written(eight), "a", Preparation(window=(0, 4095)))[..., 0], eight)


@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
def test_a_jpeg_inside_is_decoded_as_a_jpeg(kind: str) -> None:
    file = io.BytesIO()
    Image.fromarray((RAMP >> 4).astype(np.uint8)).save(file, "JPEG", quality=95)
    shape = np.zeros((8, 8), np.uint8)
    data = written(shape, JPEGBaseline8Bit, PixelData=encapsulate([file.getvalue()]), PhotometricInterpretation=kind)
    jpeg = decode(file.getvalue(), "a", PLAIN)
    np.testing.assert_array_equal(decode(data, "a", PLAIN), 255 - jpeg if kind == "MONOCHROME1" else jpeg)


def test_what_is_not_read_is_named_and_nothing_else_is_said() -> None:
    for data, says in (
        (written(RAMP, DeflatedExplicitVRLittleEndian), "1.2.840.10008.1.2.1.99"),
        (written(RAMP, JPEG2000Lossless, PixelData=encapsulate([b"x"])), "1.2.840.10008.1.2.4.90"),
        (written(RAMP, PhotometricInterpretation="PALETTE COLOR"), "palette"),
        (written(np.zeros((2, 2, 3), np.uint16)), "16 bits"),
        (written(RAMP, BitsStored=0), "'…'"),
        (written(RAMP, Rows=None), "Rows"),
        (written(RAMP, RescaleSlope="inf"), "'…'"),
        (written(RAMP)[:-40], "'…'"),
        (bytes(128) + b"DICM", "'…'"),
        (bytes(128) + b"DICM" + b"\x02\x00" * 500, "'…'"),
    ):
        with pytest.raises(UnreadableError, match=says) as refused:
            decode(data, "a.dcm", PLAIN)
        assert not any(name in str(refused.value) for name in ("Doe", "4711"))


def test_a_file_of_too_many_pixels_and_a_jpeg_inside_that_has_more_than_it_says_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("dpfc_cli.images.decoding.MOST_PIXELS", RAMP.size - 1)
        with refuses("bad-record", parameter="on_error"):
            decode(written(RAMP), "a.dcm", PLAIN)
    file = io.BytesIO()
    Image.new("L", (40, 40)).save(file, "JPEG")
    data = written(np.zeros((2, 2), np.uint8), JPEGBaseline8Bit, PixelData=encapsulate([file.getvalue()]))
    with monkeypatch.context() as patch:
        patch.setattr("dpfc_cli.images.decoding.MOST_PIXELS", 1_000)
        with refuses("bad-record", parameter="on_error"):
            decode(data, "a.dcm", PLAIN)
    # The limits for all JPEGs are those for this one, too.
    monkeypatch.setattr("dpfc_cli.images.decoding.MOST_SCANS", 0)
    with refuses("bad-record", parameter="on_error"):
        decode(data, "a.dcm", PLAIN)


def test_no_other_element_becomes_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Dataset] = []
    real = dicom._read

    def spied(data: bytes, *, stop_before_pixels: bool) -> Dataset:
        read.append(real(data, stop_before_pixels=stop_before_pixels))
        return read[-1]

    monkeypatch.setattr(dicom, "_read", spied)
    decode(written(RAMP), "a", PLAIN)
    assert {element.keyword for found in read for element in found} <= set(dicom.ELEMENTS)
    assert read
    assert "Patient" not in " ".join(dicom.ELEMENTS)


def test_an_image_folder_may_hold_dicom_files(tmp_path: Path) -> None:
    for name, values in (("a/1.dcm", RAMP), ("b/IM1.DCM", RAMP[::-1])):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(written(values))
    found = open_images(f"imagefolder:{tmp_path}", classes=("a", "b")).splits["train"]
    np.testing.assert_array_equal(found.pixels(0, 2)[:, 0, 0, 0], [0, np.rint(RAMP[7, 0] / 4095 * 255)])


@pytest.mark.parametrize("name", ["a/1.dcm", "a/1.png"])
def test_without_pydicom_it_is_said_what_to_install_and_no_record_becomes_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / name).write_bytes(written(RAMP))
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        open_images(f"imagefolder:{tmp_path}", classes=("a", "b"))
    assert (type(refused.value), refused.value.code) == (UserError, "unsupported")
    assert refused.value.fields == {"package": "pydicom", "extra": "dicom"}
