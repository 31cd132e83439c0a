"""The digits that come with dpfc: 1,797 scanned digits of 8 by 8 grey values, so that everything can be tried offline.

The stored files hold the source's own values 0..16 in the source's own order (see `sample_data/README.md`). The first
1,400 pictures are for training and the last 397 for test. The source lists one written form of about 130 digits after
another, so this split keeps hands apart where shuffling would mix them: but for the first 15, every test picture is
from a form of which training saw nothing. Every class has between 9.6 % and 10.4 % of each split.
"""

import io
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.images.idx import DIGITS, parse
from dpfc_cli.images.sets import ImageSet, Split, in_memory, listing_of

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
    listing = listing_of(DIGITS, [images_entry, labels_entry])

    def split(part: slice) -> Split:
        return in_memory("The digits that come with dpfc", grey[part], labels[part], DIGITS, listing)

    return ImageSet("digits", DIGITS, {"train": split(slice(None, TRAIN)), "test": split(slice(TRAIN, None))})


def _file(name: str) -> Traversable:
    """The file where a wheel puts it, inside the package, or where a source checkout has it, beside the package."""
    installed = resources.files("dpfc_cli").joinpath("sample_data", name)
    checkout = Path(__file__).parents[2] / "sample_data" / name
    found = next((file for file in (installed, checkout) if file.is_file()), None)
    if found is None:
        raise UserError(
            f"'{name}' is neither at '{installed}' nor at '{checkout}'.",
            "This copy of dpfc is incomplete; install it again.",
        )
    return found
