"""Pictures of many kinds, written byte by byte, beside the values that they hold. No decoder says what is right."""

import itertools
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

HEIGHT, WIDTH = 18, 21
"""No width of a byte, of a tile or of a strip divides them."""
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


class Case(NamedTuple):
    """A picture."""

    name: str
    data: bytes
    values: np.ndarray  # (H, W, samples), with low ones dark. Alpha and the like come behind 1 or 3.
    top: int  # the largest value that can be stored; 0 for values without a stated range
    stored: np.ndarray | None = None  # as tifffile has them

    @property
    def window(self) -> tuple[int, int]:
        """One that cuts off values at both ends."""
        return (self.top // 4, self.top * 3 // 4) if self.top else (-20, 30)

    def expected(self, window: tuple[int, int] | None) -> np.ndarray | None:
        """The pixels, (H, W, 3). None: it must be refused."""
        colours = self.values[..., : 3 if self.values.shape[2] > 2 else 1].astype(np.float64)
        if window is not None and not 0 < self.top < 256:
            if self.values.shape[2] > 1 and self.name[:4] != "tiff":
                return None
            colours = (colours.clip(*window) - window[0]) / (window[1] - window[0])
        elif self.top == 0 or self.top >= 2**32 - 1:
            return None
        elif self.top == 65_535 and (self.name[:3] != "ppm" or colours.shape[2] == 1):
            return np.broadcast_to(colours // 256, (HEIGHT, WIDTH, 3))
        else:
            colours = colours / self.top
        return np.broadcast_to(np.rint(colours * 255), (HEIGHT, WIDTH, 3))


def packed(values: np.ndarray, bits: int, order: str = ">") -> bytes:
    """Rows of values, (H, n), of so many bits each. Each row begins with a new byte."""
    if bits % 8 == 0 and bits != 24:
        return values.astype(f"{order if bits > 8 else '|'}{values.dtype.kind}{bits // 8}").tobytes()
    each = values.astype(np.uint64)[..., np.newaxis] >> np.arange(bits, dtype=np.uint64)[::-1] & np.uint64(1)
    return np.packbits(each.astype(np.uint8).reshape(len(values), -1), axis=1).tobytes()


def drawn(kind: str, bits: int, samples: int) -> np.ndarray:
    """Values of all sizes that so many bits can hold."""
    rng = np.random.default_rng(bits + samples)
    if kind == "f":
        return rng.normal(0, 30, (HEIGHT, WIDTH, samples)).astype(f"f{bits // 8}")
    low, high = (-(1 << bits - 1), 1 << bits - 1) if kind == "i" else (0, 1 << min(bits, 63))
    width = next(each for each in (8, 16, 32, 64) if each >= bits)
    return rng.integers(low, high, (HEIGHT, WIDTH, samples), np.int64 if kind == "i" else np.uint64).astype(
        f"{kind}{width // 8}"
    )


def tiff(
    values: np.ndarray,
    bits: int,
    meaning: int | None = 1,
    *,
    order: str = "<",
    planar: int = 1,
    compression: int = 1,
    rows: int = HEIGHT,
    tile: int = 0,
    fill: int = 1,
    predictor: int = 1,
    extra: tuple[int, ...] = (),
    more: dict[int, tuple[int, ...]] | None = None,
) -> bytes:
    """A TIFF of values as they are stored, (H, W, samples). rows: of a strip. tile: its width and height."""
    height, width, samples = values.shape
    blocks = []
    for plane in [values] if planar == 1 else np.split(values, samples, axis=2):
        step = tile or rows
        whole = np.pad(plane, ((0, -height % tile), (0, -width % tile), (0, 0))) if tile else plane
        for y, x in itertools.product(range(0, height, step), range(0, width, tile or width)):
            part = whole[y : y + step, x : x + (tile or width)]
            if predictor == 2:
                part = np.diff(part, axis=1, prepend=part[:, :1] * 0)
            data = packed(part.reshape(len(part), -1), bits, order)
            if compression == 8:
                data = zlib.compress(data)
            if compression == 32_773:
                runs = [data[at : at + 128] for at in range(0, len(data), 128)]
                data = b"".join(bytes([len(run) - 1]) + run for run in runs)
            blocks.append(data.translate(REVERSED) if fill == 2 else data)
    offsets = tuple(8 + sum(map(len, blocks[:i])) for i in range(len(blocks)))
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    tags: dict[int, tuple[int, ...]] = {256: (width,), 257: (height,), 258: (bits,) * samples, 259: (compression,)}
    tags |= {277: (samples,), 284: (planar,), 266: (fill,), 339: (kind,) * samples}
    tags |= {262: (meaning,)} if meaning is not None else {}
    tags |= {317: (predictor,)} if predictor > 1 else {}
    tags |= {338: extra} if extra else {}
    tags |= {322: (tile,), 323: (tile,)} if tile else {278: (rows,)}
    tags |= {324 if tile else 273: offsets, 325 if tile else 279: tuple(map(len, blocks))}
    tags |= more or {}
    at = 8 + sum(map(len, blocks))
    entries, beyond, end = b"", b"", at + 2 + 12 * len(tags) + 4
    for tag, numbers in sorted(tags.items()):
        field = struct.pack(f"{order}{len(numbers)}I", *numbers)
        kind = 4
        if tag not in (273, 279, 324, 325):
            field, kind = struct.pack(f"{order}{len(numbers)}H", *numbers), 3
        if len(field) > 4:
            field, beyond = struct.pack(f"{order}I", end + len(beyond)), beyond + field
        entries += struct.pack(f"{order}HHI", tag, kind, len(numbers)) + field.ljust(4, b"\0")
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, at)
    return head + b"".join(blocks) + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + beyond


def tiffs() -> Iterator[Case]:
    """All depths, signs, meanings and orders of bytes, each in a fifth of the layouts and compressions."""
    depths = [("u", bits) for bits in (1, 2, 4, 8, 10, 12, 14, 16, 24, 32, 64)]
    depths += [(kind, bits) for kind in "if" for bits in (8, 16, 32, 64) if (kind, bits) != ("f", 8)]
    layouts: list[dict[str, Any]] = [
        {},
        {"rows": 5},
        {"tile": 16},
        {"planar": 2},
        {"planar": 2, "rows": 7},
        {"compression": 8},
        {"compression": 8, "predictor": 2, "tile": 16},
        {"compression": 32_773, "rows": 4},
        {"fill": 2},
        {"fill": 2, "compression": 32_773},
        {"compression": 8, "planar": 2, "rows": 9},
    ]
    kinds: list[tuple[int | None, int, tuple[int, ...]]] = [(1, 1, ()), (0, 1, ()), (1, 2, (0,)), (1, 2, (2,))]
    kinds += [(2, 3, ()), (2, 4, (0,)), (2, 4, (2,)), (None, 1, ())]
    each = itertools.product(depths, kinds, "<>")
    for i, ((kind, bits), (meaning, samples, extra), order) in enumerate(each):
        for layout in layouts[i % 5 :: 5]:
            if layout.get("predictor") and (kind == "f" or bits not in (8, 16, 32)):
                continue
            values = drawn(kind, bits, samples)
            top = (1 << bits) - 1 if kind == "u" else 0
            dark = top - values if meaning == 0 and top else -values if meaning == 0 else values
            name = f"tiff {kind}{bits} {meaning} {extra} {order} {layout}"
            data = tiff(values, bits, meaning, order=order, extra=extra, **layout)
            stored = np.moveaxis(values, -1, 0) if "planar" in layout else values
            yield Case(name, data, dark, top, stored.squeeze())


def png(values: np.ndarray, bits: int, colour: int, chunks: dict[bytes, bytes], interlaced: bool = False) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    passes = [values[y::dy, x::dx] for y, x, dy, dx in (ADAM7 if interlaced else ((0, 0, 1, 1),))]
    rows = b"".join(b"\0" + packed(row.reshape(1, -1), bits) for part in passes for row in part)
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour, 0, 0, interlaced)
    named = [(b"IHDR", head), *chunks.items(), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in named)


