"""Reading files of a source: one error for all that the system refuses, or that is damaged."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfc_cli.errors import Code, UserError
from dpfc_cli.files import check_plain


def reading_code(error: Exception) -> Code:
    """The code for an error while a file was read: the system refused to read it, or its contents are damaged."""
    return "unreadable" if getattr(error, "errno", None) else "damaged"


def unread(path: Path, kind: str, error: Exception, remedy: str) -> UserError:
    """The error for a file that cannot be read as what it should be."""
    what = f"'{path}' cannot be read as {kind}: {error}."
    return UserError(what, remedy, code=reading_code(error), path=str(path))


@contextmanager
def readable(path: Path, kind: str, remedy: str, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of reading a file into a UserError that names it.

    Args:
        path: the file.
        kind: what it should be.
        remedy: what to do.
        others: what the library that reads it raises beside Python's own errors.

    """
    expected: tuple[type[Exception], ...] = (OSError, LookupError, ValueError, TypeError, *others)
    try:
        check_plain(path)
        yield
    except expected as error:
        raise unread(path, kind, error, remedy) from error
