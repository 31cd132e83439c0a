"""DICOM by a grid of what files can say, beside a transcription of the standard into NumPy, and other readers."""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import dcmread
from pydicom.dataset import Dataset
from pydicom.uid import UID, ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian, RLELossless

from dpfc_cli.images.decoding import decode
from dpfc_cli.images.pictures import Preparation
from tests.extensions.medical.dicoms import rescale, written

SYNTAXES = (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless)
PLACES = ("nowhere", "file", "shared", "frame", "table")
DEPTHS = ((8, 8), (16, 12), (16, 16), (32, 20))
"""Bits allocated, and bits stored."""
WINDOW = (-300.0, 500.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file, and what the standard says of it."""

    data: bytes
    allocated: int
    signed: bool
    inverted: bool
    syntax: UID
    place: str  # of slope and intercept, or 'table'
    meant: np.ndarray  # (H, W): the values after the modality transformation
    shown: dict[bool, np.ndarray]  # with a window and without: levels


@cache
def cases() -> tuple[Case, ...]:
    """A fifth of the product of all facts. Of 32 bits there is neither RLE nor a table."""
    rng = np.random.default_rng(0)
    every = product(DEPTHS, (False, True), (False, True), SYNTAXES, PLACES, ("", "value", "range"))
    able = [fact for fact in every if fact[0][0] < 32 or (fact[3] != RLELossless and fact[4] != "table")]
    return tuple(case(rng, *fact) for fact in able if rng.random() < 1 / 5)


def case(
    rng: np.random.Generator, bits: tuple[int, int], signed: bool, inverted: bool, syntax: UID, place: str, padded: str
) -> Case:
    allocated, stored = bits
    low = -(1 << stored - 1) if signed else 0
    high = low + (1 << stored) - 1
    values = rng.integers(low, high + 1, (7, 9)).astype(f"{'i' if signed else 'u'}{allocated // 8}")
    values[0] = range(9)
    elements: dict[str, Any] = {"BitsStored": stored, "HighBit": stored - 1}
    elements["PhotometricInterpretation"] = "MONOCHROME1" if inverted else "MONOCHROME2"
    if rng.random() < 0.5:
        elements["PresentationLUTShape"] = "INVERSE" if inverted else "IDENTITY"
    padding = np.zeros(values.shape, bool)
    if padded:
        # These elements have 16 bits.
        first = int(values[0 if allocated == 32 else 3, 4])
        last = first if padded == "value" else min(first + stored // 2, high)
        elements |= {"PixelPaddingValue": first} | ({"PixelPaddingRangeLimit": last} if padded == "range" else {})
        padding = (values >= first) & (values <= last)
    meant, slope, intercept = values.astype(float), 1.0, 0.0
    if place == "table":
        first, entries = -20 if signed else 3, rng.integers(0, 1 << 16, 50)
        table = Dataset()
        table.LUTDescriptor, table.LUTData, table.ModalityLUTType = [len(entries), first, 16], entries.tolist(), "OD"
        table["LUTDescriptor"].VR, table["LUTData"].VR = "SS" if signed else "US", "US"
        elements["ModalityLUTSequence"] = [table]
        meant = entries[np.clip(values.astype(int) - first, 0, len(entries) - 1)].astype(float)
        low, high = 0, (1 << 16) - 1
    elif place != "nowhere":
        slope, intercept = float(rng.choice([-2, 0.25, 1, 3])), float(rng.choice([-1024, 0, 7.5]))
        elements |= rescale(slope, intercept, place)
        meant = meant * slope + intercept
    shown = {}
    for window in (True, False):
        ends = [end * slope + intercept for end in (low, high)]
        if window and (stored > 8 or place == "table" or (slope, intercept) != (1, 0)):
            ends = list(WINDOW)
        found = np.rint((meant.clip(min(ends), max(ends)) - min(ends)) / (max(ends) - min(ends)) * 255)
        shown[window] = np.where(padding, 0, 255 - found if inverted else found)
    return Case(
        data=written(values, syntax, **elements),
        allocated=allocated,
        signed=signed,
        inverted=inverted,
        syntax=syntax,
        place=place,
        meant=meant,
        shown=shown,
    )


def test_levels_are_those_of_the_standard_whatever_a_file_says_and_wherever() -> None:
    assert len(cases()) >= 150
    for each in cases():
        for window, right in each.shown.items():
            found = decode(each.data, "a", Preparation(window=WINDOW if window else None))
            np.testing.assert_array_equal(found, right[..., None].repeat(3, axis=2))


def by_highdicom(library: Any, path: Path) -> Any:
    return library.Image.from_dataset(dcmread(path), copy=False).get_frame(1, apply_presentation_lut=False)


def by_dicomsdl(library: Any, path: Path) -> Any:
    return library.open(str(path)).pixelData(storedvalue=False)


def by_itk(library: Any, path: Path) -> Any:
    return library.GetArrayFromImage(library.ReadImage(str(path)))[0]


def plain(each: Case) -> bool:
    """Whether readers know it that read no functional groups, no tables, and no numbers of 32 bits."""
    usual = each.allocated == 16 or (not each.signed and each.syntax != ExplicitVRBigEndian)
    return each.place in ("nowhere", "file") and each.allocated < 32 and usual


@pytest.mark.parametrize(
    ("name", "reader", "knows"),
    [
        ("highdicom", by_highdicom, lambda each: each.syntax != ExplicitVRBigEndian),
        ("dicomsdl", by_dicomsdl, plain),
        # It turns inverted values, and has 200 MB: no dependency of the tests.
        ("SimpleITK", by_itk, lambda each: plain(each) and not each.inverted and each.syntax != RLELossless),
    ],
)
def test_other_readers_say_the_same_of_what_values_mean(
    tmp_path: Path, name: str, reader: Callable[[Any, Path], Any], knows: Callable[[Case], bool]
) -> None:
    known = [each for each in cases() if knows(each)]
    assert len(known) >= 15
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = pytest.importorskip(name) if name == "SimpleITK" else importlib.import_module(name)
        for each in known:
            (tmp_path / "a.dcm").write_bytes(each.data)
            np.testing.assert_array_equal(np.asarray(reader(library, tmp_path / "a.dcm"), float), each.meant)
