"""Folders of image files, a sub-folder for each class.

    PATH/train/<class>/*.jpg and PATH/test/<class>/*.jpg      (or other usual names of splits, see `split_files`)
    PATH/<class>/*.jpg                                        (training images only)

The operator asserts the classes. Each folder must be one of them, and may have folders of its own. The records are in
the sorted order of the folders, and so is the listing: it does not depend on the order of the classes. Images are
listed when the set is opened and decoded when they are asked for, so a set may be larger than memory.

The labels may also stand in a table: one that the operator names, or `metadata.csv` beside the images (see
`sources.metadata`). The second is read if the operator names one of its columns, or if there are no folders of classes.
Folders of classes count where a table has no column of labels, and none is named.
The images are then those of the table, in the sorted order of their names.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from dpfc_cli.errors import (
    GUARDED,
    Faults,
    UserError,
    bad_record,
    conflict,
    counted,
    files_by_ending,
    missing,
    parameter,
    quoted,
    secret,
)
from dpfc_cli.files import NoPlainFileError
from dpfc_cli.images import dicom
from dpfc_cli.images.sets import DataSet, Entry, ImageSet, LabelTable, Request
from dpfc_cli.images.splits import Files, Listed, image_set
from dpfc_cli.reading import readable
from dpfc_cli.sources import split_files
from dpfc_cli.sources.classes import USUAL_NAMES, coded, stated, text_of
from dpfc_cli.sources.groups import USUAL_NAMES as PERSONS
from dpfc_cli.sources.groups import Rule, key_of
from dpfc_cli.sources.metadata import (
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
from dpfc_cli.sources.person_hints import column_of, level_of, repeat
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS, inside, is_clutter, refuse_twice

EXTENSIONS = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp", *dicom.SUFFIXES)
)
EXPECTED = (
    "Images must be in PATH/<class>/, or in PATH/train/<class>/ and, for testing, PATH/test/<class>/, or in "
    f"other folders of usual names: {', '.join(TRAIN_SPLITS[1:] + TEST_SPLITS[1:])}."
)
MISSING = -1
"""The size of a file that a table names and that is not there."""
PATIENT = "PatientID"
"""The element of DICOM that names persons."""
Labelled = list[tuple[Value, Entry]]
"""The label and the entry of every image of a split, in the order of the records."""
TableAt = Callable[[Path], Metadata]
"""Reads a table, once."""


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
    named = request.table
    tables = {split: named or metadata_of(folder) or metadata_of(path) for split, folder in folders.items()}
    labels_at, skipped = tables["train"], Counter[str]()
    label = Needed(request.label_column, USUAL_NAMES, "labels", "label_column")

    @cache
    def table_at(place: Path) -> Metadata:
        # A table may lie anywhere. In the folder of the images it is like the one beside them.
        top = None if inside(path, os.path.abspath(place)) else path
        other = rule is not None and place == rule.table and labels_at not in (None, place)
        also = [label] if place in tables.values() and (request.label_column is not None or not classes) else []
        if rule is not None and rule.by in ("column", "table") and place in (rule.table, *tables.values()):
            also += [_person(rule)] if rule.table in (None, place) else []
        return read(place, top, None if other else request.file_column, EXTENSIONS, also)

    tabled = request.label_column is not None or (labels_at is not None and not classes)
    if labels_at is not None and (named or request.file_column) and not tabled:
        # A table of persons beside class folders says nothing of classes.
        tabled = usual_column(table_at(labels_at).columns, USUAL_NAMES) is not None

    # What lies beside the folders of splits is in none of them.
    table, remarks = None, tuple[str, ...]()
    if folders["train"] != path:
        remarks = split_files.splits_left_out(folders_in(path), (folder.name for folder in folders.values()))
    if tabled:
        classes = []
        tabs = {split: _in_table(tables[split], folder, label, rule, table_at) for split, folder in folders.items()}
        found = {split: tab.found for split, tab in tabs.items()}
        table = _checked_table(tabs, folders, request.faults)
        known = table_at(tabs["train"].path)
        column = split_files.split_column(known.columns) if folders["train"] == path else None
        if column is not None:
            rows = split_files.rows_by_split(known.columns[column], tabs["train"].path)
            of = {known.lines[i]: split for split, own in rows.items() for i in own.tolist()}
            of_name = {name: of[line] for name, line in tabs["train"].lines.items()}
            found = {split: [each for each in found["train"] if of_name[each[1].name] == split] for split in rows}
            folders, tables = dict.fromkeys(rows, path), dict.fromkeys(rows, labels_at)
    elif not classes:
        raise ValueError(f"there are no class folders in {' or '.join(map(str, folders.values()))}")
    else:
        found = {split: _in_class_folders(folder, classes, skipped) for split, folder in folders.items()}
        if labels_at is not None and (rule is None or rule.by not in ("column", "table")):
            remarks += (f"Left out: '{labels_at}', because folders name the classes.",)
        _check_order(classes, found, asserted)
    if any(is_dicom(entry.name) for own in found.values() for _, entry in own):
        dicom.check_installed()
    remarks += left_out(skipped)
    there = sum(entry.size != MISSING for own in found.values() for _, entry in own)
    unnamed = sum(map(_pictures_below, {*folders.values()})) - there if tabled else 0
    if unnamed > 0:
        remarks += (f"Left out, because no line of the table names them: {counted(unnamed, 'picture')}.",)
    listed = dict[str, Listed]()
    for split, own in found.items():
        folder, names = folders[split], [entry.name for _, entry in own]
        persons = None
        with request.faults.gathered():
            if rule is not None:
                persons = _persons(names, folder, tables[split], rule, table_at, classes_above=not tabled)
        listed[split] = Listed(
            labels=coded([value for value, _ in own]),
            pictures=Files(folder, names),
            # Folders without a picture do not belong to the listing.
            classes=() if tabled else tuple(dict.fromkeys(name.partition("/")[0] for name in names)),
            entries=[entry for _, entry in own],
            persons=persons,
            unusable={i: "there is no such file" for i, (_, entry) in enumerate(own) if entry.size == MISSING},
        )
    noticed = partial(_noticed, found, folders, tables, table_at, tabled=tabled)
    return image_set("imagefolder", listed, request, also=classes, remarks=remarks, noticed=noticed, table=table)


def is_dicom(name: str) -> bool:
    return ending_of(name) in dicom.SUFFIXES


def ending_of(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def left_out(skipped: Counter[str], why: str = "their names do not end as those of pictures") -> tuple[str, ...]:
    """What is said of files that are left out. skipped: how many there are of each ending."""
    return (f"Left out, because {why}: {files_by_ending(skipped)}.",) if skipped else ()


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


def folders_in(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if not is_clutter(entry.name) and entry.is_dir()]


# Labels by folders


def _in_class_folders(folder: Path, classes: list[str], skipped: Counter[str]) -> Labelled:
    """The images of a split, in its folder, sorted by class, then by name. classes: the names of the class folders of
    all splits, sorted. skipped: counts the endings of the files that are no images.
    """
    found, linked = Labelled(), False
    for name in classes:
        if not (folder / name).is_dir():
            continue
        linked |= (folder / name).is_symlink()
        for file, entry in sorted(_files_in(folder / name, name), key=lambda listed: listed[0]):
            if (ending := ending_of(entry.name)) not in EXTENSIONS:
                skipped[ending] += 1
                continue
            facts = entry.stat()
            linked |= entry.is_symlink() or facts.st_nlink > 1
            found.append((name, Entry(file, _size(entry.path, facts), "")))
    if not found:
        endings = ", ".join(sorted(EXTENSIONS))
        raise ValueError(f"there are no images in the class folders of '{folder}': files that end in {endings}")
    # Without links no file has two names, and millions of files are not looked at again.
    if linked:
        refuse_twice(folder / entry.name for _, entry in found)
    return found


def _check_order(folders: Collection[str], found: Mapping[str, Labelled], classes: set[str]) -> None:
    """UserError where not the upper folders have the names of classes, but all those in them: PERSON/CLASS."""
    below = {entry.name.split("/")[1] for each in found.values() for _, entry in each if entry.name.count("/") > 1}
    if below and below <= classes and not classes.issuperset(folders):
        raise conflict(
            f"The folders of {parameter('classes')} lie in other folders, as in PERSON/CLASS/picture.",
            f"Make it CLASS/PERSON/picture, or name the class of each picture in a table: {parameter('table')}.",
        )


def _files_in(place: Path, name: str) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """The files in a class folder that are the user's, each with its name from the class on."""
    with os.scandir(place) as entries:
        found = list(entries)
    for entry in found:
        if is_clutter(entry.name):
            continue
        if not entry.is_dir():
            yield f"{name}/{entry.name}", entry
        elif entry.is_symlink():
            raise ValueError(f"{secret(entry.path)} is a link to a folder, which may lead in a circle")
        else:
            yield from _files_in(Path(entry.path), f"{name}/{entry.name}")


