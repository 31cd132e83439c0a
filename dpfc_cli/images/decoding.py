"""Encoded pictures to pixels, with Pillow.

One rule holds for all pictures, so what happens to a picture never depends on the other records. First it is converted
to RGB: grey is repeated, 16-bit grey keeps its high byte (as Pillow does with 16-bit colour), CMYK and palettes are
converted, transparency is dropped, and an animation gives its first frame. EXIF orientation is *not* applied.
torchvision and TensorFlow Datasets do not apply it either, so the backbones were trained without it. Then the picture
is brought to a `Geometry`.

**Resizing and cropping in one step.** Only the part of the picture that the crop keeps is resampled (Pillow's `box`).
This saves 40 % of the time, and a picture of 1 by 1,000,000 pixels does not become one of 256 by 256 million. Compared
to resizing first, one value in 40,000 of a photograph differs, by one level of 255, because Pillow stores `box` in
single precision. JPEG's decoding at reduced size (`draft`) would be faster, but it gives another picture, so it is not
used.

**Hostile files.** Only the decoders of common formats see a file (Pillow's EPS decoder starts Ghostscript). A picture
with more than `MOST_PIXELS` pixels is refused before it is decoded, and so is one with more than `MOST_BYTES` bytes. A
cut-off file is an error. `headers` refuses what would take far more time or memory than a picture of that size.

**Whether a picture can be decoded depends on its own bytes alone.** It may become a null record. If that depended on
another picture, one record could turn a second one into a null record, and the sensitivity would be two records. So a
picture that fails is decoded again: alone, and with proved memory (see `memory`). Only what fails then, too, is
damaged. What comes from the system (no memory, no descriptors, a disk that fails) is never a property of a picture. It
stops the run.
"""

import ctypes
import errno
import io
import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import numpy as np
from PIL import Image, UnidentifiedImageError, _imaging

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images.headers import declared
from dpfc_cli.images.memory import MOST_PIXELS, TOGETHER, Room, bound, check_size, proved
from dpfc_cli.images.sets import Pixels, unreadable

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

Within = Callable[[int], AbstractContextManager[None]]
"""within(bytes) is a context in which a decoder may take so much memory."""

_room = Room(TOGETHER)

# Pillow looks for its decoders when it first needs one. A second thread at that moment would find none.
Image.init()
# Pillow also warns about files that it decodes. It warns about very large ones too, but those are refused here.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# libtiff writes to standard error what is wrong with a picture. Our own message says that.
with suppress(OSError, AttributeError):
    _libtiff = ctypes.CDLL(_imaging.__file__)
    _libtiff.TIFFSetErrorHandler(None)
    _libtiff.TIFFSetWarningHandler(None)


def decode(data: bytes, name: str, geometry: Geometry | None) -> Pixels:
    """Decode one picture.

    Args:
        data: the bytes of an encoded picture.
        name: what the picture is called in messages.
        geometry: the size to bring it to, or None: it keeps its size.

    Returns:
        uint8, (H, W, 3). With a geometry H = W = geometry.crop.

    Raises:
        UnreadableError: the picture is damaged, too large, or of another format (code "bad-record"). This depends on
            its own bytes alone.
        UserError: the system did not give what decoding takes (code "memory" or "unreadable").

    """
    # Decoders raise whatever a damaged file leads them into: not only OSError, but SyntaxError, struct.error and more.
    # At first it is not known whether the picture or a lack of memory is the reason.
    with suppress(Exception):
        return _decoded(data, geometry, _room.share)
    with _room.alone():
        try:
            return _decoded(data, geometry, proved)
        except Exception as error:
            raise refusal(error, name) from error


def _decoded(data: bytes, geometry: Geometry | None, within: Within) -> Pixels:
    check_size(len(data))
    pixels = _bounded(declared(data))
    with within(bound(len(data), pixels)):
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        whole = _bounded(opened.width * opened.height)
        if whole <= pixels:
            return _finished(opened, geometry)
    with within(bound(len(data), whole)):
        return _finished(opened, geometry)


def _bounded(pixels: int) -> int:
    if pixels > MOST_PIXELS:
        raise ValueError(f"it has more than {MOST_PIXELS} pixels")
    return pixels


def _finished(opened: Image.Image, geometry: Geometry | None) -> Pixels:
    opened.load()
    image = _rgb(opened)
    return np.asarray(image if geometry is None else fitted(image, geometry))


def fitted(image: Image.Image, geometry: Geometry) -> Image.Image:
    """Resize the image and keep its centre, as torchvision's Resize and CenterCrop do, with the same rounding.

    Both are done in one step. If the crop is larger than the resized image, the edges are black, as in torchvision.

    Args:
        image: RGB.
        geometry: the sizes, and the filter of the resizing.

    Returns:
        The image, geometry.crop pixels wide and high.

    """
    height, width = geometry.resized(image.height, image.width)
    crop = geometry.crop
    inner = (min(crop, width), min(crop, height))
    left, top = ((length - part) / 2 for length, part in zip((width, height), inner, strict=True))
    left, top = round(left), round(top)
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, (left + inner[0]) * across, (top + inner[1]) * down)
    # Rounding errors may put the box slightly outside the image. Pillow refuses such a box.
    box = (box[0], box[1], min(box[2], image.width), min(box[3], image.height))
    part = image.resize(inner, FILTERS[geometry.filter], box=box)
    if inner == (crop, crop):
        return part
    whole = Image.new("RGB", (crop, crop))
    whole.paste(part, ((crop - inner[0]) // 2, (crop - inner[1]) // 2))
    return whole


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode[0] in "IF":
        raise ValueError("its values have no stated range (32-bit grey)")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    # Converting an image that is RGB already would copy it.
    return image if image.mode == "RGB" else image.convert("RGB")


def refusal(error: Exception, name: str) -> UserError:
    """What the user reads of an error about the picture `name`, which nothing beside it can have caused."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError | RecursionError) or number == errno.ENOMEM:
        return UserError(
            f"There is not enough memory to decode '{name}'. {GUARDED}",
            "Give the process more memory (ulimit or the batch system may limit it), and run the same command again to "
            "continue.",
            code="memory",
            path=name,
        )
    if number is not None:
        return UserError(
            f"'{name}' cannot be decoded, because the system refused: {error}. {GUARDED}",
            "Remove the reason, and run the same command again to continue.",
            code="unreadable",
            path=name,
        )
    return unreadable(name, _reason(error))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is not an image of a known format"
    return str(error) or type(error).__name__
