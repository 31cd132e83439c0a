"""flock's locks on folders and files that several processes share: they end with the process, however it ends."""

import fcntl
import os
import time
from pathlib import Path

PATIENCE = 20
"""Tries."""


class ReplacedError(FileNotFoundError):
    """What was opened under a name is no longer there."""


def locked_soon(folder: Path, kind: int) -> int:
    """`locked`, with the patience that another process needs to see whether it was the last."""
    for _ in range(PATIENCE):
        try:
            return locked(folder, kind)
        except BlockingIOError:
            if kind == fcntl.LOCK_EX:
                raise
            time.sleep(0.05)
    return locked(folder, kind)


def locked(folder: Path, kind: int) -> int:
    """A descriptor of the folder that holds its lock until it is closed or the process ends. BlockingIOError if
    taken, FileNotFoundError (ReplacedError) if the folder has gone meanwhile.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # Renamed between the two, it would be locked in vain.
        if not os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            raise ReplacedError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def claimed(path: Path) -> int | None:
    """A descriptor that holds the lock of the file of that name, made if need be; None if another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        # Renamed by the process that had it: what we locked is a finished shard now.
        os.close(descriptor)
