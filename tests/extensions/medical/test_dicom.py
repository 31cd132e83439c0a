"""DICOM: the pixel data and nothing else, in files that pydicom wrote."""

import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels.processing import convert_color_space
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGBaseline8Bit

from dpfc_cli.errors import UserError
from dpfc_cli.extensions.medical import dicom
from dpfc_cli.images.decoding import decode
from dpfc_cli.images.pictures import Preparation, UnreadableError
from dpfc_cli.images.sets import by_person
from tests import instead
from tests.extensions.medical.dicoms import rescale, written
from tests.images.pictures import open_images
from tests.images.test_persons import opened
from tests.support import refuses

PLAIN = Preparation()
RAMP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65
COLOURS = np.asarray(Image.fromarray(np.arange(36, dtype=np.uint8).reshape(3, 4, 3) * 7).resize((16, 16)))


def grey_jpeg(values: np.ndarray, **elements: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "JPEG", quality=95)
    return written(values, JPEGBaseline8Bit, **{"PixelData": encapsulate([file.getvalue()])} | elements)


def test_a_window_is_of_the_values_that_the_device_means() -> None:
    """Those of computed tomography are Hounsfield units: stored values of both signs, with a slope and an intercept."""
    stored = np.array([[-1000, 0], [500, 3000]], np.int16) // 2
    data = written(stored, BitsStored=16, HighBit=15, RescaleSlope="2", RescaleIntercept="-24")
    found = decode(data, "a", Preparation(window=(-1024, 976)))
    np.testing.assert_array_equal(found[..., 0], [[0, 128], [191, 255]])
    without = Preparation()
    assert np.ptp(decode(data, "ct", without)) < 64
    assert without.notices == {"dark", "rescaled"}
    # Also those of 8 bits.
    eight = np.arange(64, dtype=np.uint8).reshape(8, 8)
    jpeg, plain = grey_jpeg(eight, **rescale(4, -100, "file")), written(eight, **rescale(4, -100, "file"))
    for each in (jpeg, plain):
        found = decode(each, "a", Preparation(window=(-100, 155)))[..., 0]
        np.testing.assert_array_equal(found, np.minimum(4 * decode(each, "a", PLAIN)[..., 0].astype(int), 255))


def test_colours_and_grey_values_of_eight_bits_are_taken_as_they_are() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
    np.testing.assert_array_equal(decode(written(colours), "a", Preparation(window=(0, 4095))), colours)
    planes = written(np.ascontiguousarray(colours.transpose(2, 0, 1)).reshape(6, 4, 3), PlanarConfiguration=1)
    np.testing.assert_array_equal(decode(planes, "a", PLAIN), colours)
    eight = np.arange(64, dtype=np.uint8).reshape(8, 8)
    np.testing.assert_array_equal(decode(written(eight), "a", Preparation(window=(0, 4095)))[..., 0], eight)


@pytest.mark.parametrize("kind", ["MONOCHROME2", "MONOCHROME1"])
def test_a_jpeg_inside_is_decoded_as_a_jpeg(kind: str) -> None:
    data = grey_jpeg((RAMP >> 4).astype(np.uint8), PhotometricInterpretation=kind)
    jpeg = np.asarray(Image.open(io.BytesIO(data[data.index(b"\xff\xd8\xff") :])).convert("RGB"))
    np.testing.assert_array_equal(decode(data, "a", PLAIN), 255 - jpeg if kind == "MONOCHROME1" else jpeg)


def test_colours_of_a_jpeg_inside_are_those_that_the_file_says_unless_the_jpeg_says_others() -> None:
    """Readers differ on files that contradict themselves. Of a JPEG that is silent nobody can know."""
    for stored, kind, silent in product(("RGB", "YBR"), ("RGB", "YBR_FULL_422"), (False, True)):
        file = io.BytesIO()
        Image.fromarray(COLOURS).save(file, "JPEG", quality=95, subsampling=0, keep_rgb=stored == "RGB")
        jpeg = without_colour_space(file.getvalue()) if silent else file.getvalue()
        data = written(COLOURS, JPEGBaseline8Bit, PixelData=encapsulate([jpeg]), PhotometricInterpretation=kind)
        if kind.startswith(stored):
            assert np.abs(decode(data, "a", PLAIN).astype(int) - COLOURS).mean() < 2
        elif not silent:
            with refuses("bad-record", parameter="on_error"):
                decode(data, "a", PLAIN)