def _size(path: str | Path, facts: os.stat_result) -> int:
    """The size of a file. OSError if it is none: opening a pipe would wait forever."""
    if not stat.S_ISREG(facts.st_mode):
        raise NoPlainFileError(f"{secret(path)} is no regular file")
    return facts.st_size


# Labels in a table


class _Named(NamedTuple):
    """What a table says of a split. lines: where it names each picture, by name. wrong: what is wrong, by line."""

    path: Path
    found: Labelled
    lines: dict[str, int]
    wrong: dict[int, str]


def _in_table(path: Path | None, folder: Path, labels: Needed, rule: Rule | None, table_at: TableAt) -> _Named:
    """The images of a split that a table names, sorted by name. The label stands in the digest's place of each entry,
    so the listing has it. The size of a file that is not there is `MISSING`.
    """
    if path is None:
        what = f"There is no {' or '.join(NAMES)} in {quoted(folder)}."
        raise missing(what, f"Name the table: {parameter('table')}.")
    table = table_at(path)
    [name] = columns_in(path, list(table.columns), labels)
    values = [value.strip() or None if isinstance(value, str) else value for value in table.columns[name]]
    persons: Sequence[Value] = [0] * len(values)
    if rule is not None and rule.by in ("column", "table") and rule.table in (None, path):
        persons = table.columns[columns_in(path, list(table.columns), _person(rule))[0]]
    found, lines, wrong = Labelled(), dict[str, int](), dict(table.wrong)
    for line, file, value, who in zip(table.lines, table.files, values, persons, strict=True):
        place = inside(folder, str(file))
        if place is None:
            continue
        name = os.path.relpath(place, folder)
        if text_of(value) and key_of(who) is None:
            wrong[line] = "has no person"
            continue
        try:
            size = _size(place, place.stat())
        except FileNotFoundError:
            size = MISSING
        found.append((value, Entry(name, size, str(value))))
        lines[name] = line
    if all(entry.size == MISSING for _, entry in found):
        raise ValueError(f"'{path}' names no file in '{folder}' that is there")
    refuse_twice(folder / entry.name for _, entry in found if entry.size != MISSING)
    return _Named(path, sorted(found, key=lambda listed: listed[1].name), lines, wrong)


