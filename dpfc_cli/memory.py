"""How much memory there is, and the refusal of what does not fit, before a byte of it is taken."""

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfc_cli.errors import UserError, quoted

BESIDES = 128 << 20
"""Bytes that a reader of files takes whatever it reads: the list of strips of a TIFF, the filled-up blocks of a narrow
JPEG, the metadata of HDF5, tables, stacks."""

WIDE = 8_192
"""Dimensions from which decomposing a Gram matrix takes minutes to hours."""


def free_memory() -> float:
    """Bytes that this process may still take: what the machine has available, or less where a control group says so."""
    free = math.inf
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            free = min(free, float(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = min(free, *(1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
    except (OSError, ValueError, TypeError):
        pass
    return free


def check_fits(path: Path, what: str, needed: int, copies: int = 1) -> None:
    """Refuse what a file says that it holds, if memory cannot hold it: UserError (code "memory").

    what: what it holds, for the message. needed: its size in bytes, as the file declares it. copies: how many times it
    is held at once, in that size.
    """
    allowed = free_memory()
    if copies * needed > allowed:
        raise UserError(
            f"{quoted(path)} says that {what} takes {needed / 1e9:,.1f} GB. That needs {copies * needed / 1e9:,.1f} GB "
            f"of memory, and {allowed / 1e9:,.1f} GB are free.",
            "Check the file. If it is right, use a machine with more memory, or a smaller part of the data.",
            code="memory",
            needed=copies * needed,
            allowed=allowed,
        )


@contextmanager
def proved(wanted: int) -> Iterator[None]:
    """Do something whose failure says nothing about memory: the system would have given `wanted` bytes, and some.
    MemoryError: it failed, and the system would not have given them. The failure may have been a lack of memory.
    """
    try:
        # The pages are not touched: this asks for the memory as the readers' own requests do.
        mmap.mmap(-1, wanted + BESIDES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        given = True
    except OSError:
        given = False
    try:
        yield
    except Exception as error:
        if given:
            raise
        raise MemoryError("the system does not give what reading may take") from error
