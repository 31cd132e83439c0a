"""Digests of single records: they tell which records two feature sets have in common.

A digest is the first 8 bytes of the SHA-256 of what a record was made of:

- "file": the bytes of an encoded picture (JPEG, PNG, DICOM …), wherever they lie: in a folder, an archive or a table;
- "pixels": the shape and the values of a picture of a packed data set (CIFAR, MNIST);
- "row": the values of an imported feature vector, as float32.

So a picture keeps its digest under another name, in another folder, with another label, and with any backbone. Its
contents are read anyway when it is decoded. Names and sizes would not do: a picture that was renamed would be another
one, and two pictures of one name and one size would be the same one. A picture that was encoded anew, resized or turned
has another digest. It is not recognised, and neither are two different pictures of one person.

Digests of two kinds say nothing about one another. If two imports have no row in common, that says nothing, either:
another backbone makes other rows of the same pictures.

**Eight bytes are enough.** Take two sets of ten million records that have nothing in common. Some two of their records
have the same digest with a probability of 10^14 / 2^64 = 5e-6. That errs on the side of counting: trainings are counted
that need not be. Records that are the same always have the same digest. Whoever makes two pictures of the same digest
on purpose makes trainings count, and never makes them not count. There is no key, because sets in several folders are
compared.
"""

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Digests = NDArray[np.uint64]
Kind = Literal["file", "pixels", "row"]
SIZE = 8
"""Bytes of a digest."""
NONE = 0
"""Stands for the digest of a record that could not be read. It is equal to no other one."""


def digest_of(data: bytes) -> int:
    """The digest of a record that was made of these bytes. It is never `NONE`."""
    return int.from_bytes(hashlib.sha256(data).digest()[:SIZE], "little") or 1


def digests_of_pixels(pictures: NDArray[np.uint8]) -> Digests:
    """The digests of decoded pictures, (n, H, W, C)."""
    shape = f"{pictures.shape[1:]}".encode()
    return np.fromiter((digest_of(shape + one.tobytes()) for one in pictures), np.uint64, len(pictures))


def digests_of_rows(rows: NDArray[np.floating]) -> Digests:
    """The digests of feature vectors, (n, d)."""
    with np.errstate(over="ignore"):
        values = rows.astype("<f4")
    return np.fromiter((digest_of(one.tobytes()) for one in values), np.uint64, len(rows))
