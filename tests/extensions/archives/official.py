"""Tiny data sets in the official layout of MNIST."""

import gzip
import struct
from pathlib import Path

import numpy as np


def idx_bytes(values: np.ndarray) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


def idx(folder: Path, train: tuple[np.ndarray, ...], test: tuple[np.ndarray, ...] = (), packed: bool = False) -> Path:
    """The four files of MNIST for images (n, H, W) and labels, plain or packed."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, part in (("train", train), ("t10k", test)):
        for kind, values in zip(("images-idx3", "labels-idx1"), part, strict=False):
            data, name = idx_bytes(values), f"{prefix}-{kind}-ubyte"
            (folder / f"{name}{'.gz' * packed}").write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return folder


def digits(n: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """n images of 4 by 4 with the labels 0, 1 … 9, 0 …. Each start gives other images."""
    images = (np.arange(n * 16, dtype=np.int64) + start).astype(np.uint8).reshape(n, 4, 4)
    return images, (np.arange(n) % 10).astype(np.uint8)
