"""The classes of a source: who states them, and what they are if nobody does.

The list of classes is a public fact. The data set defines it, or the operator asserts it. If neither does, it is
inferred from the labels. Inferred classes depend on the records, so every card says that they were inferred.
"""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dpfc_cli.errors import GUARDED, UserError, counted, parameter

Origin = Literal["data set", "asserted", "inferred"]
"""Who states the classes: the data set's own definition, the operator, or nobody (then the labels imply them)."""

MOST_INFERRED = 100_000
"""The most classes that are inferred. Otherwise one damaged label could make dpfc allocate any amount of memory."""
MOST_ASSERTED = 9_999_999
"""The most classes. It keeps a mistyped number from taking all memory."""
LARGEST_NAMES = 100 << 20
"""Bytes of a file of names. A head could not hold more."""
SHOWN = 3
"""Names of inferred classes that a message has."""
_NAMES = "Give a number, two or more names, or a file with a name on each line."


def inferred_classes(largest_label: int) -> tuple[str, ...]:
    """The classes that the labels imply when nobody states them: '0', '1' and so on, up to the largest label.

    Args:
        largest_label: the largest label of all splits. There is at least one label, so it is 0 or more.

    Returns:
        The names of the classes, in the order in which labels count them.

    Raises:
        UserError: there would be more than `MOST_INFERRED` classes (code "bad-record").

    """
    count = largest_label + 1
    if count > MOST_INFERRED:
        raise UserError(
            f"The labels seem to name {count:,} classes. {GUARDED}",
            f"Say how many classes there are: {parameter('classes')}.",
            code="bad-record",
            parameter="classes",
        )
    return tuple(str(label) for label in range(count))


def numbers_of_names(found: Sequence[str], classes: tuple[str, ...] | None) -> dict[str, int]:
    """The numbers of the classes by name, where labels are names.

    Args:
        found: the names that occur as labels, sorted.
        classes: the classes that the operator asserts, in their order. None: the names that occur.

    Raises:
        UserError: a name is not among the classes (code "conflict"), or there would be more than `MOST_INFERRED` (code
            "bad-record").

    """
    if classes is None and len(found) > MOST_INFERRED:
        raise UserError(
            f"The labels seem to name {len(found):,} classes. {GUARDED}",
            f"Say which classes there are: {parameter('classes')}.",
            code="bad-record",
            parameter="classes",
        )
    number = {name: i for i, name in enumerate(classes or found)}
    unknown = next((name for name in found if name not in number), None)
    if unknown is not None:
        raise UserError(
            f"The label '{unknown}' is not among the {counted(len(number), 'class')} of {parameter('classes')}. "
            f"{GUARDED}",
            "The labels are names. Give the names of all classes. There may be more classes than labels.",
            code="conflict",
            parameter="classes",
        )
    return number


def check_classes(classes: tuple[str, ...], inferred: bool) -> None:
    """Refuse fewer than two classes, because a classifier could not tell anything apart, and names that are no text.

    The names of folders and of arguments are bytes to the system. Those that are not UTF-8 reach Python as surrogates,
    which no manifest and no head can hold.

    Args:
        classes: the names of the classes, at least one.
        inferred: the classes were inferred from the records, so the message says something about the records.

    Raises:
        UserError: there is one class only, or a name is not UTF-8 (code "bad-value").

    """
    foreign = next((name for name in classes if not _is_text(name)), None)
    if foreign is not None:
        raise UserError(
            f"The name of the class {foreign!a} is not UTF-8.{f' {GUARDED}' if inferred else ''}",
            "Rename it. If it is a folder, rename the folder (convmv converts whole trees of names).",
            code="bad-value",
            parameter="classes",
        )
    if len(classes) < 2:
        raise UserError(
            f"There is one class only, '{classes[0]}': nothing to tell apart.{f' {GUARDED}' if inferred else ''}",
            f"If there are classes without records, name all classes: {parameter('classes')}."
            if inferred
            else "Add another class.",
            code="bad-value",
            parameter="classes",
        )


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
    if isinstance(given, int | np.integer):
        if given > MOST_ASSERTED:
            raise _refused(f"{given} classes are more than dpfc takes.")
        names = tuple(map(str, range(given)))
    elif isinstance(given, str | Path):
        names = _read(Path(given))
    else:
        try:
            names = tuple(given)
        except TypeError:
            names = ()
    if len(names) < 2 or len(set(names)) < len(names) or not all(isinstance(name, str) and name for name in names):
        raise _refused(f"{parameter('classes')} must give two or more different names.")
    return names


def first_names(classes: Sequence[str]) -> str:
    """The first names of a list of classes, and how many there are beside them: "'cold', 'flu' and 298 more"."""
    names, more = [f"'{name}'" for name in classes[:SHOWN]], len(classes) - SHOWN
    return f"{', '.join(names)} and {more:,} more" if more > 0 else " and ".join((", ".join(names[:-1]), names[-1]))


def plain(name: str) -> str:
    """A name without what does not count when names are compared: capitals, spaces, `_` and `-`."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split())


def by_name(classes: Iterable[str], named: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """For each class the things that have its name.

    Args:
        classes: the names of the classes.
        named: names, each with the number of the thing that has it.

    Returns:
        For each class the numbers of the things that have exactly its name, in order. If there are none: of those that
        have it but for what `plain` removes.

    """
    exact: dict[str, list[int]] = {}
    loose: dict[str, list[int]] = {}
    for name, number in named:
        exact.setdefault(name, []).append(number)
        loose.setdefault(plain(name), []).append(number)
    return {name: sorted(set(exact.get(name) or loose.get(plain(name), []))) for name in classes}


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_NAMES + 1)
        if len(data) > LARGEST_NAMES:
            raise _refused(f"'{path}' has more than {LARGEST_NAMES >> 20} MiB of names.")
        lines = data.decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise UserError(
            f"There is no file '{path}', and one name is no list of classes.",
            _NAMES,
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
    return UserError(what, _NAMES, code="bad-value", parameter="classes")