def _checked_table(tabs: Mapping[str, _Named], folders: Mapping[str, Path], faults: Faults) -> LabelTable | None:
    """The table of all splits; None if there are several. What is wrong with lines is added to the faults."""
    wrong: dict[Path, dict[int, str]] = {}
    for tab in tabs.values():
        wrong.setdefault(tab.path, {}).update(tab.wrong)
    for place, lines in wrong.items():
        with faults.gathered():
            refuse_lines(place, lines)
    titled = {str(folders[split] / name): line for split, tab in tabs.items() for name, line in tab.lines.items()}
    return LabelTable(place, titled, lines) if len(wrong) == 1 else None


def _pictures_below(folder: Path) -> int:
    """How many pictures lie in a folder and below it."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_clutter(name)]
        count += sum(ending_of(name) in EXTENSIONS and not is_clutter(name) for name in files)
    return count


# Persons


def _person(rule: Rule) -> Needed:
    form = "column:" if rule.table is None else f"table:{rule.table}:"
    return Needed(rule.column, PERSONS, "persons", "group_by", form)


def _persons(
    names: list[str], folder: Path, table: Path | None, rule: Rule, table_at: TableAt, *, classes_above: bool
) -> Iterable[object]:
    """What names the person of each image of a split. names: of the images, from its folder on. table: of the images.
    classes_above: whether the first folder of a name is that of the class.
    """
    if rule.by in ("folder", "name"):
        return [rule.of_name(name, name.partition("/")[2] if classes_above else name) for name in names]
    table = rule.table or table
    if table is not None:
        table_of = table_at(table)
        refuse_lines(table, table_of.wrong)
        [column] = columns_in(table, list(table_of.columns), _person(rule))
        known = dict(zip(table_of.files, table_of.columns[column], strict=True))
        places = [Path(os.path.normpath(folder.absolute() / name)) for name in names]
        if unnamed := [name for name, place in zip(names, places, strict=True) if place not in known]:
            raise bad_record(
                f"{quoted(table)} has no line for {counted(len(unnamed), 'picture')}: {secret(*unnamed)}. The names in "
                f"it begin in {quoted(table_of.folder)}. {GUARDED}",
                f"Give each picture a line, with its name from that folder on. {LETTERS}",
            )
        return [known[place] for place in places]
    if any(map(is_dicom, names)):
        element = rule.column or ""
        dicom.check_element(element)
        return [_element(folder / name, element) if is_dicom(name) else None for name in names]
    raise missing(
        f"There is no {' or '.join(NAMES)} in {quoted(folder)} that could have a column '{rule.column}'.",
        f"Put a table there with the columns '{FILE_NAME}' and '{rule.column}', or name another one: "
        f"{parameter('group_by')} table:FILE.",
    )


def _noticed(
    found: dict[str, Labelled],
    folders: dict[str, Path],
    tables: dict[str, Path | None],
    table_at: TableAt,
    *,
    tabled: bool,
) -> str | None:
    """The rule that would bring together pictures that seem to be of one person; None if none do.

    What a table says comes before what DICOM files say, and that before folders: a person may have several. If the
    labels are not `tabled`, the first folder of a name is that of the class.
    """
    columns: dict[str, list[Value]] = {}
    for table in dict.fromkeys(tables.values()):
        # Beside class folders there may be any table of this name.
        with suppress(UserError):
            for name, values in ({} if table is None else table_at(table).columns).items():
                columns.setdefault(name, []).extend(values)
    if (column := column_of(columns)) is not None:
        return f"column:{column}"
    every = [(folders[split], label, entry.name) for split, own in found.items() for label, entry in own]
    if repeat(_element(folder / name, PATIENT) for folder, _, name in every if is_dicom(name)):
        return f"column:{PATIENT}"
    if tabled:
        level = level_of([name for *_, name in every], [label for _, label, _ in every])
    else:
        level = level_of([name.partition("/")[2] for *_, name in every])
    return None if level is None else f"folder:{level}"


def _element(path: Path, name: str) -> str | None:
    """An element of a DICOM file; None if the system does not let us read it, which is said when it is decoded."""
    with suppress(OSError):
        return dicom.element_of(path, name)
    return None


IMAGEFOLDER = DataSet(
    name="imagefolder",
    open=open_folder,
    location="path",
    groups=("folder", "name", "column", "table"),
)
