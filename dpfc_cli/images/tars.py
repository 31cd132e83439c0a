"""Pictures inside tar archives, read in place.

An archive is listed once, header by header, and never unpacked: what is kept of a member is where its bytes begin and
how many they are, so a member's name is never a path and a link is never followed. Headers are believed only as far as
the file reaches, and an archive must end as archives do: what was cut off behind a member looks whole otherwise.
"""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import UserError
from dpfc_cli.images.sets import Records

_AGAIN = "Fetch the archive again. It must be a plain .tar: unpack .tar.gz to .tar with gunzip first."


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file of an archive. name: printable. offset: of its first byte, in the outermost file."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Ranges:
    """Pictures that are ranges of bytes in large files. which, offsets, sizes: (n,), the file, where, how many."""

    paths: tuple[Path, ...]
    names: list[str]
    which: NDArray[np.int32]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def name(self, i: int) -> str:
        return f"{self.paths[int(self.which[i])]}: {self.names[i]}"

    def called(self, i: int) -> str:
        """Archive and name of a picture, wherever the archive lies."""
        return f"{self.paths[int(self.which[i])].name}/{self.names[i]}"

    def read(self, i: int) -> bytes:
        path, size = self.paths[int(self.which[i])], int(self.sizes[i])
        with path.open("rb") as file:
            file.seek(int(self.offsets[i]))
            data = file.read(size)
        if len(data) != size:
            raise UserError(f"'{path}' is shorter than it was when it was listed.", _AGAIN)
        return data

    def only(self, records: Records) -> "Ranges":
        names = [self.names[i] for i in records]
        return Ranges(self.paths, names, self.which[records], self.offsets[records], self.sizes[records])


def ranges(found: list[tuple[int, Member]], paths: tuple[Path, ...]) -> Ranges:
    """The pictures found, (number of the path, member) each, in that order."""
    return Ranges(
        paths,
        [member.name for _, member in found],
        np.array([which for which, _ in found], np.int32),
        np.array([member.offset for _, member in found], np.int64),
        np.array([member.size for _, member in found], np.int64),
    )


def members(path: Path) -> Iterator[Member]:
    """The regular files of an archive, in its order. Raises UserError when it is damaged or no tar."""
    with _readable(path), tarfile.open(path, "r:", errors="backslashreplace") as archive:
        for member in _regular(archive, str(path)):
            yield Member(_printable(member.name), member.offset_data, member.size)


def nested(path: Path) -> Iterator[tuple[str, list[Member]]]:
    """The .tar archives inside an archive, each with its name and its regular files."""
    with _readable(path), tarfile.open(path, "r:", errors="backslashreplace") as outer:
        for part in _regular(outer, str(path)):
            if not part.name.endswith(".tar"):
                continue
            stream = outer.extractfile(part)
            assert stream is not None, "regular members have contents"
            with stream, tarfile.open(fileobj=stream, mode="r:", errors="backslashreplace") as inner:
                found = [
                    Member(_printable(m.name), part.offset_data + m.offset_data, m.size)
                    for m in _regular(inner, f"{path}: {_printable(part.name)}")
                ]
            yield _printable(part.name), found


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError, OverflowError, tarfile.TarError) as error:
        raise UserError(f"'{path}' cannot be read as a tar archive: {error}.", _AGAIN) from error


def _regular(archive: tarfile.TarFile, source: str) -> Iterator[tarfile.TarInfo]:
    end = -1
    while (member := archive.next()) is not None:
        # The archive would remember every member, and there may be millions.
        archive.members = []  # type: ignore[attr-defined]
        if member.size < 0 or member.offset_data <= end:
            raise UserError(f"'{source}' has a member that reaches back before its beginning.", _AGAIN)
        end = member.offset_data
        if member.issparse():
            raise UserError(f"'{source}' stores '{_printable(member.name)}' with holes.", "Pack it with plain tar.")
        if member.isreg():
            yield member
    # A damaged header in the middle ends the listing without an error, as does a missing end.
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise UserError(f"'{source}' is damaged or cut off {archive.offset} bytes from its beginning.", _AGAIN)


def _printable(name: str) -> str:
    """A member's name without characters that would do something to a terminal."""
    return "".join(c if c.isprintable() else "?" for c in name)
