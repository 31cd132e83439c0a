"""Write sample_data/'s two files of digits from the copy of them that scikit-learn carries.

    python scripts/make_digits.py [FOLDER]

The output is plain IDX, not an archive: no timestamps and no compressor's version enter, so the same bytes come out
everywhere, and a test compares them with those checked in.
"""

import struct
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

NAMES = ("digits-images-idx3-ubyte", "digits-labels-idx1-ubyte")
UNSIGNED_BYTE = 0x08


def main(folder: Path) -> None:
    """Write both files into `folder`: values and order are the source's own."""
    source = load_digits()
    for name, values in zip(NAMES, (source.images, source.target), strict=True):
        (folder / name).write_bytes(idx(values.astype(np.uint8)))


def idx(values: np.ndarray) -> bytes:
    """`values`, unsigned bytes of any shape, in the IDX format."""
    header = struct.pack(f">4B{values.ndim}I", 0, 0, UNSIGNED_BYTE, values.ndim, *values.shape)
    return header + values.tobytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "sample_data")
