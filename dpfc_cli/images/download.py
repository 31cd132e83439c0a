"""Downloading the public data sets, once, into a cache.

A file is downloaded under a name that ends in `.part`. It gets its own name only if its SHA-256 is the published one.
So a file with its own name is complete, however the download was stopped. A stopped download continues where it
stopped, if the server allows it. All addresses of a file serve the same bytes, so one may finish what another began.

A cached file is checked again at every use. This takes a fraction of a second and finds damage on the disk. A link
under the name of a partial file is removed, not followed.
"""

import http.client
import os
from pathlib import Path
from urllib.request import Request, urlopen

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.files import opened, publish, sha256_of, sync
from dpfc_cli.folders import cache_folder
from dpfc_cli.images.sets import Progress, Remote

CHUNK = 1 << 20
TIMEOUT_S = 30
PARTIAL_CONTENT = 206


def fetch(dataset: str, remotes: tuple[Remote, ...], progress: Progress | None = None) -> Path:
    """The folder in the cache that holds the files of a data set. What is missing is downloaded; progress(file name,
    bytes so far, bytes in all) is called meanwhile. UserError if no address serves a file (code "unreadable"), or the
    cache cannot be used (code "unwritable").
    """
    folder = cache_folder() / dataset
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for remote in remotes:
            _ensure(remote, folder / remote.name, progress)
    except OSError as error:
        raise UserError(
            f"The cache folder '{folder}' cannot be used: {error}.",
            "Set DPFC_CACHE to a folder that can be written to, or name the folder that holds the data set: "
            f"{parameter('data_dir')}.",
            code="unwritable",
            parameter="data_dir",
            path=str(folder),
        ) from error
    return folder


def _ensure(remote: Remote, target: Path, progress: Progress | None) -> None:
    if target.is_file():
        if sha256_of(target) == remote.sha256:
            return
        target.unlink()
    part = target.with_name(f"{target.name}.part")
    if part.is_symlink():
        part.unlink()
    problems = []
    for url in remote.urls:
        problem = _receive(remote, url, part, progress)
        if problem is None and sha256_of(part) != remote.sha256:
            problem = "the downloaded file has the wrong SHA-256 and was removed"
            part.unlink()
        if problem is None:
            sync(part)
            if not publish(part, target):
                # Another process was faster, and has checked what it downloaded.
                part.unlink()
            return
        problems.append(f"{url}: {problem}")
    raise UserError(
        f"'{remote.name}' could not be downloaded. {'; '.join(problems)}.",
        "Check the network and try again, or get the file by other means and name the folder that holds it: "
        f"{parameter('data_dir')}.",
        code="unreadable",
        parameter="data_dir",
        name=remote.name,
        urls=list(remote.urls),
    )


def _receive(remote: Remote, url: str, part: Path, progress: Progress | None) -> str | None:
    """Download what is missing of `part`. Returns what went wrong, or None if the file has its full length."""
    have = part.stat().st_size if part.exists() else 0
    if have >= remote.size:
        return None
    headers = {"User-Agent": "dpfc"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as response:
            if response.status != PARTIAL_CONTENT:
                have = 0
            if response.headers.get("Content-Length") != str(remote.size - have):
                # Nothing of it is kept: what another address adds would be wrong, too.
                return "another file is served there"
            how = os.O_APPEND if have else os.O_TRUNC
            with os.fdopen(opened(part, os.O_WRONLY | os.O_CREAT | how), "ab" if have else "wb") as file:
                while have <= remote.size and (chunk := response.read(CHUNK)):
                    file.write(chunk)
                    have += len(chunk)
                    if progress is not None:
                        progress(remote.name, have, remote.size)
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    return f"the connection closed after {have} of {remote.size} bytes" if have < remote.size else None