def without_colour_space(jpeg: bytes) -> bytes:
    """A JPEG of three components, without all that says which colours they are."""
    found, at = bytearray(jpeg[:2]), 2
    while (marker := jpeg[at + 1]) != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        part = bytearray(jpeg[at:end])
        if marker == 0xC0:
            part[10:19:3] = b"\1\2\3"
        found += part if marker not in (0xE0, 0xEE) else b""
        at = end
    scan = bytearray(jpeg[at:])
    scan[5:10:2] = b"\1\2\3"
    return bytes(found + scan)


def test_luminance_and_chrominance_without_compression_become_colours() -> None:
    ybr = convert_color_space(COLOURS, "RGB", "YBR_FULL")
    planes = np.ascontiguousarray(ybr.transpose(2, 0, 1)).reshape(COLOURS.shape)
    flat = ybr.reshape(-1, 2, 3)
    halved = np.stack([flat[:, 0, 0], flat[:, 1, 0], flat[:, 0, 1], flat[:, 0, 2]], axis=1).tobytes()
    cases: list[tuple[np.ndarray, dict[str, Any]]] = [
        (ybr, {"PhotometricInterpretation": "YBR_FULL"}),
        (planes, {"PhotometricInterpretation": "YBR_FULL", "PlanarConfiguration": 1}),
        (ybr, {"PhotometricInterpretation": "YBR_FULL_422", "PixelData": halved}),
    ]
    for values, elements in cases:
        assert np.abs(decode(written(values, **elements), "a", PLAIN).astype(int) - COLOURS).mean() < 2


def test_padding_that_scanners_write_without_its_sign_is_black() -> None:
    """The grid has padding of all other kinds. Scanners write 63536 in place of -2000."""
    data = written(np.array([[-2000, 0, 40, 3000]], np.int16), BitsStored=16, HighBit=15, PixelPaddingValue=-2000)
    other = data.replace(b"\x28\0\x20\1SS", b"\x28\0\x20\1US")
    assert decode(other, "a", Preparation(window=(-200, 800)))[0, :, 0].tolist() == [0, 51, 61, 255]


def test_bits_beside_those_that_are_stored_change_nothing() -> None:
    right = decode(written(RAMP), "a", PLAIN)
    np.testing.assert_array_equal(decode(written(RAMP | 0x5000), "a", PLAIN), right)
    negative = RAMP.astype(np.int16) - 2048
    signed = decode(written(negative), "a", PLAIN)
    np.testing.assert_array_equal(signed, right)
    np.testing.assert_array_equal(decode(written(negative & 0x0FFF), "a", PLAIN), signed)


TABLE, MAPPING = Dataset(), Dataset()
TABLE.LUTDescriptor, TABLE.LUTData = [4, 0, 16], [1, 2, 3, 4]
TABLE["LUTDescriptor"].VR = TABLE["LUTData"].VR = "US"
MAPPING.RealWorldValueSlope, MAPPING.RealWorldValueIntercept = 0.5, 0.0
HU = rescale(2, -1024, "file")


TWO_WAYS: list[dict[str, Any]] = [
    {"NumberOfFrames": 2, "PixelData": bytes(4 * RAMP.size)},
    {"PixelData": bytes(4 * RAMP.size)},
    {"PhotometricInterpretation": "PALETTE COLOR"},
    {"PhotometricInterpretation": "YBR_PARTIAL_422"},
    {"PhotometricInterpretation": "MONOCHROME1", "PresentationLUTShape": "IDENTITY"},
    {"PresentationLUTShape": "INVERSE"},
    {"SamplesPerPixel": 3},
    {"BitsStored": 0},
    {"HighBit": 15},
    {"Rows": None},
    {"RescaleSlope": "2"},
    {"RescaleSlope": "inf", "RescaleIntercept": "0"},
    {"RescaleSlope": "0", "RescaleIntercept": "0"},
    HU | rescale(1, -1024, "shared"),
    rescale(2, -1024, "frame") | HU | {"RescaleSlope": "3"},
    HU | {"ModalityLUTSequence": [TABLE]},
    {"PixelPaddingValue": 4096, "PixelData": (RAMP | 0x1000).tobytes()},
]


