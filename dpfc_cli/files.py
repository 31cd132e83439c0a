"""Files that are whole or not there: one way to hash, to write and to publish them, and one way to read JSON.

A file is written under a temporary name in its own folder, synced to disk, and then given its name. So a reader never
sees half a file, and a file that was published survives a power cut.

A link under the name of a temporary file is never followed. Otherwise another user who may write to the folder could
make us overwrite a file elsewhere. Files that hold values of records are for their owner alone (`claimed`), and so
are ledgers, and the folders of both (`private_folder`). Heads get the modes that the umask allows. Locks are flock's.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from typing import Any, Literal, NoReturn

from dpfc_cli.places import remote

LARGEST_JSON = 2**28
"""Bytes of the largest JSON file that is read. The names of ten million classes take half of it."""
DEEPEST = 64
"""Levels of the deepest JSON that is read. What can be read can then be copied and written again."""


TEMPORARY = ".tmp"
"""How the name of a temporary file ends."""


class NoPlainFileError(OSError):
    """There is something of that name, but it holds no bytes of its own: a folder, a pipe, a device."""


def named_twice(paths: Iterable[Path]) -> Path | None:
    """The first path that leads to the same file as one before it: it is the same name, a link, or a second name."""
    seen = set[object]()
    for path in paths:
        # A URL has no second names.
        known: object = path
        if remote(path) is None:
            found = path.stat()
            known = found.st_dev, found.st_ino
        if known in seen:
            return path
        seen.add(known)
    return None


def written_at(path: Path) -> int:
    """When a file was written, in nanoseconds; −1 if it is gone, or if we may not look at it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


def check_plain(path: Path) -> None:
    """Raise OSError unless there is a regular file of that name, perhaps through links.

    Opening a pipe would wait until somebody writes to it, and a device has no end.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise NoPlainFileError("it is no regular file")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex. Raises OSError where it cannot be read as a whole."""
    try:
        check_plain(path)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            if file.tell() != os.fstat(file.fileno()).st_size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return digest
    except OSError as error:
        # Only those of `open` name the file.
        error.filename = str(path)
        raise


def range_in(path: Path, start: int, size: int) -> bytes:
    """So many bytes of a file, or fewer where it ends before. Raises OSError."""
    if (far := remote(path)) is not None:
        return far.bytes_from(start, start + size)
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


def json_in(path: Path) -> Any:
    """The values in a JSON file. Raises OSError where it cannot be read, and ValueError as `json_of` does."""
    return json_of(bytes_in(path))


def bytes_in(path: Path) -> bytes:
    """The bytes of a file. Raises OSError where it cannot be read, and ValueError if there are too many."""
    check_plain(path)
    if path.stat().st_size > LARGEST_JSON:
        raise ValueError(f"it is larger than {LARGEST_JSON >> 20} MiB")
    return path.read_bytes()


def json_of(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], object] | None = None) -> Any:
    """The values of a JSON text from a file. ValueError: it is no JSON, it is nested too deeply, or it has a number
    that no float64 is (NaN, 1e400). pairs: makes a value of the keys and values of an object. Default: the last value
    of a key counts.
    """
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_no_number, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    inside = [value]
    for _ in range(DEEPEST):
        within = (each for each in inside if isinstance(each, list | dict))
        inside = [item for each in within for item in (each.values() if isinstance(each, dict) else each)]
        if not inside:
            return value
    raise ValueError("its JSON is nested too deeply")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError("its JSON has a number that is none, or too large (NaN, Infinity, 1e400)")


