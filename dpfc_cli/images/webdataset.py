"""WebDataset: tar archives in which neighbours with one name make a record, `0001.jpg` and `0001.cls`.

The class is an integer, written as text. The format has no list of classes: the operator asserts them, or they are
inferred from the largest integer. Other parts of a record (`.json`, `.txt`) are ignored.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath

import numpy as np

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images.dataset import DataSet, has_files
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import Entry, ImageSet, Progress, Split, labelled
from dpfc_cli.images.tars import Member, members, ranges, readable
from dpfc_cli.sources.split_files import files_by_split

PICTURES = ("jpg", "jpeg", "png", "webp")
LABEL = "cls"
SUFFIX = ".tar"
LONGEST_LABEL = 20


def open_webdataset(
    pattern: str, preparation: Preparation, classes: tuple[str, ...] | None, progress: Progress | None
) -> ImageSet:
    """Open the archives that `pattern` names (see `files_by_split`). classes: those that the operator asserts.

    Raises:
        UserError: an archive is missing or damaged, or a record in it is not one picture with one class.

    """
    found = {split: _records(paths, progress) for split, paths in files_by_split(pattern, SUFFIX).items()}
    labels = {split: np.array([label for _, label, _ in records], np.int64) for split, records in found.items()}
    names, origin, used = labelled(labels, classes)
    splits: dict[str, Split] = {}
    for role, split in used.items():
        paths = tuple(dict.fromkeys(path for path, _, _ in found[split]))
        number = {path: i for i, path in enumerate(paths)}
        pictures = ranges([(number[path], member) for path, _, member in found[split]], paths)
        splits[role] = encoded_split(
            labels[split], pictures, preparation, classes=(), entries=_entries(found[split]), name=pictures.called
        )
    return ImageSet("webdataset", names, splits, origin)


def _records(paths: list[Path], progress: Progress | None) -> list[tuple[Path, int, Member]]:
    """(archive, label, picture) of every record."""
    found = []
    for done, path in enumerate(paths, 1):
        keys: set[str] = set()
        with readable(path), path.open("rb") as file:
            for key, parts in groupby(members(path), lambda member: _key(member.name)):
                if key in keys:
                    raise UserError(
                        f"Record '{key}' is in '{path}' twice. It would count as two records. {GUARDED}",
                        "Pack the archive again. A member that 'tar' appends or updates does not replace the old one.",
                        code="bad-record",
                        path=str(path),
                    )
                keys.add(key)
                record = [(_extension(member.name), member) for member in parts]
                picture = _only([m for e, m in record if e in PICTURES], path, key, "picture")
                label = _only([m for e, m in record if e == LABEL], path, key, f".{LABEL}")
                file.seek(label.offset)
                found.append((path, _number(file.read(min(label.size, LONGEST_LABEL + 1)), path, label), picture))
        if progress is not None:
            progress("Listing", done, len(paths))
    return found


def _key(name: str) -> str:
    """What the members of a record have in common: the name up to the first dot of its last part."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def _extension(name: str) -> str:
    return PurePosixPath(name).name.partition(".")[2].lower()


def _only(found: list[Member], path: Path, key: str, what: str) -> Member:
    if len(found) != 1:
        raise UserError(
            f"Record '{key}' in '{path}' has {'no' if not found else 'more than one'} {what}. {GUARDED}",
            f"Each record is one picture ({', '.join(PICTURES)}) and one .{LABEL}, next to each other.",
            code="bad-record",
            path=str(path),
        )
    return found[0]


def _number(text: bytes, path: Path, member: Member) -> int:
    digits = text.strip()
    if not digits.isdigit() or len(digits) > 9:
        raise UserError(
            f"'{path}: {member.name}' does not hold a class number. {GUARDED}",
            "A class is an integer from 0, written as text.",
            code="bad-record",
            path=str(path),
        )
    return int(digits)


def _entries(records: list[tuple[Path, int, Member]]) -> Iterator[Entry]:
    for path, label, member in records:
        # The class stands in the digest's place. The listing then changes with the labels.
        yield Entry(f"{path.name}/{member.name}", member.size, str(label))


WEBDATASET = DataSet(
    name="webdataset",
    open=lambda request: open_webdataset(str(request.place), request.preparation, request.classes, request.progress),
    location="path",
    asserted=True,
    resembles=has_files(SUFFIX),
)
