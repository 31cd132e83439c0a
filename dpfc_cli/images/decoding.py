"""Encoded pictures to pixels, with Pillow.

What becomes of a picture is one rule for all of them, so that nothing about a set's make-up is decided by its records.
It is made RGB: grey is repeated, 16-bit grey keeps its high byte (as Pillow does with 16-bit colour), CMYK and palettes
are converted, transparency is dropped, and of an animation the first frame is taken. EXIF orientation is *not* applied:
neither torchvision nor TensorFlow Datasets do, so the backbones never saw it applied. Then it is brought to a
`Geometry`.

**Resizing cuts.** Only the part of the picture that the crop keeps is resampled (Pillow's `box`), which takes 40 % of
the time off and keeps a picture of one pixel by a million from becoming 256 by 256 million. Against resizing first, one
value in 40,000 of a photograph differs, by one level of 255, for Pillow takes `box` in single precision. JPEG's
reduced-size decoding (`draft`) would be faster still, and another picture; it is not used.

**Hostile files.** Only the decoders of common formats are offered a file (Pillow's EPS starts Ghostscript); more than
`Image.MAX_IMAGE_PIXELS` pixels are refused before they are decoded, and a truncated file is an error.
"""

import io
import logging
import warnings

import numpy as np
from PIL import Image, UnidentifiedImageError

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import GUARDED
from dpfc_cli.images.sets import Pixels, UnreadableError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}

# Pillow finds its decoders when it first misses one, and a second thread that comes meanwhile is told there is none.
Image.init()
# It warns of what it decodes all the same; giants, which it warns of, too, are refused by `_refuse_giant`.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode(data: bytes, name: str, geometry: Geometry | None) -> Pixels:
    """One picture as uint8 (H, W, 3); H = W = geometry.crop where that is given. UnreadableError if it is damaged."""
    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        _refuse_giant(opened)
        opened.load()
        image = _rgb(opened)
        return np.asarray(image if geometry is None else fitted(image, geometry))
    # Decoders raise whatever a damaged file leads them into: not only OSError, but SyntaxError, struct.error and more.
    except Exception as error:
        raise UnreadableError(
            f"'{name}' cannot be decoded: {_reason(error)}. {GUARDED}",
            "Remove it, replace it by an 8-bit PNG or JPEG, or keep it as a null record: --on-error null.",
        ) from error


def fitted(image: Image.Image, geometry: Geometry) -> Image.Image:
    """The centre of the resized image: torchvision's Resize and CenterCrop (both round as it does), in one step.

    A crop larger than the resized image is filled with black at its edges, as there.
    """
    height, width = geometry.resized(image.height, image.width)
    crop = geometry.crop
    inner = (min(crop, width), min(crop, height))
    left, top = ((length - part) / 2 for length, part in zip((width, height), inner, strict=True))
    left, top = round(left), round(top)
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, (left + inner[0]) * across, (top + inner[1]) * down)
    # The products may exceed the image by a rounding error, which Pillow refuses.
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
    # Pillow would copy what is RGB already.
    return image if image.mode == "RGB" else image.convert("RGB")


def _refuse_giant(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.width * image.height > limit:
        raise ValueError(f"it has more than {limit} pixels")


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    return str(error) or type(error).__name__
