"""Places: where files lie, on this machine or at a URL.

A place of this machine is a `pathlib.Path`. What a URL names is made by a package (the group `dpfc.places`, by the
scheme): an object with what rooms use of a path (`/`, `name`, `suffix`, `parent`, `open`, `stat`, `exists`, `is_file`,
`is_dir`), and with what `Remote` says. Its errors are OSErrors. To mypy it is a `Path`: `place_of` says so, and nothing
else does. A URL has no links, locks, modes or second names, and nothing is renamed there.
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from dpfc_cli import points
from dpfc_cli.errors import UserError, quoted, unsupported

GROUP = "dpfc.places"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z0-9+.:-]*)?)://(.*)", re.DOTALL)
"""Chained ones of fsspec have `::`, and are known to nobody here."""
_SECRET = re.compile(r"(?!arn:)[^/]*[@:]|[^?]*\?[^/]*=")
"""What stands behind a scheme, and may be a secret: a user or a password before the first slash (a password may have
slashes itself), or a query with values. A bucket of Amazon may be called `arn:…`."""


Entries = Iterator["os.DirEntry[str]"]
"""What a listing has; at a URL objects that do the same."""


@runtime_checkable
class Remote(Protocol):
    """What a place at a URL can do beside what a path can. All raise OSError."""

    def entries(self, *, below: bool = False) -> Entries:
        """What lies in it as in a folder; with `below` the files at any depth, named from it on."""

    def bytes_from(self, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes [start, stop) of a file, by one request."""

    def make(self, data: bytes) -> bool:
        """Make a file of these bytes, whole or not at all, unless there is one: False."""

    def tag(self) -> tuple[Any, ...]:
        """What tells a file from others of its name, without reading it."""


def place_of(text: str | PathLike[str]) -> Path:
    """What a path or a URL names. UserError: no package knows the scheme, or the URL may hold a secret."""
    found = _URL.match(text) if isinstance(text, str) else None
    if found is None:
        return Path(text) if isinstance(text, str) else cast(Path, text)
    check(str(text))
    scheme = found[1].lower()
    if scheme not in points.added(GROUP):
        known = ", ".join(f"{name}://" for name in points.added(GROUP)) or "none"
        raise unsupported(f"dpfc does not know '{scheme}://'.", f"It knows {known}. Or copy the files to this machine.")
    return cast(Path, points.load(GROUP, scheme)(f"{scheme}://{found[2]}"))


def check(text: str) -> None:
    """UserError for a URL with a user, a password, a token or a signature. The message does not repeat it."""
    found = _URL.fullmatch(text)
    if found is not None and _SECRET.match(found[2]):
        raise UserError(
            f"A URL ('{found[1]}://…') has a user, a password or a query in it. Whoever sees a command, a log or a "
            "manifest would have them.",
            "Take them out. Credentials stand where the tools of your provider look for them: in the environment, or "
            "in their own files.",
        )


def remote(path: Path) -> Remote | None:
    """What a place at a URL can do; None for one of this machine."""
    place: object = path
    return None if isinstance(place, Path) else cast(Remote, place)


@contextmanager
def answered(path: Path) -> Iterator[None]:
    """Turn an OSError of looking at a place into a UserError that names it."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{quoted(path)} cannot be read: {error.strerror or error}.",
            "Check the name, the rights and the network. Then run the same command again.",
            code="unreadable",
        ) from error


def exists(path: Path) -> bool:
    """Whether there is something that we may look at. UserError: the server of a URL does not say."""
    if remote(path) is None:
        return os.path.exists(path)
    with answered(path):
        return path.exists()


def entries_in(folder: Path) -> AbstractContextManager[Entries]:
    """What lies in a folder. Raises OSError."""
    return os.scandir(folder) if (far := remote(folder)) is None else nullcontext(far.entries())


def is_dir(path: Path) -> bool:
    """Whether there is a folder that we may look at. UserError: as `exists`."""
    if remote(path) is None:
        return os.path.isdir(path)
    with answered(path):
        return path.is_dir()


def local(text: str | Path, named: str, why: str) -> Path:
    """A place of this machine. named: its parameter, or its variable. why: it cannot lie elsewhere. UserError: it is a
    URL.
    """
    # A `Path` has one slash of the two.
    if re.match("[A-Za-z][A-Za-z0-9+.-]+:/", str(text)):
        raise unsupported(f"{named} is a URL. {why}", "Name a path of this machine.")
    return Path(text)
