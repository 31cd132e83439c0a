"""Pictures inside tar archives, read in place.

An archive is listed once, header by header, and never unpacked. Only the place and the number of a member's bytes are
kept. So a member's name is never used as a path, and a link is never followed. A header may not point past the end of
the file, and an archive must have the end mark that archives have. Otherwise an archive that was cut off behind a
member would look complete. An archive with a link is refused: a picture that was stored twice would be missing.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.annotations.split_files import is_clutter
from dpfc_cli.errors import secret
from dpfc_cli.files import range_in
from dpfc_cli.images.pictures import Records, check_size
from dpfc_cli.reading import readable

LONGEST_NAME = 1 << 20
"""Bytes of the longest record of a name, or of other facts, that stands before a member. It is read as a whole."""
UNPACKING = (EOFError, OverflowError, RecursionError, zlib.error, tarfile.TarError)
"""What reading an archive raises beside Python's own errors. A member may have many names, one before the other, and
tarfile calls itself for each."""


class Member(NamedTuple):
    """A regular file in an archive."""

    name: str  # as it stands there
    offset: int  # of its first byte, in the outermost file
    size: int  # in bytes


@dataclass(frozen=True)
class Ranges:
    """Pictures that are ranges of bytes in large files, n of them."""

    places: tuple[tuple[Path, str], ...]
    """Files, each with what comes before the names of its pictures. That stays when the file is moved."""
    names: list[str]
    which: NDArray[np.int32]  # the number of each picture's place, (n,)
    offsets: NDArray[np.int64]  # the first byte of each picture, (n,)
    sizes: NDArray[np.int64]  # the number of bytes of each picture, (n,)

    def __len__(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return f"{self.places[int(self.which[i])][1]}{self.names[i]}"

    def _path(self, i: int) -> Path:
        return self.places[int(self.which[i])][0]

    def title(self, i: int) -> str:
        return f"{self._path(i)}: {self.names[i]}"

    def read(self, i: int) -> bytes:
        path, size = self._path(i), int(self.sizes[i])
        check_size(size)
        data = range_in(path, int(self.offsets[i]), size)
        if len(data) != size:
            with reading(path):
                raise ValueError("it is shorter than it was when it was listed")
        return data

    def only(self, records: Records) -> "Ranges":
        names = [self.names[i] for i in records]
        return Ranges(self.places, names, self.which[records], self.offsets[records], self.sizes[records])


class Header(tarfile.TarInfo):
    """The header of a member. A record before a member that claims to be very long is not read."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        named = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if self.type in (*named, tarfile.SOLARIS_XHDTYPE) and self.size > LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


def ranges(found: list[tuple[int, Member]], places: tuple[tuple[Path, str], ...]) -> Ranges:
    """The pictures in `found`, in that order, each as the number of its place and its member."""
    return Ranges(
        places,
        names=[member.name for _, member in found],
        which=np.array([which for which, _ in found], np.int32),
        offsets=np.array([member.offset for _, member in found], np.int64),
        sizes=np.array([member.size for _, member in found], np.int64),
    )


def members(path: Path, file: BinaryIO) -> Iterator[Member]:
    """The regular files of an archive, in its order, without what systems leave behind. file: the archive, open. It may
    be read elsewhere meanwhile. Raises UserError if it is damaged or not a tar archive.
    """
    how: dict[str, Any] = {"mode": "r:", "errors": "backslashreplace", "tarinfo": Header}
    with reading(path):
        # Before a buffer is filled: it would be dropped.
        whole = file.seek(0, io.SEEK_END)
        file.seek(0)
    with reading(path), tarfile.open(fileobj=file, **how) as archive:
        for member in _regular(archive, whole):
            if not any(map(is_clutter, member.name.split("/"))):
                yield Member(member.name, member.offset_data, member.size)


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn the errors of reading an archive into a UserError that names it."""
    remedy = "Fetch the archive again. It must be a plain .tar: unpack .tar.gz to .tar with gunzip first."
    return readable(path, "a tar archive", remedy, *UNPACKING)


def _regular(archive: tarfile.TarFile, whole: int) -> Iterator[tarfile.TarInfo]:
    """The regular files of an archive of `whole` bytes. ValueError if it is damaged, or has others beside folders."""
    end = -1
    while (member := archive.next()) is not None:
        # The archive would remember every member, and there may be millions.
        archive.members = []  # type: ignore[attr-defined]
        if member.size < 0 or member.offset_data <= end:
            raise ValueError("it has a member that overlaps the one before it")
        if member.offset_data + member.size > whole:
            raise ValueError("it has a member that ends behind the end of the archive")
        end = member.offset_data
        if member.issparse() or not (member.isreg() or member.isdir()):
            raise ValueError(f"{secret(member.name)} in it is sparse, a link or no file (tar has options for them)")
        if member.isreg():
            yield member
    # tarfile stops without an error at a damaged header in the middle, and at a missing end.
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise ValueError(f"it is damaged or cut off {archive.offset} bytes from its beginning")
