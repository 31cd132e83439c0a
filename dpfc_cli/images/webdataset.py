"""WebDataset: tar archives in which neighbours with one name make a record, `0001.jpg` and `0001.cls`.

The class is an integer, written as text. Or it stands in the record's `.json`, as an integer or a name, under a usual
name or the one that the operator gives (img2dataset writes such files). The format has no list of classes: the operator
asserts them, or they are inferred. Other parts of a record (`.txt`) are ignored, and so is what systems leave behind.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.files import json_of
from dpfc_cli.images.dataset import DataSet, Request, has_files
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.sets import Entry, ImageSet, Split
from dpfc_cli.images.tars import Member, members, ranges, reading
from dpfc_cli.sources.classes import MOST_ASSERTED, USUAL_NAMES, labelled
from dpfc_cli.sources.groups import Rule, keys_of
from dpfc_cli.sources.noticed import column_of, level_of
from dpfc_cli.sources.split_files import files_by_split, is_clutter

PICTURES = ("jpg", "jpeg", "png", "webp")
LABEL = "cls"
SUFFIX = ".tar"
LONGEST_LABEL = 20
JSON, LARGEST_JSON = "json", 1 << 20
"""The part of a record with many facts, and the most bytes that it may have."""
Record = tuple[Path, int | str, Member, object]
"""The archive, the label and the picture of a record, and what names its person. If nobody asked, its `.json`."""


def open_webdataset(request: Request) -> ImageSet:
    """Open the archives that `request.place` names (see `files_by_split`). Raises UserError if one is missing or
    damaged, or a record in it is not one picture with one class.
    """
    pattern, group_by = str(request.place), request.group_by
    files = files_by_split(pattern, SUFFIX)
    found = {split: _records(paths, request) for split, paths in files.items()}
    labels = {split: [label for _, label, *_ in records] for split, records in found.items()}
    known = labelled(labels, request.classes)
    splits: dict[str, Split] = {}
    for role, split in known.used.items():
        paths = tuple(dict.fromkeys(path for path, *_ in found[split]))
        number = {path: i for i, path in enumerate(paths)}
        pictures = ranges([(number[path], member) for path, _, member, _ in found[split]], paths)
        persons = [person for *_, person in found[split]]
        splits[role] = encoded_split(
            known.labels[split],
            pictures,
            request.preparation,
            classes=(),
            entries=_entries(found[split]),
            name=pictures.called,
            keys=None if group_by is None else keys_of(persons, pattern, pictures.called, group_by.remedy),
        )
    records = [record for split in known.used.values() for record in found[split]]
    noticed = partial(_noticed, records, [int(y) for split in known.used.values() for y in known.labels[split]])
    return ImageSet("webdataset", known.classes, splits, known.origin, known.renumbered, noticed=noticed)


def _noticed(records: list[Record], labels: list[int]) -> str | None:
    """The rule that would bring together pictures that seem to be of one person; None if none do. labels: of each."""
    # One program wrote an archive, so its first record has the keys of all.
    first = {record[0]: record for record in reversed(records)}
    keys = dict.fromkeys(key for facts in _known(first.values()) for key in facts)
    column = column_of({key: map(itemgetter(key), _known(records, key)) for key in keys})
    if column is not None:
        return f"column:{column}"
    level = level_of([member.name for _, _, member, _ in records], labels)
    return None if level is None else f"folder:{level}"


def _known(records: Iterable[Record], key: str | None = None) -> Iterator[dict[str, object]]:
    """The facts in the .json of records that have one, and this key in it. A file that is none is passed over."""
    for path, own in groupby(records, lambda record: record[0]):
        with reading(path), path.open("rb") as file:
            for *_, member in own:
                with suppress(UserError):
                    facts = _facts(file, member, path) if isinstance(member, Member) else {}
                    if key is None or key in facts:
                        yield facts


def _records(paths: list[Path], request: Request) -> list[Record]:
    found = list[Record]()
    for done, path in enumerate(paths, 1):
        keys: set[str] = set()
        with reading(path), path.open("rb") as file:
            pictured = (member for member in members(path) if not any(map(is_clutter, member.name.split("/"))))
            for key, parts in groupby(pictured, lambda member: _key(member.name)):
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
                label = _label(record, file, path, key, request.label_column)
                found.append((path, label, picture, _person(record, file, path, picture, request.group_by)))
        if request.progress is not None:
            request.progress("Listing", done, len(paths))
    return found


def _label(
    record: list[tuple[str, Member]], file: BinaryIO, path: Path, key: str, label_column: str | None
) -> int | str:
    """The label of a record, of its extensions and members."""
    facts = [member for extension, member in record if extension == JSON]
    if label_column is None and (not facts or any(extension == LABEL for extension, _ in record)):
        label = _only([member for extension, member in record if extension == LABEL], path, key, f".{LABEL}")
        return _number(_bytes(file, label, LONGEST_LABEL + 1), path, label)
    known = _facts(file, _only(facts, path, key, f".{JSON}"), path)
    name = label_column or next((usual for usual in USUAL_NAMES if usual in known), None)
    value = known.get(name) if name is not None else None
    if (type(value) is int and 0 <= value < MOST_ASSERTED) or (type(value) is str and value):
        return value
    keys = ", ".join(f"'{each}'" for each in list(known)[:20])
    raise UserError(
        f"Record '{key}' in '{path}' has no .{LABEL}, and its .{JSON} has no label"
        f"{'' if name is None else f' (a name, or an integer from 0) under {name!r}'}. It has: {keys or 'nothing'}. "
        f"{GUARDED}",
        f"Name the key that holds the label: {parameter('label_column')}. Or put the number of the class into a "
        f".{LABEL} next to the picture.",
        code="bad-record",
        parameter="label_column",
        path=str(path),
    )


def _person(
    record: list[tuple[str, Member]], file: BinaryIO, path: Path, picture: Member, group_by: Rule | None
) -> object:
    """What names the person of a record; None if nothing does. If nobody asked, its .json."""
    facts = [member for extension, member in record if extension == JSON]
    if group_by is None:
        return facts[0] if facts else None
    if group_by.column is None:
        return group_by.of_name(picture.name, picture.name)
    return _facts(file, facts[0], path).get(group_by.column) if len(facts) == 1 else None


def _facts(file: BinaryIO, member: Member, path: Path) -> dict[str, object]:
    try:
        if member.size > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON >> 20} MiB")
        known = json_of(_bytes(file, member, LARGEST_JSON))
        if not isinstance(known, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        raise UserError(
            f"'{path}: {member.name}' cannot be read as JSON: {error}. {GUARDED}",
            "Pack the archive again.",
            code="bad-record",
            path=str(path),
        ) from error
    return known


def _bytes(file: BinaryIO, member: Member, most: int) -> bytes:
    file.seek(member.offset)
    return file.read(min(member.size, most))


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
            f"Each record is one picture ({', '.join(PICTURES)}) and one .{LABEL} or .{JSON}, next to each other.",
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


def _entries(records: list[Record]) -> Iterator[Entry]:
    for path, label, member, _ in records:
        # The class stands in the digest's place. The listing then changes with the labels.
        yield Entry(f"{path.name}/{member.name}", member.size, str(label))


WEBDATASET = DataSet(
    name="webdataset",
    open=open_webdataset,
    location="path",
    asserted=True,
    groups=("folder", "name", "column"),
    resembles=has_files(SUFFIX),
)
