"""Pictures without labels: in a folder at any depth, in files that a list names, or in large files of a format.

What comes from the system (no memory, a disk that fails) stops the run.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dpfc_cli.errors import UserError, counted, missing, parameter, quoted
from dpfc_cli.images.kinds import check_readable, ending_of, endings
from dpfc_cli.images.sets import Encoded, Unlabelled, unread
from dpfc_cli.images.splits import Files
from dpfc_cli.sources.split_files import files_below, left_out


def in_folder(folder: Path) -> Unlabelled:
    """The pictures in a folder and below it, in the order of their names. Links to folders are not followed. UserError
    if the folder cannot be read, or has no pictures.
    """
    names, skipped, linked = list[str](), Counter[str](), 0

    def stop(error: OSError) -> None:
        raise unread(str(error.filename or folder), error)

    for name, entry in files_below(folder, stop):
        if os.path.isdir(entry.path):
            linked += 1
        elif (ending := ending_of(name)) in endings():
            names.append(name)
        else:
            skipped[ending] += 1
    if not names:
        raise _empty(str(folder))
    links = (f"Links to folders are not followed: {counted(linked, 'link')}.",) if linked else ()
    return _of_files(folder, sorted(names), (*left_out(skipped), *links))


def in_list(names: Sequence[str]) -> Unlabelled:
    """The pictures in these files, in this order. A path that is not absolute begins in the working folder."""
    return _of_files(Path(), list(names), ())


def _of_files(folder: Path, names: list[str], remarks: tuple[str, ...]) -> Unlabelled:
    check_readable(names)
    return Unlabelled(pictures=Files(folder, names), name=names.__getitem__, remarks=remarks)


def of_archives(
    pictures: Encoded, name: Callable[[int], str], source: str, remarks: tuple[str, ...] = ()
) -> Unlabelled:
    """The pictures in large files. name: as in `Unlabelled`. source: what the user calls them. UserError if there are
    no pictures.
    """
    if not len(pictures):
        raise _empty(source)
    return Unlabelled(pictures=pictures, name=name, remarks=remarks)


def _empty(source: str) -> UserError:
    return missing(
        f"{quoted(source)} has no pictures: files that end in {', '.join(sorted(endings()))}.",
        f"Name another {parameter('source')}.",
    )
