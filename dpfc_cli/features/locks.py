"""Locks on folders and files that several processes share. They are flock's: they end with the process, in any case."""

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from dpfc_cli.files import opened

PATIENCE = 20
"""How often to try."""


class ReplacedError(FileNotFoundError):
    """What was opened under a name is no longer there."""


def locked_soon(folder: Path, kind: int) -> int:
    """`locked`, with repeated tries for a shared lock: another process may hold the folder alone for a moment, to see
    whether it is the last one.
    """
    for _ in range(PATIENCE):
        try:
            return locked(folder, kind)
        except BlockingIOError:
            if kind == fcntl.LOCK_EX:
                raise
            time.sleep(0.05)
    return locked(folder, kind)


def locked(folder: Path, kind: int) -> int:
    """Lock a folder.

    Args:
        folder: the folder.
        kind: `fcntl.LOCK_SH` or `fcntl.LOCK_EX`.

    Returns:
        A descriptor of the folder. It holds the lock until it is closed or the process ends.

    Raises:
        BlockingIOError: another process holds the lock.
        FileNotFoundError: there is no such folder. ReplacedError: it was removed or renamed meanwhile.
        NotADirectoryError: its name leads elsewhere, or to a file.

    """
    descriptor = opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # If the folder was renamed between these two calls, we have locked the wrong one.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise ReplacedError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def claimed(path: Path) -> int | None:
    """Lock a file that holds values of records. It is made if it is not there, for its owner alone.

    A link under that name is removed and not followed.

    Returns:
        A descriptor of the file, which holds the lock; None if another process holds it.

    """
    while True:
        try:
            descriptor = opened(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink(missing_ok=True)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                # A file that an earlier version began may be open to others.
                os.fchmod(descriptor, 0o600)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        # The process that held the lock has renamed the file: what we locked is a finished shard now.
        os.close(descriptor)


def let_go(*descriptors: int) -> None:
    """Let go of locks. Nothing is written through these descriptors, so nothing is lost if that fails."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
