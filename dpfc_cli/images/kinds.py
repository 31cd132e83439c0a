"""Kinds of picture files: by the endings of their names, and by their first bytes.

Those of `USUAL` are read in `decoding`. A package may add others, by entry points of the group `dpfc.decoders`.
"""

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfc_cli import points
from dpfc_cli.images.pictures import Pixels, Preparation

GROUP = "dpfc.decoders"
USUAL = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""How the names of usual picture files end."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of picture files that a package reads.

    Attributes:
        endings: how the names of such files end, in small letters.
        begins: whether a file is of this kind, by its bytes.
        check_installed: raises UserError where a library that reads such files is not installed.
        size: the pixels that a file declares, by its bytes. ValueError: it is not of a kind that is read.
        read: the picture in a file: grey levels, (H, W), or colours, (H, W, 3), by the window of the preparation. Any
            Exception: the file is damaged, or not read.
        person: what usually names the person of a picture in such files.
        value_of: what stands in a file under such a name; None if there is nothing, or the file is damaged.
        check_name: raises UserError unless such files may have that name.

    """

    endings: tuple[str, ...]
    begins: Callable[[bytes], bool]
    check_installed: Callable[[], None]
    size: Callable[[bytes], int]
    read: Callable[[bytes, Preparation], Pixels]
    person: str
    value_of: Callable[[Path, str], Any]
    check_name: Callable[[str], None]


@functools.cache
def _added() -> tuple[Kind, ...]:
    return tuple(points.load(GROUP, name, Kind) for name in points.added(GROUP))


@functools.cache
def endings() -> frozenset[str]:
    """How the names of picture files end, in small letters."""
    return frozenset((*USUAL, *(ending for kind in _added() for ending in kind.endings)))


def ending_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def kind_in(data: bytes) -> Kind | None:
    """The kind of a file by its bytes; None for a usual one."""
    return next((kind for kind in _added() if kind.begins(data)), None)


def kind_of(name: str) -> Kind | None:
    """The kind of a file by its name; None for a usual one."""
    return next((kind for kind in _added() if ending_of(name) in kind.endings), None)


def check_readable(names: Iterable[str]) -> None:
    """UserError where a library lacks that reads some of these files (code "unsupported")."""
    there = set(map(ending_of, names))
    for kind in _added():
        if not there.isdisjoint(kind.endings):
            kind.check_installed()
