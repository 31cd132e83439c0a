"""Pictures of all kinds, written byte by byte, with the values that they hold. No decoder is asked what is right."""

import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

SHAPE = 18, 21
WINDOW = 16, 48
"""For values of up to 64, as `grid` makes them of more than eight bits."""


class Case(NamedTuple):
    """A picture. values: those that were written, (H, W, samples)."""

    name: str
    data: bytes
    values: np.ndarray
    bits: int
    colours: bool = False
    inverted: bool = False


def packed(values: np.ndarray, bits: int, order: str = ">") -> bytes:
    """Rows of values, (H, n), of so many bits each. Each row begins with a new byte."""
    if values.dtype.kind == "f" or bits in (8, 16, 32, 64):
        kind = values.dtype.kind
        return values.astype(f"{order if bits > 8 else '|'}{kind}{bits // 8}").tobytes()
    if bits == 24:
        whole = values.astype(f"{order}u4").view(np.uint8).reshape(*values.shape, 4)
        return (whole[..., :3] if order == "<" else whole[..., 1:]).tobytes()
    spread = values.astype(np.uint64)[..., None] >> np.arange(bits - 1, -1, -1, dtype=np.uint64) & np.uint64(1)
    return np.packbits(spread.astype(np.uint8).reshape(len(values), -1), axis=1).tobytes()


def tiff(
    values: np.ndarray,
    bits: int,
    *,
    photometric: int | None = 1,
    order: str = "<",
    planar: int = 1,
    compression: int = 1,
    rows: int = 64,
    tile: int = 0,
    fill: int = 1,
    predictor: int = 1,
    extra: tuple[int, ...] = (),
    more: tuple[tuple[int, int, tuple[int, ...]], ...] = (),
) -> bytes:
    """A TIFF of values, (H, W, samples), with these tags. rows: of a strip. tile: its width and height, 0 for strips."""
    height, width, samples = values.shape
    planes = [values] if planar == 1 else [values[..., i : i + 1] for i in range(samples)]
    parts = []
    for plane in planes:
        if tile:
            down, across = -height % tile, -width % tile
            plane = np.pad(plane, ((0, down), (0, across), (0, 0)))
            places = itertools.product(range(0, height, tile), range(0, width, tile))
            parts += [plane[y : y + tile, x : x + tile] for y, x in places]
        else:
            parts += [plane[y : y + rows] for y in range(0, height, rows)]
    blocks = []
    for part in parts:
        if predictor == 2:
            part = np.diff(part, axis=1, prepend=np.zeros_like(part[:, :1]))
        data = packed(part.reshape(len(part), -1), bits, order)
        if fill == 2:
            data = data.translate(bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256)))
        if compression == 8:
            data = zlib.compress(data)
        elif compression == 32773:
            data = b"".join(bytes([len(run) - 1]) + run for at in range(0, len(data), 128) if (run := data[at : at + 128]))
        blocks.append(data)
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    tags: dict[int, tuple[int, tuple[int, ...]]] = {
        256: (3, (width,)),
        257: (3, (height,)),
        258: (3, (bits,) * samples),
        259: (3, (compression,)),
        277: (3, (samples,)),
        284: (3, (planar,)),
        266: (3, (fill,)),
        339: (3, (kind,) * samples),
    }
    if photometric is not None:
        tags[262] = (3, (photometric,))
    if predictor > 1:
        tags[317] = (3, (predictor,))
    if extra:
        tags[338] = (3, extra)
    tags |= {322: (3, (tile,)), 323: (3, (tile,))} if tile else {278: (3, (rows,))}
    tags |= {tag: (of, numbers) for tag, of, numbers in more}
    starts, sizes = (324, 325) if tile else (273, 279)
    at, offsets = 8, []
    for block in blocks:
        offsets.append(at)
        at += len(block)
    tags |= {starts: (4, tuple(offsets)), sizes: (4, tuple(map(len, blocks)))}
    body = b"".join(blocks)
    body += bytes(len(body) % 2)
    directory = 8 + len(body)
    beyond, entries = directory + 2 + 12 * len(tags) + 4, b""
    tail = b""
    for tag, (of, numbers) in sorted(tags.items()):
        field = struct.pack(f"{order}{len(numbers)}{'H' if of == 3 else 'I'}", *numbers)
        if len(field) > 4:
            tail, field = tail + field, struct.pack(f"{order}I", beyond + len(tail))
        entries += struct.pack(f"{order}HHI", tag, of, len(numbers)) + field.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, directory)
    return head + body + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + tail