def test_what_readers_may_understand_differently_is_refused() -> None:
    for elements in TWO_WAYS:
        with refuses("bad-record", parameter="on_error"):
            decode(written(RAMP, **elements), "a", PLAIN)


def test_a_window_is_refused_if_the_file_states_two_meanings_of_its_values() -> None:
    elements: dict[str, Any]
    for elements in (HU | {"RealWorldValueMappingSequence": [MAPPING]}, {"DoseGridScaling": "0.001"}):
        with refuses("bad-record", parameter="on_error"):
            decode(written(RAMP, **elements), "a", Preparation(window=(0, 1)))
        decode(written(RAMP, **elements), "a", PLAIN)
    same = written(RAMP, RealWorldValueMappingSequence=[MAPPING], **rescale(0.5, 0, "shared"))
    assert decode(same, "a", Preparation(window=(0, 1))).max() == 255


def test_sequences_that_take_far_more_than_their_bytes_are_refused() -> None:
    """pydicom makes an object of an item of 8 bytes, and calls itself for one inside another."""
    begin, item, nested = b"\x08\0\x40\x11SQ\0\0\xff\xff\xff\xff", b"\xfe\xff\0\xe0", bytes(4)
    data = written(RAMP)
    at = data.index(b"\x10\0\x10\0PN")
    for inside in ((item + nested) * (dicom.MOST_ITEMS + 1), (item + b"\xff\xff\xff\xff" + begin) * 900):
        with refuses("bad-record", parameter="on_error"):
            decode(data[:at] + begin + inside + data[at:], "a", PLAIN)


