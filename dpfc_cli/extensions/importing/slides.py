"""Slides: one HDF5 file a slide with a matrix of the features of its patches, as TRIDENT, CLAM and STAMP write them.

A record is the mean of all patches of a slide, or of all slides of a person. A table says which slides there are, what
their labels are, and whose they are. So the number of records is that of the table, whatever is in the files.

Patches are read in blocks and added up in float64, so memory holds one number for each record and dimension. Before a
value is read, the size that a file declares is compared with the free memory and with what is stored: HDF5 makes up
values that were never written. Only what a file is makes a null record: a lack of memory, or a disk that fails, stops
the import.
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from dpfc_cli import files
from dpfc_cli.annotations import groups as persons
from dpfc_cli.annotations.broken import Broken
from dpfc_cli.annotations.classes import USUAL_NAMES, coded, composed, numbers_of, text_of
from dpfc_cli.annotations.metadata import Needed, Value, columns_in, rows, usual_column
from dpfc_cli.annotations.person_hints import column_of, persons_noticed
from dpfc_cli.annotations.split_files import all_below, rows_by_split, split_column, splits_by_role, splits_left_out
from dpfc_cli.arrays import FLOATS, sliced
from dpfc_cli.errors import (
    GUARDED,
    UserError,
    bad_record,
    conflict,
    missing,
    parameter,
    quoted,
    secret,
)
from dpfc_cli.extensions.importing.request import Import
from dpfc_cli.extensions.importing.table import Table, Tables, numbered
from dpfc_cli.features.hdf5 import arrays_of
from dpfc_cli.features.hdf5 import broken as damaged
from dpfc_cli.memory import check_fits, proved
from dpfc_cli.places import place_of, remote
from dpfc_cli.reading import unread

SLIDE_COLUMNS = ("slide_id", "slide", "slide_name", "file_name", "filename", "wsi")
"""Usual names of columns, without regard to capitals. The first one that is there is taken."""
PREFIX = "slides:"
FEATURES = ("features", "feats", "patch_embeddings")
"""What pipelines call the matrix. Several of them in one file are refused."""
ENDINGS = (".h5", ".hdf5")
SCANS = (
    *(".svs", ".tif", ".tiff", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".svslide", ".bif", ".czi", ".dcm"),
    *(".isyntax", ".qptiff", ".zvi", ".lif", ".jpg", ".jpeg", ".png"),
)
"""The endings of slides. What stands behind another dot may tell two slides of a person apart."""
Line = tuple[int, dict[str, Value]]
_BLOCK = 2**24
"""Bytes of patches, in float64, that are added up at once."""
_LATER = ("memory", "unreadable", "busy")
"""Errors that say something about this machine or this moment, and nothing about the slide."""


def folder_of(path: str | Path) -> Path | None:
    """The folder of `slides:FOLDER`; None for another source."""
    text = str(path)
    return place_of(text.removeprefix(PREFIX)).expanduser() if text.startswith(PREFIX) else None


def refuse(wanted: Import) -> None:
    """Raise UserError if something was given that is for slides alone."""
    given = (name for name in ("table", "file_column", "pool_by", "most_null") if getattr(wanted, name) is not None)
    name = next(given, "on_error" if wanted.tolerant else None)
    if name is not None:
        raise conflict(
            f"{parameter(name)} is for slides.", f"Leave it out, or name a folder of slides: {PREFIX}FOLDER."
        )


def pooled(folder: Path, wanted: Import, classes: tuple[str, ...]) -> Tables:
    """The records of slides. The rows of null records are NaN.

    Args:
        folder: where the files lie, also in folders of it.
        wanted: the table, and how slides become records.
        classes: the asserted classes.

    Raises:
        UserError: the table or a slide cannot be used, or some slides seem to be of one person.

    """
    if wanted.table is None:
        raise missing(
            "Nothing says which slides there are, and what their labels are.",
            f"Name a CSV file with a line for each slide: {parameter('table')}.",
        )
    table = place_of(wanted.table).expanduser()
    lines = list(rows(table, "slide"))
    if not wanted.each_record_is_a_person and wanted.group_column is None:
        seems = _noticed([line for _, line in lines])
        if seems is not None:
            raise persons_noticed(str(folder), "group_column", seems)
    listed = _listed(table, lines, wanted)
    found = _files(folder, listed.slides, table)
    # What is refused for its label is refused before a slide is read.
    numbers_of({"all": coded(listed.labels)}, classes)
    codes, names = numbered(listed.labels, np.arange(len(listed.labels)))
    n = len(listed.labels)
    sums, patches = np.zeros((n, 0)), np.zeros(n, np.int64)
    broken = Broken("slide", {"slides": len(found)}, lambda _, i: listed.slides[i], None)
    for i, (path, record) in enumerate(zip(found, listed.records, strict=True)):
        try:
            if path is None:
                raise missing(f"There is no file for it in '{folder}'.", "Make it.")
            count, total = _sum(path, wanted.column)
        except UserError as error:
            if error.code in _LATER:
                what = error.what.replace(f"'{path}'", secret(path))
                raise UserError(what, error.remedy, code=error.code) from error
            broken.add("slides", i, {0: error.full or error.what})
        else:
            if not patches.any():
                check_fits(folder, "one vector for each record", 8 * len(total) * n, copies=3)
                sums = np.zeros((n, len(total)))
            if len(total) != sums.shape[1]:
                raise conflict(
                    f"{secret(path)} has features of {len(total)} numbers, and the slides before it have "
                    f"{sums.shape[1]}.",
                    "All slides must come from the same encoder.",
                )
            sums[record] += total
            patches[record] += count
        if wanted.progress:
            wanted.progress("Reading slides", i + 1, len(found))
    if broken.too_many:
        if not wanted.tolerant or not patches.any():
            raise broken.refusal()
        wanted.warned(f"{broken.number}. This number depends on the records: do not publish it.")
    with np.errstate(invalid="ignore"):
        x = (sums / patches[:, None]).astype(np.float32)
    y = np.where(patches == 0, -1, codes)[:, None]
    splits = {}
    for split in dict.fromkeys(listed.splits.tolist()):
        own = np.flatnonzero(listed.splits == split)
        keys = None if listed.keys is None else listed.keys.part(own)
        splits[split] = Table(
            n=len(own), d=x.shape[1], dtype=x.dtype, rows=sliced(x[own]), y=y[own], names=names, nulls=True, keys=keys
        )
    return Tables(splits=splits, person=listed.person, remarks=listed.remarks)


def _files(folder: Path, slides: Sequence[str], table: Path) -> list[Path | None]:
    """The file of each slide in the folder or in folders of it; None if there is none.

    A file has the name of its slide and the ending of HDF5, perhaps in place of the slide's own ending. If there are
    several, the one in the folder that the table names counts. A name never leads elsewhere.

    Raises:
        UserError: there is no such folder, or it cannot be listed; or two lines name one file, or one line two.

    """
    if not folder.is_dir():
        raise missing(
            f"There is no folder {quoted(folder)}.", f"Name the folder with one .h5 file a slide: {PREFIX}FOLDER."
        )
    below: dict[str, list[Path]] = {}
    skipped: list[OSError] = []
    walked = os.walk(folder, onerror=skipped.append) if remote(folder) is None else ()
    there = (Path(at, name) for at, _, names in walked for name in sorted(names))
    for path in there if remote(folder) is None else all_below(folder):
        if path.name.endswith(ENDINGS) and not path.name.startswith("."):
            below.setdefault(composed(path.stem), []).append(path)
    found: list[Path | None] = []
    for slide in slides:
        named = PurePosixPath(composed(slide))
        stems = [named.name] * (named.suffix not in ENDINGS)
        stems += [named.stem] * (named.suffix.lower() in (*ENDINGS, *SCANS))
        several = next((below[stem] for stem in stems if stem in below), [])
        exact = [path for path in several if str(path.relative_to(folder).parent) == str(named.parent)]
        several = exact or several
        if len(several) > 1:
            raise conflict(
                f"{quoted(folder)} has {len(several)} files for the slide {secret(slide)}: "
                f"{secret(*(path.relative_to(folder) for path in several[:4]))}. {GUARDED}",
                "Name the folder of one run of one encoder.",
            )
        found.append(several[0] if several else None)
    if skipped and None in found:
        # Slides in a folder that cannot be listed are not missing.
        raise unread(folder, skipped[0])
    same = [slide for slide, count in Counter(slides).items() if count > 1]
    twice = same[0] if same else files.named_twice(path for path in found if path is not None)
    if twice is not None:
        raise bad_record(
            f"{quoted(table)} names {secret(twice)} twice. It would count as two records, and the guarantee is for "
            f"one. {GUARDED}",
            "Leave one line for each slide.",
        )
    return found


def _sum(path: Path, column: str | None) -> tuple[int, np.ndarray]:
    """The number of patches of a slide, and the sum of their features in float64.

    Raises:
        UserError: the file is missing or damaged, has no such matrix, or has a value that is not finite; or it cannot
            be read now (`_LATER`).
        MemoryError: a lack of memory may be the reason that it cannot be read.

    """
    with proved(2 * _BLOCK), ExitStack() as stack:
        arrays = arrays_of(path, stack)
        names = [column] if column else [name for name in FEATURES if name in arrays] or [FEATURES[0]]
        if len(names) > 1:
            raise damaged(path, f"it has several matrices ({', '.join(names)}), and nobody says which one counts")
        if names[0] not in arrays:
            raise damaged(path, f"it has no data set '{names[0]}'")
        array = arrays[names[0]]
        matrix = array.shape[1:] if len(array.shape) == 3 and array.shape[0] == 1 else array.shape
        floats = isinstance(array.dtype, np.dtype) and array.dtype.newbyteorder("=") in FLOATS
        if len(matrix) != 2 or min(matrix) < 1 or not floats:
            said = f"shape {array.shape} and dtype {array.dtype}"
            raise damaged(path, f"'{names[0]}' has {said}, which are no features of patches")
        count, width = matrix
        check_fits(path, "one patch", 8 * width, copies=4)
        total, step = np.zeros(width), max(1, _BLOCK // (8 * width))
        for at in range(0, count, step):
            total += array.read(at, min(at + step, count)).sum(0, dtype=np.float64)
    if not np.isfinite(total).all():
        raise damaged(path, "it has features that are not finite")
    return count, total


# The table


@dataclass(frozen=True)
class _Listed:
    """What a table says. person: the column of persons, if there is one. remarks: as in `Tables`.

    Of each slide: slides: its name. records: the number of its record. Of each record: splits, labels, keys.
    """

    slides: list[str]
    records: list[int]
    splits: np.ndarray
    labels: list[str]
    keys: persons.Keys | None
    person: str | None
    remarks: tuple[str, ...]


def _listed(table: Path, lines: list[Line], wanted: Import) -> _Listed:
    """The slides of a table, and whose they are. Raises UserError if the table cannot be used."""
    by_patient = wanted.pool_by == "patient"
    columns = list(dict.fromkeys(column for _, line in lines for column in line))
    needed = [
        Needed(wanted.file_column, SLIDE_COLUMNS, "slides", "file_column"),
        Needed(wanted.label_column, USUAL_NAMES, "labels", "label_column"),
    ]
    person = usual_column(columns, persons.USUAL_NAMES)
    if by_patient or person is not None or wanted.group_column is not None:
        needed.append(Needed(wanted.group_column, persons.USUAL_NAMES, "persons", "group_column"))
    slide_column, label_column, *others = columns_in(table, columns, *needed)
    person = next(iter(others), None)
    lines, splits, remarks = _of_splits(table, lines, split_column(columns))
    for number, line in lines:
        named = line.get(slide_column)
        for column, text in (
            (slide_column, "" if named is None else str(named).strip()),
            (label_column, text_of(line.get(label_column))),
        ):
            if not text:
                raise bad_record(
                    f"Line {number} of {quoted(table)} has nothing under '{column}'. {GUARDED}",
                    "Each line needs the name of a slide and a label. Leave out slides without a label.",
                )
    slides = [str(line[slide_column]).strip() for _, line in lines]
    labels = [text_of(line[label_column]) for _, line in lines]
    keys, first = None, np.arange(len(lines))
    records = first
    if person is not None:
        values = [line.get(person) for _, line in lines]
        keys = persons.keys_of(values, str(table), lambda i: f"line {lines[i][0]}", "Each slide needs a person.")
        persons.check_apart({split: keys.part(np.flatnonzero(splits == split)) for split in ("train", "test")})
        if by_patient:
            # Patients are numbered as they appear in the table.
            _, first, codes = np.unique(keys.codes, return_index=True, return_inverse=True)
            records, first = np.argsort(np.argsort(first))[codes], np.sort(first)
        keys = keys.part(first)
    of_record = [labels[i] for i in first]
    for slide, label, record in zip(slides, labels, records, strict=True):
        if label != of_record[record]:
            raise bad_record(
                f"{quoted(table)} gives slides of one patient two labels. One of them is {secret(slide)}. {GUARDED}",
                "Give all slides of a patient one label. Or make a record of each slide: leave out "
                f"{parameter('pool_by')}.",
            )
    return _Listed(slides, records.tolist(), splits[first], of_record, keys, person, remarks)


def _noticed(lines: list[dict[str, Value]]) -> str | None:
    """A column that seems to name persons, though its name is not among the usual ones; None if there is none."""
    columns = dict.fromkeys(column for line in lines for column in line)
    if usual_column(columns, persons.USUAL_NAMES) is not None:
        return None
    return column_of({column: [line.get(column) for line in lines] for column in columns})


def _of_splits(table: Path, lines: list[Line], column: str | None) -> tuple[list[Line], np.ndarray, tuple[str, ...]]:
    """The lines for training and for testing, the split of each ("train" or "test"), and what is said of others."""
    rows = rows_by_split((line.get(column) if column else "train" for _, line in lines), table)
    roles, splits = splits_by_role(rows), np.full(len(lines), "", "U5")
    for role, split in roles.items():
        splits[rows[split]] = role
    if "train" not in roles:
        raise missing(f"{quoted(table)} names no slide for training.", "Give it a line for each slide.")
    kept = [line for line, split in zip(lines, splits, strict=True) if split]
    return kept, splits[splits != ""], splits_left_out(rows, roles.values())
