"""The memory of decoders: how much one picture may need, and how much all of them together may need.

Decoders report a lack of memory in many ways, some of them as a damaged file (Pillow says "broken data stream" when
libjpeg gets no memory). So a picture beside another one could look damaged because of the other one. Two rules prevent
that:

- Decoders run at once only as far as their stated bounds fit into `TOGETHER`. A larger picture runs alone.
- A picture that failed is decoded again `alone`. Only then a failure counts, and only if it is `proved` that the system
  would have given as much memory as the bound says (`dpfc_cli.memory`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition, Lock

MOST_BYTES = 512 << 20
"""The most bytes of an encoded picture. One of `MOST_PIXELS` without compression has 270 MB (RGB)."""
MOST_PIXELS = 89_478_485
"""The most pixels that a picture may declare. (It is also the number from which Pillow warns.)"""
PER_PIXEL = 24
"""Bytes for each pixel. Measured at worst: 22 for WebP (two canvases, a copy, the picture, its conversion to RGB and
the array), 14 for progressive JPEG with four components (8 of them are its coefficients), 14 for PNG, GIF and TIFF."""
PER_BYTE = 8
"""Bytes for each byte of the encoded picture: chunks of PNG that nobody asked for, and numbers of PPM as text."""
TOGETHER = PER_PIXEL * MOST_PIXELS
"""Bytes for all decoders that run at once: 2.1 GB, the bound of the largest picture."""


def bound(encoded: int, pixels: int) -> int:
    """The most bytes that decoding a picture takes, for its number of encoded bytes and of declared pixels."""
    return PER_BYTE * encoded + PER_PIXEL * pixels


def check_size(encoded: int) -> None:
    """Refuse a picture of so many bytes if they are more than `MOST_BYTES`, with a ValueError."""
    if encoded > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")


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

    def alone(self) -> AbstractContextManager[None]:
        """Hold all of it: no other thread holds any."""
        return self.share(self._size)
