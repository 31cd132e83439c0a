"""DICOM: the pixel data of a file and what they mean, and nothing else.

pydicom reads the elements of `ELEMENTS`, decodes the pixels, and applies tables. All other elements (names, dates,
numbers of patients) are never made into values, but for one that the user names to say whom a picture shows. What the
standard states in several places (rescale: in the file, in the functional groups of its frame) must agree. What readers
understand differently is refused, and so is a file of several frames: a record is one picture.

Pixel data may be stored without compression, as RLE, or as baseline JPEG (then Pillow decodes it, with the limits for
all JPEGs). Other transfer syntaxes are refused: the decoders for them are plugins, and what a picture becomes must not
depend on which of them are installed.
"""

import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpfc_cli import errors
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.images.decoding import check_jpeg, levels, narrow
from dpfc_cli.images.kinds import Kind
from dpfc_cli.images.pictures import Pixels, Preparation

if TYPE_CHECKING:
    from pydicom import Dataset

GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
ELEMENTS = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "RealWorldValueMappingSequence", "DoseGridScaling"),
    *("PresentationLUTShape", *GROUPS, "PixelData"),
)
"""The elements that are read."""
GREY = {"MONOCHROME2": "IDENTITY", "MONOCHROME1": "INVERSE"}
"""Grey kinds of pixels (low values of MONOCHROME1 are bright), with the presentation that the standard gives each."""
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422")
MOST_ITEMS = 10_000
"""The most items of sequences in a file. pydicom takes 700 bytes and 50 µs for one that is empty."""
PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2")
"""Without compression, in three orders of bytes."""
RLE, BASELINE_JPEG = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.50"
_PREAMBLE, _MAGIC = 128, b"DICM"
REPLACED = "\N{REPLACEMENT CHARACTER}"
"""What a letter becomes that is not in the character set that the file states."""
LONGEST_HEAD = 1 << 16
"""Bytes in which a file must say how it is stored, if its person is asked for."""

