"""Files in, pixel batches out: the data sets, on disk or on the network, as arrays of bytes.

`open_images` gives an `ImageSet`, whose splits decode a range of pictures at a time. Nothing here knows of privacy or
of backbones, and nothing here counts, prints or logs what the pictures are of.
"""

from dpfc_cli.images.catalogue import DATASETS, open_images
from dpfc_cli.images.sets import ImageSet, Progress, Split

__all__ = ["DATASETS", "ImageSet", "Progress", "Split", "open_images"]
