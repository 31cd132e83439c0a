"""Folders that are closed to us, as those of other people are, and calls of the system that fail."""

import ctypes
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_VERSION = 0x20080522
_ANY_MODE = 1 << 1 | 1 << 2
"""What lets root pass over the modes of files (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH)."""


@contextmanager
def closed(*folders: Path, mode: int = 0) -> Iterator[None]:
    """Let folders have a mode that holds for us, even if we are root."""
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in folders]
    for folder in folders:
        folder.chmod(mode)
    try:
        with _as_others():
            yield
    finally:
        for folder, before in zip(folders, modes, strict=True):
            folder.chmod(before)


@contextmanager
def _as_others() -> Iterator[None]:
    """Without what root may do beyond others."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("nothing is closed to root here")
    system = ctypes.CDLL(None, use_errno=True)
    of, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()

    def call(function: str) -> None:
        if getattr(system, function)(of, sets):
            raise OSError(ctypes.get_errno(), function)

    call("capget")
    before = sets[0]
    sets[0] = before & ~_ANY_MODE
    call("capset")
    try:
        yield
    finally:
        sets[0] = before
        call("capset")


def failing(number: int) -> Callable[..., Any]:
    """A call that fails with this number."""

    def fail(*given: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
