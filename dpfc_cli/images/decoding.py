"""Pictures pictures to pixels. simplejpeg reads JPEG, because it tells what libjpeg repairs; Pillow reads all others.

One rule holds for all pictures. First a picture is converted to RGB: grey is repeated, 16-bit grey keeps its high byte
(as Pillow does with 16-bit colour) or is brought to levels by a window, CMYK and palettes are converted, transparency
and colour profiles are dropped, and an animation gives its first frame. What the libraries of the field read in two
ways is refused. EXIF orientation is applied only if the `Preparation` says so:
torchvision and TensorFlow Datasets do not apply it, so the backbones were trained without it. (Pillow itself always
turns TIFF.) Then the picture is brought to a `Geometry`.

**Hostile files.** Only the decoders of common formats see a file (Pillow's EPS decoder starts Ghostscript). A picture
with more than `MOST_PIXELS` pixels is refused before it is decoded, and so is one with more than `MOST_BYTES` bytes. A
cut-off file is an error. What would take far more time or memory than a picture of its size is refused by its header.

**Whether a picture can be decoded depends on its own bytes alone.** It may become a null record. If that depended on
another picture, one record could turn a second one into a null record, and the sensitivity would be two records. But
decoders report a lack of memory in many ways, some of them as a damaged file (Pillow says "broken data stream" when
libjpeg gets no memory). So decoders run at once only as far as their stated bounds fit into `TOGETHER`. A picture that
failed is decoded again, alone. Only then a failure counts, and only if it is `proved` that the system would have given
as much memory as the bound says (`dpfc_cli.memory`). What comes from the system (no memory, no descriptors, a disk that
fails) is never a property of a picture. It stops the run.
"""

import ctypes
import errno
import io
import logging
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from threading import Condition, Lock
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, TiffImagePlugin, UnidentifiedImageError, _imaging
from PIL.TiffImagePlugin import TiffImageFile
from simplejpeg import decode_jpeg

from dpfc_cli.errors import GUARDED, UserError, secret
from dpfc_cli.geometry import Geometry
from dpfc_cli.images.kinds import kind_in
from dpfc_cli.images.pictures import Pixels, Preparation, Window, check_size, unread, unreadable
from dpfc_cli.memory import proved

# Memory of decoders

MOST_PIXELS = 89_478_485
"""The most pixels that a picture may declare. (It is also the number from which Pillow warns.)"""
PER_PIXEL = 24
"""Bytes for each pixel. Measured at worst: 22 for WebP (two canvases, a copy, the picture, its conversion to RGB and
the array), 14 for progressive JPEG with four components (8 of them are its coefficients), 14 for PNG, GIF and TIFF."""
PER_BYTE = 8
"""Bytes for each byte of the encoded picture: chunks of PNG that nobody asked for, and numbers of PPM as text."""
TOGETHER = PER_PIXEL * MOST_PIXELS
"""Bytes for all decoders that run at once: 2.1 GB, the bound of the largest picture. A larger one runs alone."""


def bound(encoded: int, pixels: int) -> int:
    """The most bytes that decoding a picture takes, for its number of encoded bytes and of declared pixels."""
    return PER_BYTE * encoded + PER_PIXEL * pixels


class Room:
    """Memory that threads share. Each takes a part of it, waits until that part is free, and gives it back."""

    def __init__(self, size: int) -> None:
        self._size = self._free = size
        self._turn, self._changed = Lock(), Condition()

    @contextmanager
    def share(self, wanted: int) -> Iterator[None]:
        """Hold `wanted` bytes, or all of it if that is less. In the second case nobody else holds any."""
        part = min(wanted, self._size)
        # In order of arrival. Otherwise a large picture might wait for as long as there are small ones.
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free >= part)
            self._free -= part
        try:
            yield
        finally:
            with self._changed:
                self._free += part
                self._changed.notify_all()


# What headers declare

