"""WebDataset: tar archives in which neighbours with one name make a record, `0001.jpg` and `0001.cls`.

The label is a text. Or it stands in the record's `.json`, under a usual name or the one that the operator gives
(img2dataset writes such files). The format has no list of classes: the operator asserts them. Other parts of a record
(`.txt`, `.seg.png`) are left out, and counted. What systems leave behind is not.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from dpfc_cli.annotations.classes import USUAL_NAMES, coded, text_of, usual_label
from dpfc_cli.annotations.groups import Rule, names_persons
from dpfc_cli.annotations.person_hints import column_of, level_of
from dpfc_cli.annotations.split_files import files_by_split, files_in, left_out
from dpfc_cli.errors import GUARDED, UserError, bad_record, parameter, quoted, secret
from dpfc_cli.extensions.archives.tars import Member, members, ranges, reading
from dpfc_cli.files import json_of
from dpfc_cli.images.kinds import check_readable, ending_of, endings
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, Unlabelled, image_set
from dpfc_cli.places import is_dir

PICTURES = ("jpg", "jpeg", "png", "webp")
LABEL = "cls"
SUFFIX = ".tar"
LONGEST_LABEL = 1 << 10
JSON, LARGEST_JSON = "json", 1 << 20
"""The part of a record with many facts, and the most bytes that it may have."""
PARTS = (*PICTURES, LABEL, JSON)


class Record(NamedTuple):
    """A picture with its label. person: what names its person, if the user says where that stands. seeming: what stands
    in its `.json` under names of persons, if not.
    """

    path: Path
    label: object
    picture: Member
    person: object
    seeming: Mapping[str, object]


def open_webdataset(request: Request) -> ImageSet:
    """Open the archives that `request.place` names (see `files_by_split`). Raises UserError if one is missing or
    damaged, or a record in it is not one picture with one class.
    """
    places, skipped = files_by_split(str(request.place), SUFFIX), Counter[str]()
    found = {split: _records(paths, request, skipped) for split, paths in places.items()}
    remarks = left_out(skipped, "they are neither the picture of a record nor its label")
    listed = {split: _listed(records, request.group_by) for split, records in found.items()}
    return replace(image_set("webdataset", listed, request, remarks=remarks), noticed=partial(_noticed, found))


def _listed(records: list[Record], group_by: Rule | None) -> Listed:
    number = {path: i for i, path in enumerate(dict.fromkeys(record.path for record in records))}
    places = tuple((path, f"{path.name}/") for path in number)
    return Listed(
        labels=coded([record.label for record in records]),
        pictures=ranges([(number[record.path], record.picture) for record in records], places),
        # The class stands in the digest's place. The listing then changes with the labels.
        entries=(Entry(f"{path.name}/{member.name}", member.size, str(y)) for path, y, member, *_ in records),
        persons=None if group_by is None else [record.person for record in records],
    )


def _noticed(found: dict[str, list[Record]]) -> str | None:
    """The rule that would bring together pictures that seem to be of one person; None if none do."""
    records = [record for own in found.values() for record in own]
    keys = dict.fromkeys(key for record in records for key in record.seeming)
    column = column_of({key: [record.seeming.get(key) for record in records] for key in keys})
    if column is not None:
        return f"column:{column}"
    level = level_of([record.picture.name for record in records], [record.label for record in records])
    return None if level is None else f"folder:{level}"


def _records(paths: list[Path], request: Request, skipped: Counter[str]) -> list[Record]:
    """The records of some archives. skipped: counts the endings of parts that are left out."""
    found = list[Record]()
    for done, path in enumerate(paths, 1):
        keys: set[str] = set()
        with reading(path), path.open("rb") as file:
            for key, parts in groupby(members(path, file), lambda member: _key(member.name)):
                if key in keys:
                    raise _refused(
                        f"Record {secret(key)} is in {quoted(path)} twice. It would count as two records.",
                        "Pack the archive again. A member that 'tar' appends or updates does not replace the old one.",
                    )
                keys.add(key)
                named = [(PurePosixPath(each.name).name.partition(".")[2].lower(), each) for each in parts]
                found.append(_record(named, file, path, key, request))
                skipped.update(ending_of(each.name) for extension, each in named if extension not in PARTS)
        if request.progress is not None:
            request.progress("Listing", done, len(paths))
    return found


def _record(parts: list[tuple[str, Member]], file: BinaryIO, path: Path, key: str, request: Request) -> Record:
    def only(what: str, *extensions: str) -> Member:
        found = [member for extension, member in parts if extension in extensions]
        if len(found) != 1:
            raise _refused(
                f"Record {secret(key)} in {quoted(path)} has {'no' if not found else 'more than one'} {what}.",
                f"Each record is one picture ({', '.join(PICTURES)}) and one .{LABEL} or .{JSON}, next to each other.",
            )
        return found[0]

    picture, rule, column, there = only("picture", *PICTURES), request.group_by, request.label_column, dict(parts)
    labelled = column in (None, LABEL) and (LABEL in there or JSON not in there)
    known = dict[str, object]()
    # What is no JSON does no harm where nothing in it is needed.
    with suppress(UserError) if labelled and (rule is None or rule.column is None) else nullcontext():
        known = _facts(file, only(f".{JSON}", JSON), path) if JSON in there or not labelled else {}
    label: object
    if labelled:
        label = _text(file, only(f".{LABEL}", LABEL), path)
        others = {text_of(value) for name, value in known.items() if name.casefold() in USUAL_NAMES}
        if column is None and others - {"", text_of(label)}:
            raise _refused(
                f"Record {secret(key)} in {quoted(path)} has another label in its .{JSON} than in its .{LABEL}.",
                f"Say which one counts: {parameter('label_column')} {LABEL}, or the key in the .{JSON}.",
            )
    else:
        label = _label(known, path, key, column)
    if rule is None:
        return Record(path, label, picture, None, {name: known[name] for name in known if names_persons(name)})
    person = rule.of_name(picture.name, picture.name) if rule.column is None else known.get(rule.column)
    return Record(path, label, picture, person, {})


def _label(known: dict[str, object], path: Path, key: str, label_column: str | None) -> object:
    name = label_column or usual_label(known, path)
    value = known.get(name) if name is not None else None
    if isinstance(value, str | float | int) and value != "":
        return value
    keys = ", ".join(f"'{each}'" for each in list(known)[:20])
    raise _refused(
        f"Record {secret(key)} in {quoted(path)} has no .{LABEL}, and its .{JSON} has no label"
        f"{'' if name is None else f' (a text or a number) under {name!r}'}. It has: {keys or 'nothing'}.",
        f"Name the key that holds the label: {parameter('label_column')}. Or put the label into a .{LABEL} next to the "
        "picture.",
    )


def _text(file: BinaryIO, member: Member, path: Path) -> str:
    with suppress(UnicodeDecodeError):
        text = _bytes(file, member, LONGEST_LABEL + 1).decode().strip()
        if text and member.size <= LONGEST_LABEL:
            return text
    raise _refused(f"{secret(member.name)} in {quoted(path)} does not hold a label.", "A label is a text in UTF-8.")


def _facts(file: BinaryIO, member: Member, path: Path) -> dict[str, object]:
    try:
        if member.size > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON >> 20} MiB")
        known = json_of(_bytes(file, member, LARGEST_JSON))
        if not isinstance(known, dict):
            raise ValueError("it is no JSON object")
    except ValueError as error:
        what = f"{secret(member.name)} in {quoted(path)} cannot be read as JSON: {error}."
        raise _refused(what, "Pack the archive again.") from error
    return known


def _refused(what: str, remedy: str) -> UserError:
    return bad_record(f"{what} {GUARDED}", remedy)


def _bytes(file: BinaryIO, member: Member, most: int) -> bytes:
    file.seek(member.offset)
    return file.read(min(member.size, most))


def _key(name: str) -> str:
    """What the members of a record have in common: the name up to the first dot of its last part."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.partition(".")[0] or path.name))


def unlabelled(pattern: str) -> Unlabelled:
    """All pictures in tar archives: members with names that end as those of pictures. pattern: see `files_in`.
    UserError if an archive is missing or damaged.
    """
    paths, skipped = sorted(files_in(pattern, SUFFIX)), Counter[str]()
    found: list[tuple[int, Member]] = []
    for which, path in enumerate(paths):
        with reading(path), path.open("rb") as file:
            for member in members(path, file):
                if (ending := ending_of(member.name)) in endings():
                    found.append((which, member))
                else:
                    skipped[ending] += 1
    check_readable(member.name for _, member in found)
    places = tuple((path, f"{path.name}/" if len(paths) > 1 else "") for path in paths)
    return Unlabelled(ranges(found, places), left_out(skipped))


WEBDATASET = DataSet(
    name="webdataset",
    open=open_webdataset,
    location="path",
    groups=("folder", "name", "column"),
    holds=lambda path: path.suffix.lower() == SUFFIX and not is_dir(path),
    unlabelled=unlabelled,
)
"""Tar archives of records."""
