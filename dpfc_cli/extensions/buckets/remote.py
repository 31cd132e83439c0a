"""Places at a URL: what a `Path` does, by universal-pathlib and fsspec, and what `dpfc_cli.places.Remote` says."""

import errno
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_IFDIR, S_IFREG
from types import SimpleNamespace
from typing import Any

from upath.extensions import ProxyUPath

from dpfc_cli.errors import unsupported

AHEAD = 8 << 20
"""Bytes that are read at once from a file that is read from its beginning on."""


class Place(ProxyUPath):
    """A place at a URL. See `dpfc_cli.places.Remote`."""

    __slots__ = ()

    def _info(self) -> dict[str, Any]:
        with _in_our_words(self):
            found: dict[str, Any] = self.fs.info(self.path)
            return found

    def _kind(self) -> str | None:
        try:
            return str(self._info()["type"])
        except FileNotFoundError:
            return None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _facts(self._info())

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._kind() is not None

    def is_file(self) -> bool:
        return self._kind() == "file"

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    def is_symlink(self) -> bool:
        return False

    def tag(self) -> tuple[Any, ...]:
        found = self._info()
        return found["size"], *(str(found.get(key)) for key in _TAGS)

    def entries(self, *, below: bool = False) -> Iterator[Any]:
        with _in_our_words(self):
            found = self.fs.find(self.path, detail=True).values() if below else self.fs.ls(self.path, detail=True)
        top = f"{self.path.rstrip('/')}/"
        for info in found:
            name = info["name"].removeprefix(top)
            # A key that ends in a slash stands for a folder without files, and a file is listed in itself.
            if name not in ("", info["name"]) and not (below and name.endswith("/")):
                yield _listed(name.rstrip("/"), f"{self.protocol}://{top}{name}", info)

    def bytes_from(self, start: int = 0, stop: int | None = None) -> bytes:
        with _in_our_words(self):
            try:
                data = bytes(self.fs.cat_file(self.path, start=start, end=stop))
            except OSError:
                # No range begins in an empty file.
                if start or self.fs.info(self.path)["size"]:
                    raise
                return b""
        if stop is not None and len(data) != stop - start:
            raise OSError(errno.EIO, "the server sent fewer bytes than there are", str(self))
        return data

    def read_bytes(self) -> bytes:
        return self.bytes_from()

    def open(self, mode: str = "r", buffering: int = -1, encoding: str | None = None, **more: Any) -> Any:  # type: ignore[override]
        """The file, to be read. buffering: 0: each read is one request. Default: `AHEAD`."""
        raw = _Ranges(self)
        if buffering == 0:
            return raw
        file = io.BufferedReader(raw, AHEAD if buffering < 0 else buffering)
        return file if "b" in mode else io.TextIOWrapper(file, encoding=encoding, **more)

    def make(self, data: bytes) -> bool:
        if self.protocol == "hf":
            raise unsupported("Nothing can be made at hf://: it knows no conditional writes.", "Choose another place.")
        with _in_our_words(self):
            try:
                self.fs.pipe_file(self.path, data, mode="create")
            except FileExistsError:
                return False
        return True

    def unlink(self, missing_ok: bool = False) -> None:
        with _in_our_words(self):
            self.fs.rm_file(self.path)


_TAGS = ("ETag", "etag", "content_md5", "generation", "blob_id", "LastModified", "last_modified")
"""What providers call what tells a file from others of its name."""


def _listed(name: str, url: str, info: dict[str, Any]) -> Any:
    """What a listing has, as an `os.DirEntry`."""
    folder, facts = info["type"] == "directory", _facts(info)
    return SimpleNamespace(
        name=name, path=url, is_dir=lambda **_: folder, is_symlink=lambda: False, stat=lambda **_: facts
    )


def _facts(info: dict[str, Any]) -> os.stat_result:
    kind = S_IFDIR if info["type"] == "directory" else S_IFREG
    return os.stat_result((kind, 0, 0, 1, 0, 0, info["size"] or 0, 0, 0, 0))


class _Ranges(io.RawIOBase):
    """A file that is read by ranges."""

    def __init__(self, place: Place) -> None:
        self._place, self._at, self._size = place, 0, -1

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence, self._end)
        return self._at

    @property
    def _end(self) -> int:
        if self._size < 0:
            self._size = self._place.stat().st_size
        return self._size

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._end)
        data = self._place.bytes_from(self._at, stop) if stop > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


@contextmanager
def _in_our_words(place: Place) -> Iterator[None]:
    """Turn whatever is raised into an OSError that repeats nothing of it but a word."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "there is no such file or bucket", str(place)) from None
    except Exception as error:
        response = getattr(error.__cause__, "response", None)
        code = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
        word = code if re.fullmatch(r"[A-Za-z0-9]{1,40}", str(code)) else type(error).__name__
        why = "the server, or the way to it, failed"
        if isinstance(error, PermissionError) or "Credential" in word or word.startswith("Token"):
            why = "the server does not take the credentials that were found here, or there are none"
        raise OSError(errno.EIO, f"{why} ({word})", str(place)) from None