def pngs() -> Iterator[Case]:
    for colour, samples, depths in ((0, 1, (1, 2, 4, 8, 16)), (2, 3, (8, 16)), (4, 2, (8, 16)), (6, 4, (8, 16))):
        for bits, interlaced in itertools.product(depths, (False, True)):
            clear = struct.pack(f">{samples}H", *(1,) * samples) if colour in (0, 2) else b""
            for extra in ({}, {b"gAMA": struct.pack(">I", 10_000)}, {b"sBIT": bytes([bits // 2 + 1] * samples)}) + (
                ({b"tRNS": clear},) if clear else ()
            ):
                values = drawn("u", bits, samples)
                name = f"png {bits} {colour} {interlaced} {[*extra]}"
                yield Case(name, png(values, bits, colour, extra, interlaced), values, (1 << bits) - 1)
    for bits, interlaced in itertools.product((1, 2, 4, 8), (False, True)):
        palette, places = drawn("u", 8, 3).reshape(-1, 3)[: 1 << bits], drawn("u", bits, 1)
        for extra in ({}, {b"tRNS": bytes([0, 99])}):
            data = png(places, bits, 3, {b"PLTE": palette.tobytes(), **extra}, interlaced)
            yield Case(f"png palette {bits} {interlaced} {[*extra]}", data, palette[places[..., 0]], 255)


def ppms() -> Iterator[Case]:
    for top, samples, plain in itertools.product((1, 2, 100, 255, 256, 1023, 4095, 65_535), (1, 3), (False, True)):
        values = (drawn("u", 16, samples).astype(np.int64) % (top + 1)).astype(np.uint16)
        head = f"P{(2 if samples == 1 else 3) + (0 if plain else 3)}\n# a remark\n{WIDTH} {HEIGHT}\n{top}\n".encode()
        text = " ".join(map(str, values.ravel())).encode()
        yield Case(
            f"ppm {top} {samples} {plain}",
            head + (text if plain else packed(values, 8 if top < 256 else 16)),
            values,
            top,
        )
    for plain in (False, True):
        values = drawn("u", 1, 1)
        bits = " ".join(map(str, 1 - values.ravel())).encode() if plain else packed(1 - values[..., 0], 1)
        yield Case(f"ppm bits {plain}", f"P{1 if plain else 4} {WIDTH} {HEIGHT}\n".encode() + bits, values, 1)
    for order, scale in (("<", -1.0), (">", 1.0)):
        values = drawn("f", 32, 1)
        yield Case(
            f"ppm float {scale}",
            f"Pf\n{WIDTH} {HEIGHT}\n{scale}\n".encode() + packed(values[::-1, :, 0], 32, order),
            values,
            0,
        )
