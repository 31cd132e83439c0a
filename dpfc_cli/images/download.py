"""Fetching the public data sets, once, into a cache.

A file is fetched beside its place under the name `.part` and moved there only when its SHA-256 is the published one,
so that whatever stops a download, what carries the file's name is the file. A stopped download goes on where it
stopped, if the server can; the addresses of a file serve the same bytes, so another one may finish what the first
began. The cached copy is checked again at every use: that costs a fraction of a second and catches a damaged disk.
"""

import hashlib
import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dpfc_cli.errors import UserError
from dpfc_cli.folders import cache_folder
from dpfc_cli.images.sets import Progress
from dpfc_cli.images.sources import REMOTES, Remote

CHUNK = 1 << 20
PATIENCE_S = 30
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416


def fetch(dataset: str, progress: Progress | None = None) -> Path:
    """The folder in the cache that holds all files of `dataset`, downloaded where they are not there yet.

    progress(what, done, total) is told the bytes as they come. Raises UserError when no address serves a file.
    """
    folder = cache_folder() / dataset
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in REMOTES[dataset]:
            _ensure(remote, folder / remote.name, progress)
    except OSError as error:
        raise UserError(
            f"The cache folder '{folder}' cannot be used: {error}.",
            "Set DPFC_CACHE to a folder that can be written to, or name the data set's own folder with --data-dir.",
        ) from error
    return folder


def _ensure(remote: Remote, target: Path, progress: Progress | None) -> None:
    if target.is_file():
        if _digest(target) == remote.sha256:
            return
        target.unlink()
    part = target.with_name(f"{target.name}.part")
    problems = []
    for url in _tries(remote, part):
        problem = _receive(remote, url, part, progress)
        if problem is None and _digest(part) != remote.sha256:
            problem = "the file that came has the wrong SHA-256 and was removed"
            part.unlink()
        if problem is None:
            os.replace(part, target)
            return
        problems.append(f"{url}: {problem}")
    raise UserError(
        f"'{remote.name}' could not be downloaded. {'; '.join(problems)}.",
        "Check the network and try again, or get the file by other means and name its folder with --data-dir.",
    )


def _tries(remote: Remote, part: Path) -> Iterator[str]:
    """Every address once, and once more from the start if what it only finished turned out wrong.

    The fault may lie in the beginning, which another server or an older run has left.
    """
    for url in remote.urls:
        begun = part.exists()
        yield url
        if begun and not part.exists():
            yield url


def _receive(remote: Remote, url: str, part: Path, progress: Progress | None) -> str | None:
    """Add to `part` what is missing of it. Returns what went wrong, or None when the file has its full length."""
    have = part.stat().st_size if part.exists() else 0
    if have >= remote.size:
        return None
    headers = {"User-Agent": "dpfc"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=PATIENCE_S) as response:
            if have and not _continues(response, have):
                have = 0
            with part.open("ab" if have else "wb") as file:
                while have <= remote.size and (chunk := response.read(CHUNK)):
                    file.write(chunk)
                    have += len(chunk)
                    if progress is not None:
                        progress(remote.name, have, remote.size)
    except HTTPError as error:
        if error.code == RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)
        return f"the server answered {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return f"{getattr(error, 'reason', error)}"
    if have < remote.size:
        return f"the connection closed after {have} of {remote.size} bytes"
    return None


def _continues(response: http.client.HTTPResponse, have: int) -> bool:
    """Whether the server sends the rest of the file; one that ignores the request for it sends the whole."""
    return response.status == PARTIAL_CONTENT and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
