"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or other usual names of splits, see `split_files`)
    PATH/<class>/*.jpg                                        (training images only)

The operator asserts the classes. Each folder must be one of them, and may have folders of its own. The records are in
the sorted order of the folders, and so is the listing: it does not depend on the order of the classes. Images are
listed when the set is opened and decoded when they are asked for, so a set may be larger than memory.

The labels may also stand in a table: one that the operator names, or `metadata.csv` beside the images (see
`annotations.metadata`). The second is read if the operator names one of its columns, or if there are no folders of
classes. Folders of classes count where a table has no column of labels, and none is named.
The images are then those of the table, in the sorted order of their names.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from dpfc_cli.annotations.broken import ABSENT
from dpfc_cli.annotations.classes import USUAL_NAMES, coded, stated, text_of
from dpfc_cli.annotations.groups import Rule, key_of
from dpfc_cli.annotations.metadata import (
    FILE_NAME,
    LETTERS,
    NAMES,
    Metadata,
    Needed,
    Value,
    columns_in,
    metadata_of,
    read,
    refuse_lines,
    usual_column,
)
from dpfc_cli.annotations.person_hints import column_of, level_of, repeat
from dpfc_cli.annotations.split_files import (
    TEST_SPLITS,
    TRAIN_SPLITS,
    There,
    files_below,
    folders_in,
    inside,
    left_out,
    refuse_twice,
    rows_by_split,
    sizes_in,
    split_column,
    splits_left_out,
)
from dpfc_cli.errors import GUARDED, UserError, bad_record, conflict, counted, missing, parameter, quoted, secret
from dpfc_cli.files import NoPlainFileError
from dpfc_cli.images.kinds import check_readable, ending_of, endings, kind_of
from dpfc_cli.images.pictures import Files, unread
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, Listed, Request, Unlabelled, image_set
from dpfc_cli.places import remote
from dpfc_cli.reading import readable

EXPECTED = (
    "Images must be in PATH/<class>/, or in PATH/train/<class>/ and, for testing, PATH/test/<class>/, or in "
    f"other folders of usual names: {', '.join(TRAIN_SPLITS[1:] + TEST_SPLITS[1:])}."
)
MISSING = -1
"""The size of a file that a table names and that is not there."""
TableAt = Callable[[Path], Metadata]
"""Reads a table, once."""


@dataclass(kw_only=True)
class _Part:
    """A split.

    Attributes:
        folder: where its pictures lie.
        table: the table beside them, or the one that is named.
        rows: those of the table that are of this split; None: all.
        found: the label and the entry of every image, in the order of the records.

    """

    folder: Path
    table: Path | None
    rows: frozenset[int] | None = None
    found: list[tuple[Value, Entry]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [entry.name for _, entry in self.found]


def open_folder(request: Request) -> ImageSet:
    """Open a folder of image files. Raises UserError if it has another layout, holds a class that is not asserted, or
    cannot be read.
    """
    with readable(request.place, "a folder of images", EXPECTED, plain=False, wrong="bad-value"):
        return _opened(request)


def _opened(request: Request) -> ImageSet:
    path, rule, asserted = request.place, request.group_by, set(stated(request.classes))
    folders = _split_folders(path, asserted)
    classes = sorted({name for folder in folders.values() for name in folders_in(folder)})
    parts = {
        split: _Part(folder=folder, table=request.table or metadata_of(folder) or metadata_of(path))
        for split, folder in folders.items()
    }
    labels_at = parts["train"].table
    label = Needed(request.label_column, USUAL_NAMES, "labels", "label_column")
    needed = [label] if request.label_column is not None or not classes else []
    needed += [] if rule is None or rule.column is None else [_person(rule.column)]

    far = remote(path) is not None
    sizes = cache(partial(sizes_in, path))

    def there(name: str) -> bool:
        return name in sizes() if far else os.path.lexists(name)

    def size_of(place: Path) -> int:
        """The size of a file that a table names; `MISSING` if it is not there."""
        if far:
            return sizes().get(str(place), MISSING)
        try:
            return _size(place, place.stat())
        except FileNotFoundError:
            return MISSING

    @cache
    def table_at(place: Path) -> Metadata:
        # A table may lie anywhere. In the folder of the images it is like the one beside them.
        top = None if inside(path, str(place.absolute()), there) else path
        return read(place, top, request.file_column, endings(), needed, there)

    tabled = request.label_column is not None or (labels_at is not None and not classes)
    if labels_at is not None and (request.table or request.file_column) and not tabled:
        # A table of persons beside class folders says nothing of classes.
        tabled = usual_column(table_at(labels_at).columns, USUAL_NAMES) is not None

    # What lies beside the folders of splits is in none of them.
    remarks, skipped = tuple[str, ...](), Counter[str]()
    if folders["train"] != path:
        remarks = splits_left_out(folders_in(path), (folder.name for folder in folders.values()))
    if tabled:
        if labels_at is not None and folders["train"] == path:
            parts = _parts_by_column(path, labels_at, table_at(labels_at)) or parts
        _find_in_tables(parts, label, rule, table_at, request, there, size_of)
        found_there = sum(entry.size != MISSING for part in parts.values() for _, entry in part.found)
        unnamed = sum(map(_pictures_below, {part.folder for part in parts.values()})) - found_there
        if unnamed > 0:
            remarks += (f"Left out, because no line of the table names them: {counted(unnamed, 'picture')}.",)
    elif not classes:
        raise ValueError(f"there are no class folders in {' or '.join(map(str, folders.values()))}")
    else:
        for part in parts.values():
            _find_in_class_folders(part, classes, skipped)
        if labels_at is not None and (rule is None or rule.column is None) and not request.subgroups:
            remarks += (f"Left out: '{labels_at}', because folders name the classes.",)
        _check_order(classes, parts.values(), asserted)
    check_readable(name for part in parts.values() for name in part.names)
    listed = dict[str, Listed]()
    for split, part in parts.items():
        persons = None
        with request.faults.gathered():
            if rule is not None:
                persons = _persons(part, rule, table_at, classes_above=not tabled)
        values = dict[str, list[object]]()
        with request.faults.gathered():
            for name in request.subgroups:
                values[name] = _in_column(part, Needed(name, (), "subgroups", "subgroups"), table_at)
        listed[split] = Listed(
            labels=coded([value for value, _ in part.found]),
            pictures=Files(part.folder, part.names),
            # Folders without a picture do not belong to the listing.
            classes=() if tabled else tuple(dict.fromkeys(name.partition("/")[0] for name in part.names)),
            entries=[entry for _, entry in part.found],
            persons=persons,
            subgroups=values,
            unusable={i: ABSENT for i, (_, entry) in enumerate(part.found) if entry.size == MISSING},
        )
    also = () if tabled else classes
    found = image_set("imagefolder", listed, request, also=also, remarks=(*remarks, *left_out(skipped)))
    return replace(found, noticed=partial(_noticed, [*parts.values()], table_at, tabled=tabled))


def _split_folders(path: Path, classes: Collection[str]) -> dict[str, Path]:
    """The folder of each split. A folder called train is a class if the operator says so, or if it has no folder of its
    own and no table, and lies beside other classes.
    """
    train = [path / name for name in TRAIN_SPLITS if (path / name).is_dir() and name not in classes]
    if len(train) > 1:
        raise ValueError(f"there are '{train[0]}' and '{train[1]}': which is for training?")
    if not train:
        return {"train": path}
    beside = set(folders_in(path)) - {*TRAIN_SPLITS, *TEST_SPLITS}
    if beside and not folders_in(train[0]) and not (metadata_of(path) or metadata_of(train[0])):
        return {"train": path}
    test = next((path / name for name in TEST_SPLITS if (path / name).is_dir()), None)
    return {"train": train[0]} | ({} if test is None else {"test": test})


# Labels by folders


def _find_in_class_folders(part: _Part, classes: list[str], skipped: Counter[str]) -> None:
    """Find the images of a split, sorted by class, then by name. classes: the names of the class folders of all splits,
    sorted. skipped: counts the endings of the files that are no images.
    """
    linked = False
    for name in classes:
        place = part.folder / name
        if not place.is_dir():
            continue
        linked |= place.is_symlink()
        for below, entry in sorted(files_below(place)):
            if entry.is_dir():
                raise ValueError(f"{secret(entry.path)} is a link to a folder, which may lead in a circle")
            if (ending := ending_of(below)) not in endings():
                skipped[ending] += 1
                continue
            facts = entry.stat()
            linked |= entry.is_symlink() or facts.st_nlink > 1
            part.found.append((name, Entry(f"{name}/{below}", _size(entry.path, facts), "")))
    if not part.found:
        raise ValueError(
            f"there are no images in the class folders of '{part.folder}': files that end in "
            f"{', '.join(sorted(endings()))}"
        )
    # Without links no file has two names, and millions of files are not looked at again.
    if linked:
        refuse_twice(part.folder / name for name in part.names)


def _check_order(folders: Collection[str], parts: Iterable[_Part], classes: set[str]) -> None:
    """UserError where not the upper folders have the names of classes, but all those in them: PERSON/CLASS."""
    below = {name.split("/")[1] for part in parts for name in part.names if name.count("/") > 1}
    if below and below <= classes and not classes.issuperset(folders):
        raise conflict(
            f"The folders of {parameter('classes')} lie in other folders, as in PERSON/CLASS/picture.",
            f"Make it CLASS/PERSON/picture, or name the class of each picture in a table: {parameter('table')}.",
        )


def _size(path: str | Path, facts: os.stat_result) -> int:
    """The size of a file. OSError if it is none: opening a pipe would wait forever."""
    if not stat.S_ISREG(facts.st_mode):
        raise NoPlainFileError(f"{secret(path)} is no regular file")
    return facts.st_size


# Labels in a table


def _parts_by_column(path: Path, place: Path, table: Metadata) -> dict[str, _Part] | None:
    """The splits that a column of the table says; None if it has no such column."""
    column = split_column(table.columns)
    if column is None:
        return None
    rows = rows_by_split(table.columns[column], place)
    return {split: _Part(folder=path, table=place, rows=frozenset(own.tolist())) for split, own in rows.items()}


def _find_in_tables(
    parts: Mapping[str, _Part],
    labels: Needed,
    rule: Rule | None,
    table_at: TableAt,
    request: Request,
    there: There,
    size_of: Callable[[Path], int],
) -> None:
    """Find the images of all splits that tables name, sorted by name.

    The label stands in the digest's place of each entry, so the listing has it. The size of a file that is not there is
    `MISSING`. What is wrong with lines is added to the faults of the request.
    """
    wrong = dict[Path, dict[int, str]]()
    for part in parts.values():
        path = part.table
        if path is None:
            what = f"There is no {' or '.join(NAMES)} in {quoted(part.folder)}."
            raise missing(what, f"Name the table: {parameter('table')}.")
        table = table_at(path)
        [column] = columns_in(path, list(table.columns), labels)
        person = None if rule is None else rule.column
        if person is not None:
            columns_in(path, list(table.columns), _person(person))
        wrong.setdefault(path, {}).update(table.wrong)
        for row, (line, file) in enumerate(zip(table.lines, table.files, strict=True)):
            place = inside(part.folder, str(file), there)
            if place is None or (part.rows is not None and row not in part.rows):
                continue
            value = table.columns[column][row]
            value = value.strip() or None if isinstance(value, str) else value
            if person is not None and text_of(value) and key_of(table.columns[person][row]) is None:
                wrong[path][line] = "has no person"
                continue
            far = remote(place) is not None
            name = str(place).removeprefix(f"{part.folder}/") if far else os.path.relpath(place, part.folder)
            part.found.append((value, Entry(name, size_of(place), str(value))))
        part.found.sort(key=lambda listed: listed[1].name)
    for part in parts.values():
        if all(entry.size == MISSING for _, entry in part.found):
            raise ValueError(f"'{part.table}' names no file in '{part.folder}' that is there")
    for path, lines in wrong.items():
        with request.faults.gathered():
            refuse_lines(path, lines)
        named = ((part, entry) for part in parts.values() if part.table == path for _, entry in part.found)
        refuse_twice(part.folder / entry.name for part, entry in named if entry.size != MISSING)


def _pictures_below(folder: Path) -> int:
    """How many pictures lie in a folder and below it."""
    return sum(ending_of(name) in endings() for name, _ in files_below(folder, unreadable=lambda error: None))


# Persons


def _person(column: str) -> Needed:
    return Needed(column, (), "persons", "group_by", "column:")


def _persons(part: _Part, rule: Rule, table_at: TableAt, *, classes_above: bool) -> list[object]:
    """What names the person of each image of a split. classes_above: whether the first folder of a name is that of the
    class.
    """
    if rule.column is None:
        return [rule.of_name(name, name.partition("/")[2] if classes_above else name) for name in part.names]
    return _in_column(part, _person(rule.column), table_at)


def _in_column(part: _Part, needed: Needed, table_at: TableAt) -> list[object]:
    """The value of each image of a split in a column."""
    names, folder, place, column = part.names, part.folder, part.table, str(needed.given)
    if place is not None:
        table = table_at(place)
        refuse_lines(place, table.wrong)
        columns_in(place, list(table.columns), needed)
        known = dict(zip(table.files, table.columns[column], strict=True))
        here = remote(folder) is None
        files = [Path(os.path.normpath(folder.absolute() / name)) if here else folder / name for name in names]
        if unnamed := [name for name, file in zip(names, files, strict=True) if file not in known]:
            raise bad_record(
                f"{quoted(place)} has no line for {counted(len(unnamed), 'picture')}: {secret(*unnamed)}. The names in "
                f"it begin in {quoted(table.folder)}. {GUARDED}",
                f"Give each picture a line, with its name from that folder on. {LETTERS}",
            )
        return [known[file] for file in files]
    kinds = {kind_of(name) for name in names} - {None}
    for kind in kinds:
        assert kind is not None
        kind.check_name(column)
    if kinds:
        return [_value_of(folder / name, column) for name in names]
    raise missing(
        f"There is no {' or '.join(NAMES)} in {quoted(folder)} that could have a column '{column}'.",
        f"Put a table there with the columns '{FILE_NAME}' and '{column}', or name another one: {parameter('table')}.",
    )


def _noticed(parts: Collection[_Part], table_at: TableAt, *, tabled: bool) -> str | None:
    """The rule that would bring together pictures that seem to be of one person; None if none do.

    What a table says comes before what the files themselves say, and that before folders: a person may have several. If
    the labels are not `tabled`, the first folder of a name is that of the class.
    """
    columns: dict[str, list[Value]] = {}
    for table in dict.fromkeys(part.table for part in parts):
        # Beside class folders there may be any table of this name.
        with suppress(UserError):
            for name, values in ({} if table is None else table_at(table).columns).items():
                columns.setdefault(name, []).extend(values)
    if (column := column_of(columns)) is not None:
        return f"column:{column}"
    every = [(label, entry.name) for part in parts for label, entry in part.found]
    for person in dict.fromkeys(kind.person for _, name in every if (kind := kind_of(name))):
        if repeat(_value_of(part.folder / name, person) for part in parts for name in part.names):
            return f"column:{person}"
    if tabled:
        level = level_of([name for _, name in every], [label for label, _ in every])
    else:
        level = level_of([name.partition("/")[2] for _, name in every])
    return None if level is None else f"folder:{level}"


def _value_of(path: Path, name: str) -> object:
    """What stands in a file under a name. None if no such file has it, or the system does not let us read the file,
    which is said when it is decoded.
    """
    kind = kind_of(path.name)
    with suppress(OSError):
        return None if kind is None else kind.value_of(path, name)
    return None


# Without labels


def in_folder(folder: Path) -> Unlabelled:
    """The pictures in a folder and below it, in the order of their names. Links to folders are not followed. UserError
    if the folder cannot be read.
    """
    names, skipped, linked = list[str](), Counter[str](), 0

    def stop(error: OSError) -> None:
        raise unread(str(error.filename or folder), error)

    for name, entry in files_below(folder, stop):
        if entry.is_dir():
            linked += 1
        elif (ending := ending_of(name)) in endings():
            names.append(name)
        else:
            skipped[ending] += 1
    check_readable(names)
    links = (f"Links to folders are not followed: {counted(linked, 'link')}.",) if linked else ()
    return Unlabelled(Files(folder, sorted(names)), (*left_out(skipped), *links))


IMAGEFOLDER = DataSet(
    name="imagefolder",
    open=open_folder,
    location="path",
    groups=("folder", "name", "column"),
    tabled=True,
)
"""A folder of pictures."""
