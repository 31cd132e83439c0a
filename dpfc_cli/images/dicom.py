"""DICOM: the pixel data of a file, and nothing else.

pydicom reads the elements of `ELEMENTS`, which say how the pixel data are stored. All other elements (names, dates,
numbers of patients) are never made into values, but for one that the user names to say whom a picture shows. Of several
frames the first one is taken, as of an animation.

Pixel data may be stored without compression, as RLE, or as baseline JPEG (then Pillow decodes it, with the limits for
all JPEGs). Other transfer syntaxes are refused: the decoders for them are plugins, and what a picture becomes must not
depend on which of them are installed.
"""

import io
import logging
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfc_cli import errors
from dpfc_cli.errors import UserError, parameter

SUFFIXES = (".dcm", ".dicom")
ELEMENTS = (
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "RescaleSlope", "RescaleIntercept", "PixelData"),
)
"""The elements that are read."""
PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.5")
"""Without compression (three orders of bytes), and RLE."""
BASELINE_JPEG = "1.2.840.10008.1.2.4.50"
_PREAMBLE, _MAGIC = 128, b"DICM"
LONGEST_HEAD = 1 << 16
"""Bytes in which a file must say how it is stored, if its person is asked for."""
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
"""Kinds of values whose length has four bytes, after two that are reserved."""

# pydicom tells what it tolerates in a file. Our own messages say what it does not.
logging.getLogger("pydicom").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"pydicom\.")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The first picture of a file, as it is stored."""

    values: NDArray[np.generic] | None = None  # (H, W) grey, or (H, W, 3) colours of 8 bits; None if it is a JPEG
    jpeg: bytes = b""  # of that JPEG
    bits: int = 8  # of a grey value
    lowest: int = 0  # the lowest grey value that the file can hold
    slope: float = 1.0  # what grey values are multiplied by, for a window
    intercept: float = 0.0  # what is added to them then
    inverted: bool = False  # whether low grey values are bright


def is_dicom(data: bytes) -> bool:
    """Whether a file is DICOM, by its own bytes."""
    return data[_PREAMBLE : _PREAMBLE + len(_MAGIC)] == _MAGIC


def check_installed() -> None:
    errors.check_installed("pydicom", "dicom", "To read DICOM files")


def pixels_of(data: bytes) -> int:
    """The pixels of a picture, of what the file declares. Raises ValueError if it is of a kind that is not read."""
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
    """The value of one element of a file, a text or a number; None if there is none, or if the file is damaged."""
    from pydicom import config, dcmread

    config.settings.reading_validation_mode = config.IGNORE
    with path.open("rb") as file:
        head = file.read(LONGEST_HEAD)
        file.seek(0)
        # pydicom may raise anything for a damaged file.
        try:
            _transfer_syntax(head)
            value = dcmread(file, specific_tags=[name], stop_before_pixels=True).get(name)
            return str(value) if isinstance(value, str | int) or type(value).__name__ == "PersonName" else None
        except OSError:
            raise
        except Exception:
            return None


def stored(data: bytes) -> Stored:
    """The first picture of a file. Exception: the file is damaged, or of a kind that is not read. pydicom may raise
    anything.
    """
    from pydicom.encaps import get_frame
    from pydicom.pixels.utils import pixel_array

    syntax = _transfer_syntax(data)
    found = _read(data, stop_before_pixels=False)
    if "PixelData" not in found:
        raise ValueError("it is DICOM without pixel data")
    kind, samples = str(found.get("PhotometricInterpretation", "")), _number(found, "SamplesPerPixel", 1)
    if kind == "PALETTE COLOR":
        raise ValueError("it is DICOM with a palette of colours")
    allocated, inverted = _number(found, "BitsAllocated"), kind == "MONOCHROME1"
    if syntax == BASELINE_JPEG:
        frames = max(1, _number(found, "NumberOfFrames", 1))
        return Stored(jpeg=get_frame(found.PixelData, 0, number_of_frames=frames), inverted=inverted)
    if samples == 3 and allocated != 8:
        raise ValueError(f"it is DICOM with colours of {allocated} bits")
    # One frame of several: an array of many frames could fill the memory.
    values = pixel_array(found, index=0, raw=False)
    if values.ndim != (2 if samples == 1 else 3):
        raise ValueError(f"it is DICOM with {samples} samples for each pixel")
    bits = _number(found, "BitsStored", allocated)
    if not 1 <= bits <= allocated:
        raise ValueError(f"it is DICOM with {bits} of {allocated} bits")
    return Stored(
        values=values,
        bits=bits,
        lowest=-(1 << bits - 1) if _number(found, "PixelRepresentation", 0) else 0,
        slope=_finite(found, "RescaleSlope", 1.0),
        intercept=_finite(found, "RescaleIntercept", 0.0),
        inverted=inverted,
    )


def _read(data: bytes, *, stop_before_pixels: bool) -> Any:
    from pydicom import config, dcmread

    config.settings.reading_validation_mode = config.IGNORE
    return dcmread(io.BytesIO(data), specific_tags=list(ELEMENTS), stop_before_pixels=stop_before_pixels)


def _transfer_syntax(data: bytes) -> str:
    """How the file is stored. pydicom would expand a file that is compressed as a whole when it reads this, to whatever
    size, so it is read here.
    """
    at, found = _PREAMBLE + len(_MAGIC), []
    while data[at : at + 2] == b"\x02\x00":
        element, kind = data[at + 2 : at + 4], data[at + 4 : at + 6]
        head, size = (12, data[at + 8 : at + 12]) if kind in _LONG else (8, data[at + 6 : at + 8])
        end = at + head + int.from_bytes(size, "little")
        if element == b"\x10\x00":
            found.append(data[at + head : end].rstrip(b"\0 ").decode("ascii", "replace"))
        at = end
    if len(found) != 1:
        raise ValueError("it is DICOM that does not say how it is stored")
    if found[0] not in (*PLAIN, BASELINE_JPEG):
        raise ValueError(
            f"it is DICOM of transfer syntax {found[0][:64]}, which dpfc does not read (programs such as dcmdjpeg or "
            "gdcmconv store it without compression)"
        )
    return found[0]


def _number(found: Any, name: str, default: int | None = None) -> int:
    value = found.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"it is DICOM without {name}")
    number = int(value)
    if number < 0:
        raise ValueError(f"it is DICOM with {name} {number}")
    return number


def _finite(found: Any, name: str, default: float) -> float:
    value = found.get(name)
    number = default if value is None else float(value)
    if not math.isfinite(number):
        raise ValueError(f"it is DICOM with {name} {number}")
    return number