MOST_SCANS = 100
"""The most scans of a JPEG. A progressive one usually has ten. Each scan goes over the whole picture once more."""
MOST_SEGMENTS = 1_000
"""The most segments of EXIF data in a JPEG. Pillow joins them one by one, which takes quadratic time."""
MOST_STRIPS = 1 << 18
"""The most strips or tiles of a TIFF."""

_START_OF_SCAN, _EXIF = 0xDA, 0xE1
_END = 0xD9
_ALONE = frozenset((0x01, 0xD8))
# 0x00 marks a byte of data, and 0xD0 to 0xD7 are restarts inside a scan.
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")

_Order = Literal["little", "big"]
_ORDERS: dict[bytes, _Order] = {b"II": "little", b"MM": "big"}
_WIDTH, _PHOTOMETRIC, _COMPRESSION, _ROWS = 256, 262, 259, 278
_TILE_WIDTH, _TILE_LENGTH = 322, 323
_LENGTHS = (_WIDTH, _PHOTOMETRIC, _COMPRESSION, _ROWS, _TILE_WIDTH, _TILE_LENGTH)
_OFFSETS = (273, 324)
_BYTES = {3: 2, 4: 4, 16: 8}
"""Bytes of a number of each TIFF type that a length may have."""
_YCBCR, _JPEG, _ALL_ROWS = 6, 7, 2**32 - 1


