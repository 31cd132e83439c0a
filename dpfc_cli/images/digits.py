"""The digits that are part of dpfc: 1,797 scanned digits of 8 by 8 grey values. With them everything works offline.

The stored files hold the source's own values 0 to 16 in the source's own order (see `sample_data/README.md`). The first
1,400 pictures are for training, the last 397 for test. The source consists of forms, each with about 130 digits written
by one person, one form after another. So this split separates writers, and shuffling would mix them: all test pictures
except the first 15 come from forms that are not in the training split. Each class is 9.6 % to 10.4 % of each split.
"""

import io
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.images.dataset import DataSet
from dpfc_cli.images.idx import TEN_DIGITS, parse
from dpfc_cli.images.sets import Entry, ImageSet, Split, in_memory, listing_of

FILES = ("digits-images-idx3-ubyte", "digits-labels-idx1-ubyte")
TRAIN = 1400
DARKEST = 16


def open_digits() -> ImageSet:
    """The UCI optical handwritten digits, grey values scaled from 0..16 to 0..255."""
    (images, images_entry), (labels, labels_entry) = (
        parse(io.BytesIO(_file(name).read_bytes()), name, dimensions)
        for name, dimensions in zip(FILES, (3, 1), strict=True)
    )
    grey = np.rint(images * (255 / DARKEST)).astype(np.uint8)[..., np.newaxis]
    entries = [images_entry, labels_entry]

    def split(part: slice, *more: Entry) -> Split:
        listing = listing_of(TEN_DIGITS, [*entries, *more])
        return in_memory("The set of digits in dpfc", grey[part], labels[part], TEN_DIGITS, listing)

    # Both splits come from the same files. The ledger must tell their records apart.
    test = split(slice(TRAIN, None), Entry("test", len(labels) - TRAIN, labels_entry.sha256))
    return ImageSet("digits", TEN_DIGITS, {"train": split(slice(None, TRAIN)), "test": test})


def _file(name: str) -> Traversable:
    """A file of the digits. A wheel puts it inside the package, a source checkout has it beside the package."""
    installed = resources.files("dpfc_cli").joinpath("sample_data", name)
    checkout = Path(__file__).parents[2] / "sample_data" / name
    found = next((file for file in (installed, checkout) if file.is_file()), None)
    if found is None:
        raise UserError(
            f"'{name}' is neither at '{installed}' nor at '{checkout}'.",
            "This copy of dpfc is incomplete. Install dpfc again.",
            code="missing",
            path=str(installed),
        )
    return found


DIGITS = DataSet(name="digits", open=lambda request: open_digits(), location="included", small=True)
