"""The classes as a user asserts them: their number, their names, or a file of names."""

from collections.abc import Sequence
from pathlib import Path

from dpfc_cli.errors import UserError, parameter

MOST = 9_999_999
"""The most classes. It keeps a mistyped number from taking all memory."""
_REMEDY = "Give a number, two or more names, or a file with a name on each line."


def class_names(given: int | Sequence[str] | Path | None) -> tuple[str, ...] | None:
    """The names of the classes.

    Args:
        given: how many classes there are (they are then called "0", "1" and so on), their names, or the path of a UTF-8
            file with a name on each line. None: nothing is asserted.

    Returns:
        Two or more different names; None for None.

    Raises:
        UserError: the names are fewer than two, not different or empty, or the file cannot be read.

    """
    if given is None:
        return None
    if isinstance(given, int):
        if given > MOST:
            raise _refused(f"{given} classes are more than dpfc takes.")
        names = tuple(map(str, range(given)))
    elif isinstance(given, str | Path):
        names = _read(Path(given))
    else:
        names = tuple(given)
    if len(names) < 2 or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise _refused(f"{parameter('classes')} must give two or more different names.")
    return names


def _read(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise UserError(
            f"There is no file '{path}', and one name is no list of classes.",
            _REMEDY,
            code="missing",
            parameter="classes",
            path=str(path),
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"'{path}' cannot be read as a list of names.",
            "Give UTF-8 text with a name on each line.",
            code="unreadable",
            parameter="classes",
            path=str(path),
        ) from error
    return tuple(line.strip() for line in lines if line.strip())


def _refused(what: str) -> UserError:
    return UserError(what, _REMEDY, code="bad-value", parameter="classes")
