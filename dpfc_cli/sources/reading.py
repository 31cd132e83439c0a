"""Reading files of a source: one error for all that the system refuses, or that is damaged."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfc_cli.errors import Code, UserError, quoted, secret
from dpfc_cli.files import check_plain

INNOCENT = "The file itself need not be damaged: check its permissions, the disk and the memory."


def reading_code(error: Exception) -> Code:
    """The code for an error while a file was read: it is not there, the system refused, or its contents are damaged."""
    number = getattr(error, "errno", None)
    if number == errno.ENOENT:
        return "missing"
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory"
    return "unreadable" if number else "damaged"


def remedy_for(error: Exception, damaged: str) -> str:
    """What to do about it. damaged: what to do if the contents are."""
    code = reading_code(error)
    if code == "missing":
        return "Check its name. Does a link lead nowhere?"
    return damaged if code == "damaged" else INNOCENT


def unread(path: Path, kind: str, error: Exception, remedy: str, wrong: Code = "damaged") -> UserError:
    """The error for a file that cannot be read as what it should be. wrong: its code if the contents are."""
    # Not every error says something. Some end their sentence, and some are of a picture in a folder.
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    place = getattr(error, "filename", None)
    why = why if place is None or str(place) == str(path) else f"{secret(place)}: {why}"
    what = f"{quoted(path)} cannot be read as {kind}: {why.removesuffix('.')}."
    code = reading_code(error)
    return UserError(what, remedy_for(error, remedy), code=wrong if code == "damaged" else code)


@contextmanager
def readable(
    path: Path, kind: str, remedy: str, *others: type[Exception], plain: bool = True, wrong: Code = "damaged"
) -> Iterator[None]:
    """Turn the errors of reading a file into a UserError that names it.

    Args:
        path: the file.
        kind: what it should be.
        remedy: what to do if it is damaged.
        others: what the library that reads it raises beside Python's own errors.
        plain: False: it may be a folder.
        wrong: the code if its contents are wrong.

    """
    expected: tuple[type[Exception], ...] = (OSError, LookupError, ValueError, TypeError, *others)
    try:
        if plain:
            check_plain(path)
        yield
    except expected as error:
        raise unread(path, kind, error, remedy, wrong) from error
