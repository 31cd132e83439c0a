"""Files in, pixel batches out: the data sets, on disk or on the network, as arrays of bytes.

`open_images` gives an `ImageSet`, whose splits decode a range of pictures at a time; `batches` does so ahead, on all
cores. Nothing here knows of privacy or of backbones, and nothing here counts, prints or logs what the pictures are of.
"""

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.images.catalogue import DATASETS, check, open_images, small
from dpfc_cli.images.prefetch import Batch, batches
from dpfc_cli.images.sets import ImageSet, Progress, Split, held_out

__all__ = [
    "DATASETS",
    "Batch",
    "Geometry",
    "ImageSet",
    "Progress",
    "Split",
    "batches",
    "check",
    "held_out",
    "open_images",
    "small",
]
