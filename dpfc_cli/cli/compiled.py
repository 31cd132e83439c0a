"""What JAX compiles is kept in the cache folder, so that the second run of a command compiles nothing.

What is kept are programs. They are made of public facts, such as numbers of dimensions and classes, and hold no record.
Secret samples of all sizes share one program (`privacy.sums.SAMPLED`).
"""

import contextlib
import hashlib
import os
import platform
import stat
import warnings
from pathlib import Path

from dpfc_cli.folders import cache_folder

COMMANDS = ("audit", "evaluate", "extract", "forecast", "predict", "train", "zero-shot")
"""The commands that compute with JAX."""
LARGEST = 2**28
"""Bytes that are kept. What was not used for the longest time goes first."""


def keep() -> None:
    """Say to JAX where it keeps what it compiles, unless the user has said so. JAX must not be imported yet.

    A program that lies in the cache is run. So the folder must be one that only this user can write to, and nobody else
    may be able to put another one in its place. If there is no such folder, nothing is kept.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # A home folder may be that of several machines. A program that was compiled for another processor may crash.
    with contextlib.suppress(OSError, RuntimeError):
        outer = cache_folder() / "compiled"
        folder = outer / hashlib.sha256(_processor()).hexdigest()[:16]
        for each in reversed(outer.parents):
            each.mkdir(mode=0o755, exist_ok=True)
        for each in (outer, folder):
            each.mkdir(mode=0o700, exist_ok=True)
        # Links may be changed later. What is checked is also what is used.
        folder = folder.resolve(strict=True)
        if not (_own(folder) and _own(folder.parent) and all(map(_safe, folder.parents))):
            return
        _sweep(folder)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(LARGEST))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        # On a full disk each of them would be told of. What is not kept is compiled again.
        warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")


def _own(folder: Path) -> bool:
    """Whether only this user can write to a folder."""
    found = folder.stat()
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(folder, os.W_OK)


def _safe(parent: Path) -> bool:
    """Whether nobody else but root can rename what root and this user have in a folder."""
    found = parent.stat()
    return found.st_uid in (0, os.geteuid()) and (not found.st_mode & 0o022 or bool(found.st_mode & stat.S_ISVTX))


def _sweep(folder: Path) -> None:
    """Remove what a killed process left: a program without its time, or a time without its program.

    With one such program, JAX would keep nothing any more, and not say so.
    """
    names = set(os.listdir(folder))
    for name in names:
        key, dash, end = name.rpartition("-")
        other = {"cache": "atime", "atime": "cache"}.get(end)
        if other and key + dash + other not in names:
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _processor() -> bytes:
    """What tells this kind of processor from others."""
    described = platform.machine().encode()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open("rb") as file:
        lines = file.read(2**14).split(b"\n\n")[0].splitlines()
        described += b"\n".join(line for line in lines if line.startswith((b"model name", b"flags", b"Features")))
    return described
