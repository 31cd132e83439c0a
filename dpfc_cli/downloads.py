"""Files of the network in the cache: data sets here, and where weights would lie.

A file is downloaded under another name. It gets its own name only if its SHA-256 is the published one. So a file with
its own name is complete, however the download was stopped. A cached file is checked again at every use. This takes a
fraction of a second and finds damage on the disk.

DPFC_MIRROR names a copy of the cache: https://…, or file:///… It is asked first. What it serves is checked, too.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpfc_cli.errors import UserError, parameter, quoted, unwritable
from dpfc_cli.files import opened, publish, sha256_of, sync, temporary_beside
from dpfc_cli.folders import cache_folder
from dpfc_cli.progress import Progress

CHUNK = 1 << 20
TIMEOUT_S = 30


class Remote(NamedTuple):
    """A file that can be downloaded. name: where it lies in the cache, such as 'cifar10/cifar-10-python.tar.gz'. size:
    in bytes. sha256: of its bytes, in hex. urls: addresses that serve these bytes, in the order in which they are
    tried.
    """

    name: str
    size: int | None
    sha256: str | None
    urls: tuple[str, ...]

    @property
    def place(self) -> Path:
        return cache_folder() / self.name


def fetch(remotes: Sequence[Remote], progress: Progress | None = None) -> None:
    """Download what is missing of some files, or damaged. UserError if no address serves a file (code "unreachable"),
    or the cache cannot be used (code "unwritable").
    """
    for remote in remotes:
        folder = remote.place.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _ensure(remote, remote.place, progress)
        except OSError as error:
            raise unwritable(
                f"The cache folder {quoted(folder)} cannot be used: {error}.",
                "Set DPFC_CACHE to a folder that can be written to, or name the folder that holds the data set: "
                f"{parameter('data_dir')}.",
            ) from error


def _ensure(remote: Remote, target: Path, progress: Progress | None) -> None:
    if target.is_file():
        if sha256_of(target) == remote.sha256:
            return
        target.unlink()
    problems, mirror = [], os.environ.get("DPFC_MIRROR")
    for url in (*([f"{mirror.rstrip('/')}/{remote.name}"] if mirror else []), *remote.urls):
        part = temporary_beside(target)
        try:
            problem = _receive(remote, url, part, progress)
            if problem is None:
                sync(part)
                # If another process was faster, it has checked what it downloaded.
                publish(part, target)
                return
        finally:
            part.unlink(missing_ok=True)
        problems.append(f"{url}: {problem}")
    raise UserError(
        f"'{target.name}' could not be downloaded. {'; '.join(problems)}.",
        "Check the network and try again, or get the file by other means and name the folder that holds it: "
        f"{parameter('data_dir')}.",
        code="unreachable",
        problem=f"{target.name}: {problem}",
    )


def _receive(remote: Remote, url: str, part: Path, progress: Progress | None) -> str | None:
    """Download a file to `part`. Returns what went wrong, or None if it is the right one."""
    # These take long to import, and most runs download nothing.
    from http.client import HTTPException
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    assert remote.size is not None
    have, digest = 0, hashlib.sha256()
    try:
        with (
            urlopen(Request(url, headers={"User-Agent": "dpfc"}), timeout=TIMEOUT_S) as response,
            os.fdopen(opened(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file,
        ):
            while have <= remote.size and (chunk := response.read(CHUNK)):
                file.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(Path(remote.name).name, have, remote.size)
    except (OSError, HTTPException) as error:
        return str(error.reason if type(error) is URLError else error)
    if have < remote.size:
        return f"the connection closed after {have} of {remote.size} bytes"
    return None if digest.hexdigest() == remote.sha256 else "what is served there has another SHA-256"