def temporary_beside(path: Path) -> Path:
    """A new name in the folder of `path`, for a file that is to become `path`. Nothing is made."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY}")


def private_folder(path: Path) -> None:
    """Make a folder for its owner alone. One that is there keeps the mode that it was given. Raises OSError."""
    path.mkdir(mode=0o700, exist_ok=True)


def sync(path: Path) -> None:
    """Sync a file's contents, or a folder's entries, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opened(path: Path, flags: int, mode: int = 0o666) -> int:
    """A descriptor of the file itself. Raises OSError where its name leads elsewhere."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def write_at(file: int, data: bytes | memoryview, at: int) -> None:
    """Write all of `data` to a place in a file. Raises OSError. A part may then be written."""
    rest = memoryview(data)
    while len(rest):
        written = os.pwrite(file, rest, at)
        at, rest = at + written, rest[written:]


def fill(file: int, size: int) -> None:
    """Give a file so many bytes of the disk. One that is only long takes no room."""
    if hasattr(os, "posix_fallocate"):
        if size:
            os.posix_fallocate(file, 0, size)
        return
    zeros = memoryview(bytes(2**20))
    for at in range(0, size, len(zeros)):
        write_at(file, zeros[: size - at], at)


def read_at(file: int, buffer: bytearray | memoryview, at: int) -> bool:
    """Fill a buffer from a place in a file. False if the file ends before. Raises OSError."""
    rest = memoryview(buffer)
    while len(rest):
        read = os.preadv(file, [rest], at)
        if not read:
            return False
        at, rest = at + read, rest[read:]
    return True


def write_synced(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int | None = None) -> None:
    """Write a new file and sync its contents. data: in parts if it is large. mode: exactly this one; None: as new files
    are made.

    Raises OSError. The file may then be incomplete.
    """
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(opened(path, how, 0o666 if mode is None else mode), "wb") as file:
        # The system makes files with less than that, by the umask.
        if mode is not None and stat.S_IMODE(os.fstat(file.fileno()).st_mode) != mode:
            os.fchmod(file.fileno(), mode)
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(file.fileno())


def make(path: Path, data: bytes | Iterable[bytes], mode: int | None = None) -> Literal["made", "same", "other"]:
    """Make a new file, whole or not at all. One that is there stays as it is. Returns "made"; or "same" if a file with
    these bytes has the name already, and "other" if something else has it. Raises OSError.
    """
    temporary = temporary_beside(path)
    try:
        write_synced(temporary, data, mode=mode)
        if publish(temporary, path):
            return "made"
        with suppress(OSError):
            check_plain(path)
            if cmp(temporary, path, shallow=False):
                # Whoever made it may have been killed before this.
                sync(path.parent)
                return "same"
        return "other"
    finally:
        with suppress(OSError):
            temporary.unlink()


def replace(path: Path, data: bytes | Iterable[bytes | memoryview], mode: int | None = None) -> None:
    """Make `path` a file of these bytes, or leave it as it was. data, mode: as for `write_synced`. Raises OSError."""
    temporary = temporary_beside(path)
    try:
        write_synced(temporary, data, mode=mode)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> bool:
    """Give a file its name, unless that name is taken: False if it was. Of several processes one gets the name.

    The contents must be synced. The temporary name is gone afterwards if True is returned. Raises OSError.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        # A file system without hard links: the check and the renaming are then two steps.
        if path.exists():
            return False
        os.replace(temporary, path)
    else:
        # The file has its name, even if the other one cannot be removed.
        with suppress(OSError):
            temporary.unlink()
    sync(path.parent)
    return True


def locked(folder: Path, wait: bool = False) -> int:
    """Lock a folder against other processes.

    Args:
        folder: the folder.
        wait: for a process that holds the lock.

    Returns:
        A descriptor of the folder. It holds the lock until it is closed or the process ends.

    Raises:
        BlockingIOError: another process holds the lock.
        FileNotFoundError: there is no such folder, or it was removed or renamed meanwhile.
        NotADirectoryError: its name leads elsewhere, or to a file.

    """
    descriptor = opened(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # If the folder was renamed between these two calls, we have locked the wrong one.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(folder)):
            raise FileNotFoundError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def claimed(path: Path) -> int | None:
    """Lock a file that holds values of records. It is made if it is not there, for its owner alone. Returns a
    descriptor of the file, which holds the lock; None if another process holds it.

    A link under that name, also a hard one, is removed and not followed.
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
            found = os.fstat(descriptor)
            if os.path.samestat(found, os.lstat(path)):
                if found.st_nlink == 1:
                    # A file that somebody else began may be open to others.
                    os.fchmod(descriptor, 0o600)
                    return descriptor
                path.unlink()
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
