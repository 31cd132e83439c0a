"""Files that a user names to be made: whole or not at all."""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from dpfc_cli import errors, files, points
from dpfc_cli.errors import UserError, check_new_name, missing, parameter, quoted
from dpfc_cli.folders import heads_folder, moved_by


def check(path: Path, endings: Collection[str]) -> None:
    """Refuse a name that a new file cannot have. endings: those that it may have. UserError: it ends in something else,
    or has characters that cannot be seen.
    """
    check_new(path)
    if path.suffix.lower() not in endings:
        raise UserError(f"{parameter('out')} {quoted(path)} must end in {' or '.join(endings)}.", "Change the name.")


def check_new(path: Path, named: str = "out") -> None:
    """Refuse a new file that a listing could not show, or whose folder is mistyped. UserError: its name is not
    printable, or there is no such folder. The one for heads is made.
    """
    check_new_name(path.name)
    if not path.parent.is_dir() and path.parent != heads_folder():
        raise missing(
            f"There is no folder {quoted(path.parent)} for '{path.name}'.",
            f"Make it, or choose another place: {parameter(named)}.",
            parameter=named,
        )


def writer(kind: str, path: Path, named: str = "out") -> Callable[[object], bytes]:
    """What makes the contents of such a file of a value. Call it before the work: it refuses what would fail later.

    kind: `document` or `picture`, see `points`. UserError: no package writes such a file; the one that does lacks
    something; or see `check_new`.
    """
    group = "dpfc.documents"
    check_new(path, named)
    endings = [f".{name.partition('.')[2]}" for name in points.added(group) if name.startswith(f"{kind}.")]
    if path.suffix.lower() not in endings:
        known = f"{parameter(named)} {quoted(path)} must end in {' or '.join(endings)}."
        what = known if endings else f"Nothing here writes a {kind}, so {parameter(named)} has no meaning."
        raise UserError(what, "Change the name, or install a package of dpfc that writes this ending.")
    contents = points.load(group, f"{kind}{path.suffix.lower()}")

    def made(value: object) -> bytes:
        found = contents(value)
        return found.encode() if isinstance(found, str) else bytes(found)

    return made


def write(path: Path, data: bytes | Iterable[bytes], mode: int | None = None) -> bool:
    """Make a file, never over another one. mode: None: what the umask allows. Returns whether it was made now: one that
    is there already, with the same bytes, stays. UserError: another file has that name, or it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        found = files.make(path, data, mode)
    except OSError as error:
        raise unwritable(path, error) from error
    if found == "other":
        raise exists(path)
    return found == "made"


def replace(path: Path, data: bytes, mode: int | None = None, named: str = "out") -> None:
    """Make a file, or put it in the place of an older one of that name. mode: as in `files`. UserError: it cannot be
    written. Then an older file is as it was.
    """
    try:
        files.replace(path, data, mode)
    except OSError as error:
        raise unwritable(path, error, named) from error


def unwritable(path: Path, error: OSError, named: str = "out") -> UserError:
    return errors.unwritable(
        f"{quoted(path)} cannot be written: {error.strerror or error}.",
        f"Choose a writable place, with room left: {moved_by(path.parent) or parameter(named)}.",
    )


def exists(path: Path) -> UserError:
    return UserError(
        f"There is another file {quoted(path)} already.",
        f"Nothing is overwritten. Choose another name, {parameter('out')}, or move it away.",
        code="exists",
    )
