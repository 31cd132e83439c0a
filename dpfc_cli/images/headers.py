"""What a picture declares, read from its own bytes before a decoder sees it.

Some files make a decoder take far more memory or time than a picture of that size needs: a TIFF of 10 by 10 pixels
with a tile of 2 GB, a JPEG of 500 kB with a thousand scans. They are refused here. The limits look at the file's own
bytes alone, never at the clock or at free memory. So the same file is refused everywhere, whatever is decoded beside
it.
"""

import re
import struct
from typing import Literal

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
_OFFSETS = (273, 324)
_BYTES = {1: 1, 6: 1, 3: 2, 8: 2, 4: 4, 9: 4, 13: 4, 16: 8, 17: 8}
"""Bytes of a number of each TIFF type that libtiff takes for a length."""
_YCBCR, _JPEG, _ALL_ROWS = 6, 7, 2**32 - 1


def declared(data: bytes) -> int:
    """The pixels that a decoder would take memory for, as far as the decoder does not state them before it takes it.

    This is the canvas of a WebP and the tile of a TIFF. It is 0 for other formats.

    Raises:
        ValueError: the file would take far more time than its size explains.

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
        if kind in _BYTES:
            number[tag] = max(number.get(tag, 0), _number(data, field, _BYTES[kind], order))
    tile = number.get(_TILE_WIDTH, 0) * number.get(_TILE_LENGTH, 0)
    rows = number.get(_ROWS, _ALL_ROWS)
    if number.get(_PHOTOMETRIC) == _YCBCR and number.get(_COMPRESSION) != _JPEG and rows < _ALL_ROWS:
        return max(tile, rows * number.get(_WIDTH, 0))
    return tile


def _number(data: bytes, field: bytes, width: int, order: _Order) -> int:
    """The number of an entry. It lies in the entry's field, or where the field says if it is too long for that."""
    if width > len(field):
        at = int.from_bytes(field, order)
        field = data[at : at + width]
    return int.from_bytes(field[:width], order)


def _canvas(data: bytes) -> int:
    """The pixels of a WebP's canvas."""
    kind = data[12:16]
    if kind == b"VP8X":
        width, height = int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    elif kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (int.from_bytes(data[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height