def declared(data: bytes) -> int:
    """The pixels that a decoder would take memory for before it states them: the canvas of a WebP, the tile of a TIFF.
    0 for other formats. ValueError if the file would take far more time than its size explains.
    """
    if data.startswith(b"\xff\xd8"):
        check_jpeg(data)
        return 0
    if data.startswith((b"II", b"MM")):
        return _tile(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _canvas(data)
    return 0


def check_jpeg(data: bytes) -> None:
    """Refuse a JPEG that would take far more time than its size explains, with a ValueError."""
    limits = {_START_OF_SCAN: (MOST_SCANS, "scans"), _EXIF: (MOST_SEGMENTS, "segments of EXIF data")}
    # Nearly all files end here. Counting two bytes is fast, and there are no fewer of them than markers.
    if all(data.count(bytes((0xFF, marker))) <= most for marker, (most, _) in limits.items()):
        return
    found = dict.fromkeys(limits, 0)
    at = 0
    while (match := _MARKER.search(data, at)) and (marker := match[1][0]) != _END:
        at = match.end()
        if marker in found:
            found[marker] += 1
            most, what = limits[marker]
            if found[marker] > most:
                raise ValueError(f"it has more than {most} {what}")
        if marker not in _ALONE:
            at += max(2, int.from_bytes(data[at : at + 2], "big"))


def _tile(data: bytes) -> int:
    """The pixels of a tile of a TIFF, or of a strip that libtiff converts. libtiff takes memory for a whole one."""
    order, big = _ORDERS[data[:2]], 43 in data[2:4]
    start, length, head, entry = (8, 8, 8, "HHQ8s") if big else (4, 4, 2, "HHI4s")
    entry = ("<" if order == "little" else ">") + entry
    at = int.from_bytes(data[start : start + length], order)
    count = int.from_bytes(data[at : at + head], order)
    size = struct.calcsize(entry)
    entries = data[at + head : at + head + count * size]
    number: dict[int, int] = {}
    for tag, kind, values, field in struct.iter_unpack(entry, entries[: len(entries) // size * size]):
        if tag in _OFFSETS and values > MOST_STRIPS:
            raise ValueError(f"it has more than {MOST_STRIPS} strips or tiles")
        if tag in _LENGTHS:
            width = _BYTES.get(kind, len(field) + 1)
            if width > len(field):
                raise ValueError(f"its tag {tag} has a type that no length has")
            number[tag] = max(number.get(tag, 0), int.from_bytes(field[:width], order))
    tile = number.get(_TILE_WIDTH, 0) * number.get(_TILE_LENGTH, 0)
    rows = number.get(_ROWS, _ALL_ROWS)
    if number.get(_PHOTOMETRIC) == _YCBCR and number.get(_COMPRESSION) != _JPEG and rows < _ALL_ROWS:
        return max(tile, rows * number.get(_WIDTH, 0))
    return tile


def _canvas(data: bytes) -> int:
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height


# Grey values

BLOCK = 1 << 20
"""Values that are converted at a time. They take 8 bytes each meanwhile."""
QUARTER = 4


def levels(values: NDArray[np.generic], window: Window, slope: float = 1.0, intercept: float = 0.0) -> Pixels:
    """Grey values of any shape as levels. First they are multiplied by the slope, and the intercept is added. Then the
    lower end of the window becomes 0, the upper end 255, and everything beyond is cut off. ValueError if one is not
    finite.
    """
    low, high = window
    flat = np.ascontiguousarray(values).reshape(-1)
    found = np.empty(flat.shape, np.uint8)
    for at in range(0, len(flat), BLOCK):
        part = flat[at : at + BLOCK].astype(np.float64) * slope + intercept
        if not np.isfinite(part).all():
            raise ValueError("it has values that are no numbers")
        found[at : at + BLOCK] = np.rint((part.clip(low, high) - low) / (high - low) * 255)
    return found.reshape(values.shape)


def narrow(values: NDArray[np.integer], count: int) -> bool:
    """Whether values use less than a quarter of the `count` values that they could have."""
    return bool(values.size) and QUARTER * (int(values.max()) - int(values.min())) < count


# Pictures

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
ORIENTATION = 0x0112
_TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
TURNS = {orientation: Image.Transpose[name] for orientation, name in enumerate(_TURNS, 2)}
"""How a picture is turned for each EXIF orientation. 1 and all others leave it as it is."""
TURNED = 4
"""Bytes for each pixel of a turned copy."""

Within = Callable[[int], AbstractContextManager[None]]
"""within(bytes) is a context in which a decoder may take so much memory."""

_room = Room(TOGETHER)

# Pillow looks for its decoders when it first needs one. A second thread at that moment would find none.
Image.init()
# Pillow's own reader of TIFF without compression takes planes, tiles and missing strips for others than they are.
TiffImagePlugin.READ_LIBTIFF = True
# Pillow also warns about files that it decodes. It warns about very large ones too, but those are refused here.
logging.getLogger("PIL").addHandler(logging.NullHandler())
warnings.filterwarnings("ignore", module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
# libtiff writes to standard error what is wrong with a picture. Our own message says that.
with suppress(OSError, AttributeError):
    _libtiff = ctypes.CDLL(_imaging.__file__)
    _libtiff.TIFFSetErrorHandler(None)
    _libtiff.TIFFSetWarningHandler(None)


def decode(data: bytes | Pixels, name: str, preparation: Preparation) -> Pixels:
    """Decode one picture to uint8, (H, W, 3). With a geometry H = W = geometry.crop. data: of a file, or pixels,
    (H, W, 1 or 3). name: what messages call it.

    UnreadableError: the picture is damaged, too large, or of another format (code "bad-record"). This depends on its
    own bytes alone. UserError: the system did not give what decoding takes (code "memory" or "unreadable"), or a
    library is missing (code "unsupported").
    """
    if isinstance(data, np.ndarray):
        return _fitted(Image.fromarray(data[..., 0] if data.shape[2] == 1 else data).convert("RGB"), preparation)
    kind = kind_in(data)
    if kind is not None:
        kind.check_installed()

    # Decoders raise whatever a damaged file leads them into: not only OSError, but SyntaxError, struct.error and more.
    # At first it is not known whether the picture or a lack of memory is the reason.
    with suppress(Exception):
        return _decoded(data, preparation, _room.share)
    with _room.share(TOGETHER):
        try:
            return _decoded(data, preparation, proved)
        except Exception as error:
            raise refusal(error, name) from error


def _decoded(data: bytes, preparation: Preparation, within: Within) -> Pixels:
    check_size(len(data))
    kind = kind_in(data)
    if kind is not None:
        # Reading what is beside the pixels takes the memory of a few copies of the file.
        with within(bound(len(data), 0)):
            whole = _bounded(kind.size(data))
        # Converting colours of 8 bits takes 30 bytes for each pixel.
        with within(bound(len(data), 2 * whole)):
            return _fitted(Image.fromarray(kind.read(data, preparation)).convert("RGB"), preparation)
    turned = TURNED if preparation.exif else 0
    pixels = _bounded(declared(data))
    with within(bound(len(data), pixels) + turned * pixels):
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
        whole = _bounded(opened.width * opened.height)
        if whole <= pixels:
            return _finished(opened, data, preparation)
    with within(bound(len(data), whole) + turned * whole):
        return _finished(opened, data, preparation)


def _bounded(pixels: int) -> int:
    if pixels > MOST_PIXELS:
        raise ValueError(f"it has more than {MOST_PIXELS} pixels")
    return pixels


def _finished(opened: ImageFile.ImageFile, data: bytes, preparation: Preparation) -> Pixels:
    if opened.format in ("JPEG", "MPO"):
        image = _jpeg(data, opened.mode)
    else:
        top = _largest(opened)
        opened.load()
        if opened.format == "PNG":
            # Pillow takes the pixels without a look at their checksums.
            Image.open(io.BytesIO(data), formats=("PNG",)).verify()
        image = _rgb(opened, top, preparation)
    turn = _turn(opened) if preparation.exif else None
    # What is not needed does no harm if it is damaged.
    with suppress(Exception):
        if not preparation.exif and _turn(opened) is not None:
            preparation.notices.add("turned")
    with suppress(Exception):
        # The second picture of an MPO is the first one again, for a small or a bright screen.
        several = opened.tag_v2.next if isinstance(opened, TiffImageFile) else getattr(opened, "is_animated", False)
        if several and opened.format != "MPO":
            preparation.notices.add("frames")
    return _fitted(image if turn is None else image.transpose(turn), preparation)


def _jpeg(data: bytes, mode: str) -> Image.Image:
    if mode != "CMYK":
        return Image.fromarray(decode_jpeg(data))
    pixels = decode_jpeg(data, mode)
    # Adobe's programs store inks inverted. All others took that for the rule.
    return Image.frombuffer(mode, pixels.shape[1::-1], np.invert(pixels, out=pixels), "raw", mode, 0, 1).convert("RGB")


def _largest(opened: ImageFile.ImageFile) -> int:
    """The largest value that a picture can hold, as its header says; 0 for signed values and floats. ValueError if
    libraries of the field differ in what the header says.
    """
    # WebP has no tile.
    tile = opened.tile[0] if opened.tile else None
    raw, *more = tile.args if tile and isinstance(tile.args, tuple) else (tile and tile.args,)
    if opened.format == "PPM":
        if opened.info.get("scale", 1) != 1:
            raise ValueError("it scales its values, which libraries read in two ways")
        return int(more[0]) if more else 65_535 if opened.mode == "I" else 255
    if tile is None or not isinstance(opened, TiffImageFile):
        return 65_535 if opened.format == "PNG" and ";16" in raw else 255
    # libtiff gives values in the machine's order of bytes. Pillow knows that of unsigned ones alone.
    opened.tile = [tile._replace(args=(raw.replace("BS", "S").replace("BF", "F"), *more))]
    tags = opened.tag_v2
    bits, kinds, meaning = max(tags.get(258, (1,))), tags.get(339, (1,)), tags.get(_PHOTOMETRIC)
    for refused, why in (
        (meaning is None, "it does not say what its values mean"),
        (meaning == 0 and bits > 8, f"its 0 is white, in {bits} bits"),
        (bits == 8 and 2 in kinds, "its values are signed, in 8 bits"),
        (meaning == 3 and max(tags[320]) < 256, "its palette is nearly black"),
        (len(tags.get(338, ())) > 1, "it has channels beside colours and transparency"),
        (tags.get(254, 0) & 5, "its first page is a thumbnail or a mask"),
    ):
        if refused:
            raise ValueError(f"{why}, which libraries read in two ways")
    return (1 << bits) - 1 if set(kinds) == {1} else 0


def _turn(opened: Image.Image) -> Image.Transpose | None:
    """How the EXIF orientation of a picture turns it; None if it does not."""
    orientation = opened.getexif().get(ORIENTATION)
    return TURNS.get(orientation) if isinstance(orientation, int) else None


def _fitted(image: Image.Image, preparation: Preparation) -> Pixels:
    return np.asarray(image if preparation.geometry is None else fitted(image, preparation.geometry))


def grey(pixels: Pixels) -> Pixels:
    """Colour pixels as grey ones, (H, W, 1). What is grey already keeps its values."""
    return np.asarray(Image.fromarray(pixels).convert("L"))[..., np.newaxis]


def fitted(image: Image.Image, geometry: Geometry) -> Image.Image:
    """Resize an RGB image and keep its centre, as torchvision's Resize and CenterCrop do, with the same rounding. The
    result is geometry.crop pixels wide and high. If the resized image is smaller, it has black edges, as there.

    Only the part that the crop keeps is resampled (Pillow's `box`). This saves 40 % of the time, and a picture of 1 by
    1,000,000 pixels does not become one of 256 by 256 million. Compared to resizing first, up to one value in
    250 differs, by two levels of 255 at most, because Pillow stores `box` in single precision. JPEG's decoding at
    reduced size (`draft`) would be faster, but it gives another picture.
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


def _rgb(image: Image.Image, top: int, preparation: Preparation) -> Image.Image:
    if image.mode[0] in "IF":
        return Image.fromarray(_grey(image, top, preparation)).convert("RGB")
    if top > 255 and preparation.window is not None:
        raise ValueError("it has colours, or a transparency, of 16 bits, and a window is for grey values")
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        *varies, alpha = np.ptp(image.getextrema(), axis=1)
        if alpha and not any(varies):
            raise ValueError("it has one colour, and all else is in its transparency, which is dropped")
    # Converting an image that is RGB already would copy it.
    colours: Image.Image = image if image.mode == "RGB" else image.convert("RGB")
    if top > 255 and narrow(np.asarray(colours), 256):
        preparation.notices.add("dark")
    return colours


def _grey(image: Image.Image, top: int, preparation: Preparation) -> Pixels:
    values = np.asarray(image)
    if image.format == "PPM" and top:
        # Pillow stretches them to 16 bits.
        values = np.rint(values * (top / 65_535)).astype(np.int32)
    if top == 2**32 - 1:
        values = values.view(np.uint32)
    if preparation.window is not None:
        return levels(values, preparation.window)
    if not 0 < top < 2**32 - 1:
        raise ValueError("its values have no stated range (signed, floats, or of 32 bits); only a window states one")
    if narrow(values, top + 1):
        preparation.notices.add("dark")
    return (values >> 8).astype(np.uint8) if top == 65_535 else levels(values, (0, top))


def refusal(error: Exception, name: str) -> UserError:
    """What the user reads of an error about the picture `name`, which nothing beside it can have caused."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, MemoryError | RecursionError) or number == errno.ENOMEM:
        return UserError(
            f"There is not enough memory to decode {secret(name)}. {GUARDED}",
            "Give the process more memory (ulimit or the batch system may limit it), and run the same command again to "
            "continue.",
            code="memory",
        )
    if isinstance(error, OSError) and number is not None:
        return unread(name, error)
    if isinstance(error, UnidentifiedImageError):
        return unreadable(name, "it is not an image of a known format")
    return unreadable(name, str(error) or type(error).__name__)
