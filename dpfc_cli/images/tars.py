"""Pictures inside tar archives, read in place.

An archive is listed once, header by header, and never unpacked. Only the place and the number of a member's bytes are
kept. So a member's name is never used as a path, and a link is never followed. A header may not point past the end of
the file, and an archive must have the end mark that archives have. Otherwise an archive that was cut off behind a
member would look complete.
"""

import io
import tarfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError
from dpfc_cli.images.memory import check_size
from dpfc_cli.images.sets import Records
from dpfc_cli.sources.reading import readable

LONGEST_NAME = 1 << 20
"""Bytes of the longest record of a name, or of other facts, that stands before a member. It is read as a whole."""
_AGAIN = "Fetch the archive again. It must be a plain .tar: unpack .tar.gz to .tar with gunzip first."


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A regular file in an archive.

    Args:
        name: as it stands there.
        offset: of its first byte, in the outermost file.
        size: in bytes.

    """

    name: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Pictures that are ranges of bytes in large files.

    Args:
        paths: the files.
        names: what each picture is called in its file, n of them.
        which: the number of each picture's file, (n,).
        offsets: the first byte of each picture, (n,).
        sizes: the number of bytes of each picture, (n,).

    """

    paths: tuple[Path, ...]
    names: list[str]
    which: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def name(self, i: int) -> str:
        return f"{self.paths[int(self.which[i])]}: {self.names[i]}"

    def called(self, i: int) -> str:
        """The name of a picture with its archive's name. It stays when the archive is moved."""
        return f"{self.paths[int(self.which[i])].name}/{self.names[i]}"

    def read(self, i: int) -> bytes:
        path, size = self.paths[int(self.which[i])], int(self.sizes[i])
        check_size(size)
        with path.open("rb") as file:
            file.seek(int(self.offsets[i]))
            data = file.read(size)
        if len(data) != size:
            raise _damaged(str(path), "is shorter than it was when it was listed")
        return data

    def only(self, records: Records) -> "Ranges":
        return Ranges(
            paths=self.paths,
            names=[self.names[i] for i in records],
            which=self.which[records],
            offsets=self.offsets[records],
            sizes=self.sizes[records],
        )


class Header(tarfile.TarInfo):
    """The header of a member. A record before a member that claims to be very long is not read."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        named = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
        if self.type in (*named, tarfile.SOLARIS_XHDTYPE) and self.size > LONGEST_NAME:
            raise tarfile.ReadError(f"a name of {self.size} bytes")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return member


def ranges(found: list[tuple[int, Member]], paths: tuple[Path, ...]) -> Ranges:
    """The pictures in `found`, in that order, each as the number of its path and its member."""
    return Ranges(
        paths=paths,
        names=[member.name for _, member in found],
        which=np.array([which for which, _ in found], np.int32),
        offsets=np.array([member.offset for _, member in found], np.int64),
        sizes=np.array([member.size for _, member in found], np.int64),
    )


def members(path: Path) -> Iterator[Member]:
    """The regular files of an archive, in its order. Raises UserError if it is damaged or not a tar archive."""
    with reading(path), tarfile.open(path, "r:", errors="backslashreplace", tarinfo=Header) as archive:
        for member in _regular(archive, str(path)):
            yield Member(name=member.name, offset=member.offset_data, size=member.size)


def nested(path: Path) -> Iterator[tuple[str, list[Member]]]:
    """The .tar archives inside an archive, each with its name and its regular files. Raises UserError as `members`."""
    with reading(path), tarfile.open(path, "r:", errors="backslashreplace", tarinfo=Header) as outer:
        for part in _regular(outer, str(path)):
            if not part.name.endswith(".tar"):
                continue
            stream = outer.extractfile(part)
            assert stream is not None, "regular members have contents"
            with stream, tarfile.open(fileobj=stream, mode="r:", errors="backslashreplace", tarinfo=Header) as inner:
                found = [
                    Member(name=m.name, offset=part.offset_data + m.offset_data, size=m.size)
                    for m in _regular(inner, f"{path}: {part.name}")
                ]
            yield part.name, found


def reading(path: Path) -> AbstractContextManager[None]:
    """Turn the errors of reading an archive into a UserError that names it."""
    # A member may have many names, one before the other. tarfile calls itself for each.
    return readable(path, "a tar archive", _AGAIN, EOFError, OverflowError, RecursionError, tarfile.TarError)


def _regular(archive: tarfile.TarFile, source: str) -> Iterator[tarfile.TarInfo]:
    archive.fileobj.seek(0, io.SEEK_END)  # type: ignore[call-arg]
    end, whole = -1, archive.fileobj.tell()
    while (member := archive.next()) is not None:
        # The archive would remember every member, and there may be millions.
        archive.members = []  # type: ignore[attr-defined]
        if member.size < 0 or member.offset_data <= end:
            raise _damaged(source, "has a member that overlaps the one before it")
        if member.offset_data + member.size > whole:
            raise _damaged(source, "has a member that ends behind the end of the archive")
        end = member.offset_data
        if member.issparse():
            raise UserError(
                f"'{source}' stores '{member.name}' as a sparse file.",
                "Pack the files without tar's option for sparse files.",
                code="unsupported",
                path=source,
            )
        if member.isreg():
            yield member
    # tarfile stops without an error at a damaged header in the middle, and at a missing end.
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise _damaged(source, f"is damaged or cut off {archive.offset} bytes from its beginning")


def _damaged(source: str, what: str) -> UserError:
    return UserError(f"'{source}' {what}.", _AGAIN, code="damaged", path=source)
