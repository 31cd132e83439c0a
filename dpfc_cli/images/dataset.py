"""What a data set is to dpfc: one entry of the table in `catalogue`.

Each entry stands in the module that reads the data set. To add a data set, write such a module and add its entry to the
table.
"""

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.images.sets import ImageSet, Progress
from dpfc_cli.sources.groups import By, Rule

Window = tuple[float, float]
"""The grey values that become black and white. Those between them become the levels between."""
Notice = Callable[[str], None]
"""Told the name of a picture that uses less than a quarter of the values that its file can hold."""


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How pictures are prepared.

    Attributes:
        geometry: the size to bring them to; None: they keep their size.
        window: for grey values of more than 8 bits; None: all values that the file can hold are levels.
        exif: whether a picture is turned as its EXIF orientation says.
        notice: called while a picture is decoded, by several threads.

    """

    geometry: Geometry | None = None
    window: Window | None = None
    exif: bool = False
    notice: Notice | None = field(default=None, compare=False)

    def describe(self) -> dict[str, Any] | None:
        """The choices as JSON values, as manifests state them; None if nothing is done."""
        said: dict[str, Any] = {} if self.geometry is None else self.geometry.describe()
        if self.window is not None:
            said["window"] = [float(value) for value in self.window]
        if self.exif:
            said["exif"] = True
        return said or None


Location = Literal["included", "data_dir", "path"]
"""Where the files of a data set are: inside dpfc; in a folder that the user names apart from the data set (or in the
cache, if the data set can be downloaded); or at the path in the data set's name, `imagefolder:PATH`."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A file that can be downloaded.

    Args:
        name: the file's name.
        size: in bytes.
        sha256: the SHA-256 of its bytes, in hex.
        urls: addresses that serve these bytes, in the order in which they are tried.

    """

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a data set is opened with.

    Args:
        place: the file, folder or pattern that holds its files. Not used if the files are included in dpfc.
        preparation: what is done with encoded pictures. Not used if all pictures have one small size.
        classes: the classes that the operator asserts, or None.
        progress: called as progress(stage, done, total or None).
        label_column: the column, or the key, that holds the labels, if it is not a usual one.
        group_by: how the person of a picture is found, or None.

    """

    place: Path
    preparation: Preparation
    classes: tuple[str, ...] | None
    progress: Progress | None
    label_column: str | None = None
    group_by: Rule | None = None


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set, or a format of data sets, that dpfc can read.

    Args:
        name: what the user types.
        open: reads it. Modules that take long to import are imported in here.
        location: where its files are.
        small: all pictures have one small size, which the backbone's own preprocessing resizes.
        asserted: the operator may state the classes. Otherwise the data set defines them.
        groups: the rules by which it finds the person of a picture.
        remotes: the files to download if the user names no folder. None if the data set cannot be downloaded.
        obtain: where the user gets the files that cannot be downloaded, a sentence for messages.
        resembles: whether a path that the user typed by itself looks like this format, for messages.

    """

    name: str
    open: Callable[[Request], ImageSet]
    location: Location
    small: bool = False
    asserted: bool = False
    groups: tuple[By, ...] = ()
    remotes: tuple[Remote, ...] = ()
    obtain: str = ""
    resembles: Callable[[Path], bool] = lambda path: False

    @property
    def usage(self) -> str:
        """What the user types, with the place of its path."""
        return f"{self.name}:PATH" if self.location == "path" else self.name


def mirrored(folders: tuple[str, ...], *, name: str, size: int, sha256: str) -> Remote:
    """The file of that name, which all these addresses of folders serve."""
    return Remote(name=name, size=size, sha256=sha256, urls=tuple(f"{folder}/{name}" for folder in folders))


def has_files(suffix: str) -> Callable[[Path], bool]:
    """A `DataSet.resembles`: whether a path ends in `suffix`, or is a folder in which a file does."""
    return lambda path: path.suffix == suffix or (os.path.isdir(path) and bool(glob.glob(f"*{suffix}", root_dir=path)))
