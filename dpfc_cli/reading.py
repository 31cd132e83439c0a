"""Reading files of others: one error for all that the system refuses, or that is damaged."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfc_cli.errors import Code, UserError, parameter, quoted, secret
from dpfc_cli.files import LARGEST_JSON, check_plain

INNOCENT = "The file itself need not be damaged: check its permissions, the disk or the network, and the memory."


def unread(path: Path, error: Exception, kind: str = "", remedy: str = INNOCENT, wrong: Code = "damaged") -> UserError:
    """The error for a file that cannot be read: it is not there, the system refused, or its contents are wrong.

    kind: what it should be. remedy: what to do if it is not there, or wrong. wrong: the code if its contents are.
    """
    # Not every error says something. Some end their sentence, and some are of a picture in a folder.
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    place, number = getattr(error, "filename", None), getattr(error, "errno", None)
    why = why if place is None or str(place) == str(path) else f"{secret(place)}: {why}"
    code: Code = "missing" if number == errno.ENOENT else wrong
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        code, remedy = "memory", INNOCENT
    elif number not in (None, errno.ENOENT):
        code, remedy = "unreadable", INNOCENT
    what = f"{quoted(path)} cannot be read{kind and f' as {kind}'}: {why.removesuffix('.')}."
    return UserError(what, remedy, code=code)


@contextmanager
def readable(
    path: Path, kind: str, remedy: str, *others: type[Exception], plain: bool = True, wrong: Code = "damaged"
) -> Iterator[None]:
    """Turn the errors of reading a file into a UserError that names it.

    kind, remedy, wrong: see `unread`. others: what the library that reads it raises beside Python's own errors. plain:
    False: it may be a folder.
    """
    expected: tuple[type[Exception], ...] = (OSError, LookupError, ValueError, TypeError, *others)
    try:
        if plain:
            check_plain(path)
        yield
    except expected as error:
        raise unread(path, error, kind, remedy, wrong) from error


def lines_in(
    path: Path, name: str, remedy: str = "Name a text file in UTF-8, with one entry on each line."
) -> list[str]:
    """The lines of a text file. name: of the parameter. UserError if it is not UTF-8."""
    kind = f"the text file of {parameter(name)}"
    with readable(path, kind, remedy, plain=False), path.open("rb") as file:
        # Some editors put a mark ahead that "utf-8-sig" removes.
        data = file.read(LARGEST_JSON + 1)
        if len(data) > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON >> 20} MiB")
        text = data.decode("utf-8-sig")
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")
