"""Files in, batches of pixels out: the data sets, on disk or on the network, as arrays of bytes.

`open_images` gives an `ImageSet`. Its splits decode a range of pictures at a time, and `batches` decodes ahead on all
cores. Nothing here knows about privacy or models. Nothing here counts, prints or logs what the pictures show.

`catalogue` holds the table of data sets. To add one, write a module like `idx`, with an entry, and add the entry to the
table.
"""

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.images.catalogue import DATASETS, FORMATS, catalogued, check, files_of, open_images, small
from dpfc_cli.images.prefetch import Batch, batches
from dpfc_cli.images.sets import Decode, ImageSet, Notice, Preparation, Request, Split, by_person, held_out

__all__ = [
    "DATASETS",
    "FORMATS",
    "Batch",
    "Decode",
    "Geometry",
    "ImageSet",
    "Notice",
    "Preparation",
    "Request",
    "Split",
    "batches",
    "by_person",
    "catalogued",
    "check",
    "files_of",
    "held_out",
    "open_images",
    "small",
]
