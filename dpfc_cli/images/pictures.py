"""Pictures in their sources, how they are prepared, and what one can fail with.

They are encoded (JPEG, PNG and so on) in files of their own, in archives or in tables; or they are pixels already.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, parameter, secret
from dpfc_cli.files import check_plain
from dpfc_cli.geometry import Geometry
from dpfc_cli.places import place_of, remote

Pixels = NDArray[np.uint8]
Records = NDArray[np.int64]
"""Numbers of records. They ascend, unless the records are brought together by persons."""
Window = tuple[float, float]
"""The grey values that become black and white. Those between them become the levels between."""

Notice = Literal["dark", "frames", "rescaled", "turned"]
"""What is noticed of a picture. dark: it uses less than a quarter of the values that its file can hold, and there is no
window. frames: it has more of them than the one that is taken. rescaled: its file says what grey values mean, and there
is no window. turned: its EXIF orientation is not that of its pixels, and it is not turned."""

MOST_BYTES = 512 << 20
"""The most bytes of an encoded picture. One of `decoding.MOST_PIXELS` without compression has 270 MB (RGB)."""


class UnreadableError(UserError):
    """One picture cannot be decoded. The picture itself is damaged, not the disk or the archive it lies on.

    fields["reason"]: what is wrong with it.
    """


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """How pictures are prepared."""

    geometry: Geometry | None = None  # the size to bring them to; None: they keep their size
    window: Window | None = None
    """For grey values of more than 8 bits; None: all values that the file can hold are levels."""
    exif: bool = False  # whether a picture is turned as its EXIF orientation says
    notices: set[Notice] = field(default_factory=set, compare=False)
    """Why some picture may look otherwise than its owner expects: threads that decode add to it."""

    def describe(self) -> dict[str, object] | None:
        """The choices as JSON values, as manifests state them; None if nothing is done."""
        said: dict[str, object] = {} if self.geometry is None else self.geometry.describe()
        if self.window is not None:
            said["window"] = [float(value) for value in self.window]
        if self.exif:
            said["exif"] = True
        return said or None


class Pictures(Protocol):
    """Pictures in their source. Several threads may read at once."""

    def __len__(self) -> int: ...

    def name(self, i: int) -> str:
        """What the source calls picture i, wherever it is stored; or its number if it has no name."""
        ...

    def title(self, i: int) -> str:
        """What messages call picture i: its name and where it lies."""
        ...

    def read(self, i: int) -> bytes | Pixels:
        """The bytes of picture i, or its pixels, (H, W, C).

        Raises OSError or UserError if the source fails, and ValueError if these are more than `MOST_BYTES`.
        """
        ...

    def only(self, records: Records) -> "Pictures": ...


def read_file(path: Path) -> bytes:
    """The bytes of a picture's own file. Raises OSError if it cannot be read or is no file (opening a pipe would wait
    forever), and ValueError if these are more than `MOST_BYTES`.
    """
    if (far := remote(path)) is not None:
        data = far.bytes_from()
        check_size(len(data))
        return data
    check_plain(path)
    with path.open("rb") as file:
        check_size(os.fstat(file.fileno()).st_size)
        return file.read()


@dataclass(frozen=True)
class Files:
    """Pictures in files of their own. names: relative to the folder, or, if that is `Path()`, perhaps URLs."""

    folder: Path
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def title(self, i: int) -> str:
        return str(self.folder / self.names[i])

    def read(self, i: int) -> bytes:
        return read_file(place_of(self.names[i]) if self.folder == Path() else self.folder / self.names[i])

    def only(self, records: Records) -> "Files":
        return Files(self.folder, [self.names[i] for i in records])


@dataclass(frozen=True)
class Held:
    """Pictures that are pixels already, (n, H, W, C). They have numbers for names. records: those that are wanted, in
    the order that is wanted; all if None.
    """

    images: Pixels
    records: Records | None = None

    def __len__(self) -> int:
        return len(self.images if self.records is None else self.records)

    def name(self, i: int) -> str:
        return str(i if self.records is None else self.records[i])

    title = name

    def read(self, i: int) -> Pixels:
        return np.asarray(self.images[i if self.records is None else self.records[i]])

    def only(self, records: Records) -> "Held":
        return Held(self.images, records if self.records is None else self.records[records])

    def __reduce__(self) -> tuple[type["Held"], tuple[Pixels]]:
        # Another process gets those that are wanted.
        return Held, (self.images if self.records is None else self.images[self.records],)


# What a picture can fail with


def unreadable(title: str, reason: str) -> UnreadableError:
    return UnreadableError(
        f"{secret(title)} cannot be decoded: {reason}. {GUARDED}",
        "Remove it, replace it by an 8-bit PNG or JPEG, or keep it as a record without content: "
        f"{parameter('on_error')} null.",
        code="bad-record",
        reason=reason,
    )


def unread(title: str, error: OSError) -> UserError:
    """The error for a picture that the system does not let us read. This is no property of the picture."""
    return UserError(
        f"{secret(title)} cannot be read: {error.strerror or error}. {GUARDED}",
        "Check that it is still where it was, and the disk. Then run the same command again to continue.",
        code="unreadable",
    )


def check_size(encoded: int) -> None:
    """Refuse a picture of so many bytes if they are more than `MOST_BYTES`, with a ValueError."""
    if encoded > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
