"""DICOM files for tests, written by pydicom."""

import io
import warnings
from typing import Any

import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import (
    UID,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)


def written(values: np.ndarray, syntax: UID = ExplicitVRLittleEndian, **elements: object) -> bytes:
    """A DICOM file of 12-bit values, or of those that the elements say."""
    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = syntax
    found.SOPClassUID = found.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    found.SOPInstanceUID = found.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    found.PatientName, found.PatientID = "Doe^Jane", "4711"
    found.Rows, found.Columns = values.shape[-2:] if values.ndim < 3 or values.shape[-1] != 3 else values.shape[:2]
    colours = values.ndim == 3 and values.shape[-1] == 3
    found.SamplesPerPixel = 3 if colours else 1
    found.PhotometricInterpretation = "RGB" if colours else "MONOCHROME2"
    if colours:
        found.PlanarConfiguration = 0
    found.BitsAllocated = 8 * values.dtype.itemsize
    found.BitsStored = 12 if values.dtype.itemsize == 2 else found.BitsAllocated
    found.HighBit = found.BitsStored - 1
    found.PixelRepresentation = int(values.dtype.kind == "i")
    if syntax == RLELossless:
        found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.PixelData = (values.byteswap() if syntax == ExplicitVRBigEndian else values).tobytes()
    found["PixelData"].VR = "OW" if values.dtype.itemsize == 2 else "OB"
    with warnings.catch_warnings():
        # pydicom says of some values that DICOM does not allow them. That is what they are for.
        warnings.simplefilter("ignore")
        for name, value in elements.items():
            setattr(found, name, value)
    if syntax == RLELossless:
        found.compress(RLELossless)
    file = io.BytesIO()
    found.save_as(file, enforce_file_format=True)
    return file.getvalue()


def rescale(slope: object, intercept: object, place: str) -> dict[str, Any]:
    """The elements that say a slope and an intercept: of the file, or of the groups of all frames ('shared') or of one
    ('frame').
    """
    found, group = Dataset(), Dataset()
    found.RescaleSlope, found.RescaleIntercept, found.RescaleType = str(slope), str(intercept), "HU"
    group.PixelValueTransformationSequence = [found]
    if place == "file":
        return {name: found[name].value for name in ("RescaleSlope", "RescaleIntercept")}
    shared = {"SharedFunctionalGroupsSequence": [group if place == "shared" else Dataset()]}
    return shared | ({"PerFrameFunctionalGroupsSequence": [group]} if place == "frame" else {})