def test_what_is_not_read_is_named_and_nothing_else_is_said() -> None:
    for data, says in (
        (written(RAMP, DeflatedExplicitVRLittleEndian), "1.2.840.10008.1.2.1.99"),
        (written(RAMP, JPEG2000Lossless, PixelData=encapsulate([b"x"])), "1.2.840.10008.1.2.4.90"),
        (written(np.zeros((2, 2, 3), np.uint16)), "'…'"),
        (written(RAMP, Rows=None), "Rows"),
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
    with refuses("bad-record", parameter="on_error"):
        decode(data, "a.dcm", PLAIN)
    # The limits for all JPEGs are those for this one, too.
    data = grey_jpeg(np.zeros((8, 8), np.uint8))
    decode(data, "a.dcm", PLAIN)
    monkeypatch.setattr("dpfc_cli.images.decoding.MOST_SCANS", 0)
    with refuses("bad-record", parameter="on_error"):
        decode(data, "a.dcm", PLAIN)


def test_no_other_element_becomes_a_value() -> None:
    groups, content = rescale(1, 0, "frame"), Dataset()
    content.FrameAcquisitionDateTime = "20200101"
    for group in groups["PerFrameFunctionalGroupsSequence"]:
        group.FrameContentSequence = [content]
        group["FrameContentSequence"].is_undefined_length = True
    found = dicom._read(written(RAMP, **groups), stop_before_pixels=False)
    inside = found.PerFrameFunctionalGroupsSequence[0].FrameContentSequence[0]
    assert isinstance(inside.get_item("FrameAcquisitionDateTime"), RawDataElement)
    assert {element.keyword for element in found} <= set(dicom.ELEMENTS)
    assert "Patient" not in " ".join(dicom.ELEMENTS)


@pytest.mark.parametrize("name", ["a/1.dcm", "a/1.png"])
def test_without_pydicom_it_is_said_what_to_install_and_no_record_becomes_null(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / name).write_bytes(written(RAMP))
    instead.extras(monkeypatch)
    with pytest.raises(UserError) as refused:
        open_images(f"imagefolder:{tmp_path}", classes=("a", "b"))
    assert (type(refused.value), refused.value.code) == (UserError, "unsupported")
    assert refused.value.fields == {"package": "pydicom", "extra": "dicom"}


@pytest.mark.parametrize(
    ("charset", "encoding", "known"),
    [
        ("ISO_IR 100", "latin-1", True),
        ("ISO_IR 192", "utf-8", True),
        (["", "ISO 2022 IR 100"], "latin-1", True),
        ("ISO_IR 192", "latin-1", False),
        ("bogus", "latin-1", False),
        (None, "latin-1", False),
        (None, "utf-8", False),
    ],
)
@pytest.mark.parametrize("name", ["PatientID", "PatientName"])
@pytest.mark.filterwarnings("ignore:Unknown encoding", "ignore:Failed to decode")
def test_a_person_is_one_in_all_character_sets_and_nobody_if_the_letters_are_not_known(
    tmp_path: Path, name: str, charset: object, encoding: str, known: bool
) -> None:
    elements: dict[str, Any] = {"SpecificCharacterSet": charset, name: "M1ller 1"}
    data = written(RAMP, **elements)
    (tmp_path / "a.dcm").write_bytes(data.replace(b"M1ller 1", "Müller 1".encode(encoding)[:8]))
    found = dicom.element_of(tmp_path / "a.dcm", name)
    assert (found is not None and found.startswith("Müller")) == known
    assert known or found is None


@pytest.mark.parametrize("who", ["471147114711", ["4711", "4712"], "", "  "])
def test_a_part_of_a_name_several_names_and_none_are_nobody(tmp_path: Path, who: object) -> None:
    data = written(RAMP, PatientID=who)
    (tmp_path / "a.dcm").write_bytes(data[: data.index(b"471147114711") + 4] if who == "471147114711" else data)
    assert not dicom.element_of(tmp_path / "a.dcm", "PatientID")


def test_the_patient_of_a_dicom_file_is_read_only_if_the_user_names_the_element(tmp_path: Path) -> None:
    for i, who in enumerate(("7", "8", "7", "Doe^Jane")):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        data = written(np.full((8, 8), 99, np.uint16), PatientID=who, PatientAge="")
        (tmp_path / "ab"[i % 2] / f"{i}.dcm").write_bytes(data)
    source = f"imagefolder:{tmp_path}"
    grouping = by_person(opened((source, "column:PatientID")))[1]["train"]
    # The listing: a/0, a/2, b/1, b/3.
    assert sorted(grouping.order[grouping.ids == g].tolist() for g in range(3)) == [[0, 1], [2], [3]]
    assert by_person(opened((source, "column:PatientName")))[1]["train"].groups == 1
    for rule, code, says in (
        ("column:mrn", "unknown-name", "'mrn'"),
        ("column:PatientAge", "bad-record", "4 records"),
        ("column:StudyDate", "bad-record", "4 records"),
    ):
        with refuses(code, match=says):
            opened((source, rule))
    whole = (tmp_path / "a" / "0.dcm").read_bytes()
    for damaged in (whole[:150], b"x" * 500, whole.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.9\0")):
        (tmp_path / "a" / "0.dcm").write_bytes(damaged)
        with refuses("bad-record", match="1 record .*'…'"):
            opened((source, "column:PatientID"))


def test_patients_of_dicom_files_are_noticed(tmp_path: Path) -> None:
    for ids, rule in (("xxy", "column:PatientID"), ("xyz", None), ("xxx", None), (("", "", "x"), None)):
        place = tmp_path / "".join(ids)
        for i, patient in enumerate(ids):
            file = place / "ab"[i % 2] / f"series {i}" / f"{i}.dcm"
            file.parent.mkdir(parents=True)
            file.write_bytes(written(np.full((4, 4), i, np.uint16), PatientID=patient))
        assert open_images(f"imagefolder:{place}", classes=("a", "b")).noticed() == rule
