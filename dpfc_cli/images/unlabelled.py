"""Pictures without labels: what a head is applied to.

They lie in a folder at any depth, in files that a list names, in tar archives, in parquet, or in Arrow. Unlike in a
data set to train on, each picture stands alone here: one that is missing, damaged or of another size is broken, and the
others are decoded. What comes from the system (no memory, a disk that fails) stops the run.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfc_cli.errors import UserError, counted, missing, parameter, quoted
from dpfc_cli.images import dicom
from dpfc_cli.images.folder import EXTENSIONS, ending_of, is_dicom, left_out
from dpfc_cli.images.hugging_face import files_of
from dpfc_cli.images.sets import unread
from dpfc_cli.images.splits import Encoded, Files
from dpfc_cli.images.tars import Member, members, ranges
from dpfc_cli.sources.split_files import files_in, is_clutter

TAR, PARQUET = ".tar", ".parquet"


@dataclass(frozen=True, kw_only=True)
class Unlabelled:
    """Pictures without labels, in a fixed order."""

    pictures: Encoded
    name: Callable[[int], str]  # name(i) is what the source calls picture i
    remarks: tuple[str, ...] = ()  # what the user should know of how the source was read, in sentences

    @property
    def n(self) -> int:
        return len(self.pictures)


def in_folder(folder: Path) -> Unlabelled:
    """The pictures in a folder and below it, in the order of their names. Links to folders are not followed. UserError
    if the folder cannot be read, or has no pictures.
    """
    names: list[str] = []
    skipped, linked = Counter[str](), 0

    def stop(error: OSError) -> None:
        raise unread(str(error.filename or folder), error)

    for place, folders, files in os.walk(folder, onerror=stop):
        within = os.path.relpath(place, folder)
        folders[:] = [name for name in folders if not is_clutter(name)]
        linked += sum(os.path.islink(os.path.join(place, name)) for name in folders)
        for name in files:
            if is_clutter(name):
                continue
            if ending_of(name) in EXTENSIONS:
                names.append(name if within == "." else f"{within}/{name}")
            else:
                skipped[ending_of(name)] += 1
    if not names:
        raise _empty(str(folder))
    links = (f"Links to folders are not followed: {counted(linked, 'link')}.",) if linked else ()
    return _of_files(folder, sorted(names), (*left_out(skipped), *links))


def in_list(names: Sequence[str]) -> Unlabelled:
    """The pictures in these files, in this order. A path that is not absolute begins in the working folder."""
    return _of_files(Path(), list(names), ())


def in_archives(pattern: str) -> Unlabelled:
    """The pictures in tar archives: members with names that end as those of pictures. pattern: see `files_in`.
    UserError if an archive is missing or damaged, or there are no pictures.
    """
    paths, skipped = _found(pattern, TAR), Counter[str]()
    found: list[tuple[int, Member]] = []
    for which, path in enumerate(paths):
        for member in members(path):
            if (ending := ending_of(member.name)) in EXTENSIONS:
                found.append((which, member))
            else:
                skipped[ending] += 1
    if any(is_dicom(member.name) for _, member in found):
        dicom.check_installed()
    pictures = ranges(found, tuple((path, f"{path.name}/" if len(paths) > 1 else "") for path in paths))
    return _of_archives(pictures, pictures.name, pattern, left_out(skipped))


def in_tables(source: str, *, saved: bool) -> Unlabelled:
    """The pictures in parquet files, called FILE/ROW, with source and errors as of `in_archives`; or, if `saved`, those
    in a folder that `save_to_disk` of Hugging Face datasets wrote, split by split: SPLIT/FILE/ROW.
    """
    from dpfc_cli.images.tables import pictures_in

    paths = [path for own in files_of(Path(source)).values() for path in own] if saved else _found(source, PARQUET)
    pictures = pictures_in("arrow" if saved else "parquet", paths, source)

    def name(i: int) -> str:
        path, row = pictures.place(i)
        return f"{path.relative_to(source) if saved else path.name}/{row}"

    return _of_archives(pictures, name, source)


def _of_archives(
    pictures: Encoded, name: Callable[[int], str], source: str, remarks: tuple[str, ...] = ()
) -> Unlabelled:
    if not len(pictures):
        raise _empty(source)
    return Unlabelled(pictures=pictures, name=name, remarks=remarks)


def _empty(source: str) -> UserError:
    return missing(
        f"{quoted(source)} has no pictures: files that end in {', '.join(sorted(EXTENSIONS))}.",
        f"Name another {parameter('source')}.",
    )


def _of_files(folder: Path, names: list[str], remarks: tuple[str, ...]) -> Unlabelled:
    if any(map(is_dicom, names)):
        dicom.check_installed()
    return Unlabelled(pictures=Files(folder, names), name=names.__getitem__, remarks=remarks)


def _found(pattern: str, suffix: str) -> list[Path]:
    return sorted(files_in(pattern, suffix))
