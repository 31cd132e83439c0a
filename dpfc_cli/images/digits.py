"""The digits that dpfc has in itself, for a first look without a network: the UCI optical handwritten digits."""

from importlib import resources
from pathlib import Path

import numpy as np

from dpfc_cli.annotations.classes import coded
from dpfc_cli.images.pictures import Held
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, entry_of, image_set

CLASSES = tuple("0123456789")
FILES = {"digits-images-idx3-ubyte": 16, "digits-labels-idx1-ubyte": 8}
"""The two files, in MNIST's format IDX, and how many bytes their headers have."""
TRAIN = 1400
DARKEST, SIDE = 16, 8


def open_digits(request: Request) -> ImageSet:
    """Open the digits, with grey values scaled from 0..16 to 0..255."""
    files = {name: _bytes_of(name) for name in FILES}
    entries = [entry_of(name, data) for name, data in files.items()]
    images, labels = (np.frombuffer(files[name], np.uint8, offset=head) for name, head in FILES.items())
    grey = np.rint(images.reshape(-1, SIDE, SIDE, 1) * (255 / DARKEST)).astype(np.uint8)
    known = labels.astype(np.int64)
    # Both splits come from the same files. The ledger must tell their records apart.
    more = Entry("test", len(labels) - TRAIN, entries[1].sha256)
    parts = {"train": (slice(TRAIN), entries), "test": (slice(TRAIN, None), [*entries, more])}
    found = {
        split: Listed(labels=coded(known[part]), pictures=Held(grey[part]), entries=own, classes=CLASSES)
        for split, (part, own) in parts.items()
    }
    return image_set("digits", found, request, classes=CLASSES)


def _bytes_of(name: str) -> bytes:
    """A file of the digits. A wheel puts it inside the package, a source checkout has it beside the package."""
    installed = resources.files("dpfc_cli").joinpath("sample_data", name)
    place = installed if installed.is_file() else Path(__file__).parents[2] / "sample_data" / name
    return place.read_bytes()


DIGITS = DataSet(name="digits", open=open_digits, location="included", pixels=True)