# pydicom tells what it tolerates in a file. Our own messages say what it does not.
logging.getLogger("pydicom").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"pydicom\.")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The picture of a file, as it is stored."""

    values: np.ndarray  # (H, W) grey, or (H, W, 3) colours of 8 bits
    bits: int = 8  # of a grey value
    lowest: int = 0  # the lowest grey value that the file can hold
    slope: float = 1.0  # what grey values are multiplied by, for a window
    intercept: float = 0.0  # what is added to them then
    rescaled: bool = False  # whether slope, intercept or a table gave grey values another meaning
    unclear: bool = False  # whether the file states two meanings, so that no window is of one of them
    inverted: bool = False  # whether low grey values are bright
    padding: NDArray[np.bool_] | None = None  # (H, W): the grey values that stand for no picture


def is_dicom(data: bytes) -> bool:
    """Whether a file is DICOM, by its own bytes."""
    return data[_PREAMBLE : _PREAMBLE + len(_MAGIC)] == _MAGIC


def check_installed() -> None:
    errors.check_installed("pydicom", "dicom", "To read DICOM files")


def pixels_of(data: bytes) -> int:
    """The pixels of a picture, of what the file declares. Raises ValueError if it is of a kind that is not read."""
    if data.count(b"\xfe\xff\0\xe0") + data.count(b"\xff\xfe\xe0\0") > MOST_ITEMS:
        raise ValueError(f"it has more than {MOST_ITEMS} items of sequences")
    _transfer_syntax(data)
    found = _read(data, stop_before_pixels=True)
    return _number(found, "Rows") * _number(found, "Columns")


def check_element(name: str) -> None:
    """Raise UserError unless DICOM has an element of that name, such as PatientID."""
    from pydicom.datadict import tag_for_keyword

    if tag_for_keyword(name) is None:
        raise UserError(
            f"DICOM has no element '{name}'.",
            f"Name one as DICOM does, such as {parameter('group_by')} column:PatientID.",
            code="unknown-name",
        )


def element_of(path: Path, name: str) -> str | None:
    """The value of one element of a file, a text or a number. None if there is none, if the file is damaged, or if the
    file does not say what the letters of a text are.
    """
    from pydicom import config, dcmread
    from pydicom.charset import python_encoding

    config.settings.reading_validation_mode = config.IGNORE
    with path.open("rb") as file:
        head = file.read(LONGEST_HEAD)
        file.seek(0)
        # pydicom may raise anything for a damaged file.
        try:
            _transfer_syntax(head)
            found = dcmread(file, specific_tags=[name], stop_before_pixels=True)
            raw, value = found.get_item(name), found[name].value
            # The beginning of a value may be that of another person.
            if raw is None or len(raw.value) != getattr(raw, "length", None):
                return None
            letters = found.get("SpecificCharacterSet") or "none"
            known = {letters} if isinstance(letters, str) else set(letters)
            if not str(value).isascii() and (REPLACED in str(value) or not known <= python_encoding.keys()):
                return None
            return str(value) if isinstance(value, str | int) or type(value).__name__ == "PersonName" else None
        except OSError:
            raise
        except Exception:
            return None


def read(data: bytes, preparation: Preparation) -> Pixels:
    """The picture of a file for which `pixels_of` raised nothing: levels, (H, W), or colours, (H, W, 3). Exception: the
    file is damaged, or of a kind that is not read. pydicom may raise anything.
    """
    found = _stored(data)
    return found.values if found.values.ndim == 3 else _levels_of(found, preparation)


def _levels_of(found: Stored, preparation: Preparation) -> Pixels:
    count, values = 1 << found.bits, found.values
    if preparation.window is not None and (found.bits > 8 or found.rescaled):
        if found.unclear:
            raise ValueError("it is DICOM that states two meanings of its values, so a window could be of either")
        shown = levels(values, preparation.window, found.slope, found.intercept)
    else:
        if found.rescaled:
            preparation.notices.add("rescaled")
        if found.bits > 8 and narrow(values, count):
            preparation.notices.add("dark")
        shown = levels(values, (found.lowest, max(found.lowest + count - 1, 1)))
        shown = 255 - shown if found.slope < 0 else shown
    shown = 255 - shown if found.inverted else shown
    if found.padding is not None:
        shown[found.padding] = 0
    return shown


def _stored(data: bytes) -> Stored:
    from pydicom.pixels.processing import apply_modality_lut

    syntax = _transfer_syntax(data)
    found = _read(data, stop_before_pixels=False)
    if "PixelData" not in found:
        raise ValueError("it is DICOM without pixel data of integers")
    if (frames := _number(found, "NumberOfFrames", 1)) != 1:
        raise ValueError(f"it is DICOM of {frames} frames, and a record is one picture: store each frame as a file")
    kind, samples = str(found.get("PhotometricInterpretation", "")), _number(found, "SamplesPerPixel", 1)
    if kind not in (*GREY, *COLOURS) or samples != (3 if kind in COLOURS else 1):
        raise ValueError(f"it is DICOM with {samples} samples of the kind '{kind[:16]}' for each pixel")
    allocated, signed = _number(found, "BitsAllocated"), _number(found, "PixelRepresentation", 0)
    bits = _number(found, "BitsStored", allocated)
    if not 1 <= bits <= allocated <= 32 or _number(found, "HighBit", bits - 1) != bits - 1:
        raise ValueError(f"it is DICOM with {bits} of {allocated} bits, or with a high bit that is none of them")
    if (allocated, bits, signed) != (8, 8, 0) and (kind in COLOURS or syntax == BASELINE_JPEG):
        raise ValueError(f"it is DICOM with colours, or a JPEG, of {bits} of {allocated} bits")
    taken = found.Rows * found.Columns * samples * allocated / 8 * (2 / 3 if kind == "YBR_FULL_422" else 1)
    if syntax in PLAIN and len(found.PixelData) > 1.4 * taken + 1:
        raise ValueError("it is DICOM with more pixel data than one picture of its kind has")
    values = _jpeg(found, kind) if syntax == BASELINE_JPEG else _decoded(found)
    if kind in COLOURS:
        return Stored(values=values)
    shape = str(found.get("PresentationLUTShape") or GREY[kind]).strip()
    if shape != GREY[kind]:
        raise ValueError(
            f"it is DICOM that is {kind} with the presentation {shape[:16]}, which readers show differently"
        )
    padding = _padding(found, values, bits)
    rescale, unclear = _meaning(found)
    table = found.get("ModalityLUTSequence")
    if table:
        first = int(table[0].LUTDescriptor[1])
        if rescale is not None or allocated > 16 or (signed and first >= 1 << 15):
            raise ValueError("it is DICOM with a modality table beside a slope, or for other values than it has")
        # In 32 bits: pydicom subtracts the first value of the table from these.
        values, signed = apply_modality_lut(values.astype(np.int32), found), 0
        bits = 8 * values.itemsize
    slope, intercept = rescale or (1.0, 0.0)
    return Stored(
        values=values,
        bits=bits,
        lowest=-(1 << bits - 1) if signed else 0,
        slope=slope,
        intercept=intercept,
        rescaled=bool(table) or (slope, intercept) != (1.0, 0.0),
        unclear=unclear,
        inverted=kind == "MONOCHROME1",
        padding=padding,
    )


def _decoded(found: "Dataset", *, correct_unused_bits: bool = True) -> np.ndarray:
    from pydicom.pixels.utils import pixel_array

    # Other decoders of RLE may be installed.
    return pixel_array(found, index=0, raw=False, decoding_plugin="pydicom", correct_unused_bits=correct_unused_bits)


def _jpeg(found: "Dataset", kind: str) -> np.ndarray:
    """The values of the JPEG inside, (H, W) or (H, W, 3). It must have the size and the kind that the file says."""
    from PIL import Image
    from PIL.JpegImagePlugin import JpegImageFile
    from pydicom.encaps import get_frame

    jpeg = get_frame(found.PixelData, 0, number_of_frames=1)
    check_jpeg(jpeg)
    opened = Image.open(io.BytesIO(jpeg), formats=("JPEG",))
    assert isinstance(opened, JpegImageFile), "no other format is opened"
    if (opened.mode, opened.size) != ("RGB" if kind in COLOURS else "L", (found.Columns, found.Rows)):
        raise ValueError("it is DICOM with a JPEG of another size or kind than the file says")
    if kind in COLOURS:
        # What the JPEG says of its colours itself, in libjpeg's order.
        adobe = opened.info.get("adobe_transform", 0 if [part[0] for part in opened.layer] == [*b"RGB"] else None)
        says = "YBR" if "jfif" in opened.info or adobe else "" if adobe is None else "RGB"
        if not kind.startswith(says):
            raise ValueError(f"it is DICOM that is {kind} with a JPEG that is {says}")
        if kind == "RGB" and not says:
            # libjpeg would take them for YCbCr.
            opened.draft("YCbCr", None)
    return np.asarray(opened)


def _padding(found: "Dataset", values: np.ndarray, bits: int) -> NDArray[np.bool_] | None:
    """Which values stand for no picture, as viewers show nothing there; None if the file has no such values."""
    if (first := found.get("PixelPaddingValue")) is None:
        return None
    last = found.get("PixelPaddingRangeLimit")
    ends = np.array([int(first), int(first if last is None else last)])
    if values.itemsize == 2:
        # The numbers have 16 bits, too. Some files store them with the other sign.
        ends = ends.astype(values.dtype)
    low, high = sorted(ends.tolist())
    least = -1 << bits - 1 if values.dtype.kind == "i" else 0
    beyond = bits < 8 * values.itemsize and not least <= low <= high < least + (1 << bits)
    # Such values differ from others in bits that are not stored ones. Overlays may lie there, too.
    if beyond and not np.array_equal(_decoded(found, correct_unused_bits=False), values):
        raise ValueError("it is DICOM with padding beyond its stored bits")
    return np.asarray((values >= low) & (values <= high))


def _meaning(found: "Dataset") -> tuple[tuple[float, float] | None, bool]:
    """Slope and intercept, None if the file has none; and whether it states another meaning of its values, too."""
    slopes, mappings = [found], list(found.get("RealWorldValueMappingSequence") or ())
    for group in (group for name in GROUPS for group in found.get(name) or ()):
        slopes += group.get("PixelValueTransformationSequence") or ()
        mappings += group.get("RealWorldValueMappingSequence") or ()
    stated = {_line(each, "Rescale") for each in slopes} - {None}
    if len(stated) > 1:
        raise ValueError("it is DICOM that states several slopes and intercepts for one picture")
    rescale = stated.pop() if stated else None
    # Numbers written as text have fewer digits.
    also = [_line(each, "RealWorldValue") for each in mappings]
    same = [each is not None and np.allclose(each, rescale or (1, 0), rtol=1e-5, atol=0) for each in also]
    return rescale, not all(same) or "DoseGridScaling" in found


def _line(found: "Dataset", what: str) -> tuple[float, float] | None:
    """Slope and intercept of this name; None if there are none."""
    stated = [found.get(what + each) for each in ("Slope", "Intercept")]
    if stated == [None, None]:
        return None
    slope, intercept = (math.nan if each is None else float(each) for each in stated)
    if not (math.isfinite(slope) and math.isfinite(intercept) and slope):
        raise ValueError(f"it is DICOM with {what}Slope {slope} and {what}Intercept {intercept}")
    return slope, intercept


def _read(data: bytes, *, stop_before_pixels: bool) -> "Dataset":
    from pydicom import config, dcmread

    config.settings.reading_validation_mode = config.IGNORE
    with _flat():
        return dcmread(io.BytesIO(data), specific_tags=list(ELEMENTS), stop_before_pixels=stop_before_pixels)


@contextmanager
def _flat() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        # Said of a lack of memory otherwise.
        raise ValueError("its sequences lie in one another") from error


def _transfer_syntax(data: bytes) -> str:
    """How the file is stored, read as pydicom reads it. That would expand a file that is compressed as a whole next, to
    whatever size.
    """
    from pydicom.filereader import _read_file_meta_info

    file = io.BytesIO(data)
    file.seek(_PREAMBLE + len(_MAGIC))
    with _flat():
        found = str(_read_file_meta_info(file).get("TransferSyntaxUID", "of no name"))
    if found not in (*PLAIN, RLE, BASELINE_JPEG):
        raise ValueError(
            f"it is DICOM of transfer syntax {found[:64]}, which dpfc does not read (programs such as dcmdjpeg or "
            "gdcmconv store it without compression)"
        )
    return found


def _number(found: "Dataset", name: str, default: int | None = None) -> int:
    value = found.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"it is DICOM without {name}")
    number = int(value)
    if number < 0:
        raise ValueError(f"it is DICOM with {name} {number}")
    return number


KIND = Kind(
    endings=(".dcm", ".dicom"),
    begins=is_dicom,
    check_installed=check_installed,
    size=pixels_of,
    read=read,
    person="PatientID",
    value_of=element_of,
    check_name=check_element,
)
"""DICOM, as an entry point has it."""
