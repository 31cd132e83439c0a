"""What all fuzz targets are made of."""

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from dpfc_cli.images import Geometry

SQUARE = Geometry(resize=8, crop=8)
PICTURES = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


@dataclass(frozen=True, kw_only=True)
class Target:
    """seeds: makes the inputs to start from. run: reads an input in a folder. text: it is JSON, or words."""

    seeds: Callable[[], list[bytes]]
    run: Callable[[bytes, Path], object]
    text: str = ""


def saved(write: Callable[[Any], object]) -> bytes:
    """What is written into a file in memory."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def written(write: Callable[[Path], object], suffix: str = "") -> bytes:
    """What is written into a file that has a name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


def as_json(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value).encode()


def parquet(table: pa.Table) -> bytes:
    """A table as a parquet file."""
    return saved(lambda file: pq.write_table(table, file))


def picture(kind: str, mode: str = "RGB", **more: Any) -> bytes:
    """A small picture."""
    return saved(lambda file: Image.fromarray(PICTURES).convert(mode).save(file, kind, **more))


def look(found: Any) -> None:
    """Decode some pictures, and name them."""
    for split in found.splits.values():
        split.pixels(0, min(split.n, 4))
        split.name(0)
