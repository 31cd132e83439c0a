"""Files that a user names to be made: whole or not at all, and never over another file."""

from collections.abc import Collection, Iterable
from pathlib import Path

from dpfc_cli import errors
from dpfc_cli.errors import UserError, check_new_name, missing, parameter, quoted
from dpfc_cli.files import make
from dpfc_cli.folders import heads_folder, moved_by


def check(path: Path, endings: Collection[str]) -> None:
    """Refuse a name that a new file cannot have. endings: those that it may have. UserError: it ends in something else,
    or has characters that cannot be seen.
    """
    check_new(path)
    if path.suffix.lower() not in endings:
        raise UserError(f"{parameter('out')} {quoted(path)} must end in {' or '.join(endings)}.", "Change the name.")


def check_new(path: Path) -> None:
    """Refuse a new file that a listing could not show, or whose folder is mistyped. UserError: its name is not
    printable, or there is no such folder. The one for heads is made.
    """
    check_new_name(path.name)
    if not path.parent.is_dir() and path.parent != heads_folder():
        raise missing(
            f"There is no folder {quoted(path.parent)} for '{path.name}'.",
            f"Make it, or choose another place: {parameter('out')}.",
            parameter="out",
        )


def write(path: Path, data: bytes | Iterable[bytes], mode: int | None = None) -> bool:
    """Make a file. mode: None: what the umask allows. Returns whether it was made now: one that is there already, with
    the same bytes, stays. UserError: another file has that name, or it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        found = make(path, data, mode)
    except OSError as error:
        raise unwritable(path, error) from error
    if found == "other":
        raise exists(path)
    return found == "made"


def unwritable(path: Path, error: OSError) -> UserError:
    return errors.unwritable(
        f"{quoted(path)} cannot be written: {error.strerror or error}.",
        f"Choose a writable place, with room left: {moved_by(path.parent) or parameter('out')}.",
    )


def exists(path: Path) -> UserError:
    return UserError(
        f"There is another file {quoted(path)} already.",
        f"Nothing is overwritten. Choose another name, {parameter('out')}, or move it away.",
        code="exists",
    )
