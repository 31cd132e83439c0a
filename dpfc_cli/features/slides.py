"""Slides: one HDF5 file a slide with a matrix of the features of its patches, as TRIDENT, CLAM and STAMP write them.

A record is the mean of all patches of a slide, or of all slides of a person. A table says which slides there are, what
their labels are, and whose they are. So the number of records is that of the table, whatever is in the files.

| pipeline | features | places |
| --- | --- | --- |
| TRIDENT, CLAM | `features`, N × D or 1 × N × D | `coords` |
| STAMP | `feats`, N × D | `coords` |

Patches are read in blocks and added up in float64, so memory holds one number for each record and dimension. Before a
value is read, the size that a file declares is compared with the free memory and with what is stored: HDF5 makes up
values that were never written. Only what a file is makes a null record: a lack of memory, or a disk that fails, stops
the import.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from dpfc_cli import files
from dpfc_cli.errors import GUARDED, Note, UserError, counted, parameter, printable
from dpfc_cli.features.hdf5 import broken as damaged
from dpfc_cli.features.hdf5 import local_dataset, opened_hdf5, readable
from dpfc_cli.features.manifest import unreadable
from dpfc_cli.features.table import FLOATS, Table, Tables, sliced
from dpfc_cli.features.tables import check_stored
from dpfc_cli.memory import check_fits, proved
from dpfc_cli.sources import groups as persons
from dpfc_cli.sources.classes import USUAL_NAMES, inferred_classes
from dpfc_cli.sources.metadata import Value, rows
from dpfc_cli.sources.noticed import column_of
from dpfc_cli.sources.nulls import LISTED, listed, most_allowed
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS, inside

SLIDE_COLUMNS = ("slide_id", "slide", "slide_name", "file_name", "filename", "wsi")
"""Usual names of columns, without regard to capitals. The first one that is there is taken."""
SPLIT_COLUMN = "split"


@dataclass(frozen=True, kw_only=True)
class Slide:
    """A line of the table. record: the number of its record, in its split."""

    name: str
    split: str
    label: str
    record: int


PREFIX = "slides:"
FEATURES = ("features", "feats", "patch_embeddings")
"""What pipelines call the matrix. The first one that is there is taken."""
PoolBy = Literal["slide", "patient"]
OnError = Literal["refuse", "null"]
_BLOCK = 2**24
"""Bytes of patches, in float64, that are added up at once."""
_LATER = ("memory", "unreadable", "busy")
"""Errors that say something about this machine or this moment, and nothing about the slide."""
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How slides become records.

    Attributes:
        table: a CSV or JSON-lines file with a line for each slide.
        column: the name of the matrix in each file, if it is not a usual one.
        label_column: the column of the labels, if it has no usual name.
        group_column: the column of the persons, if it has no usual name.
        pool_by: what a record is.
        on_error: "refuse" slides that cannot be read, or make "null" records of them.
        most_null: the largest share of a split's records that may become null records.

    """

    table: Path
    column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    pool_by: PoolBy = "slide"
    on_error: OnError = "refuse"
    most_null: float | None = None


def folder_of(path: str | Path) -> Path | None:
    """The folder of `slides:FOLDER`; None for another source."""
    text = str(path)
    return Path(text.removeprefix(PREFIX)).expanduser() if text.startswith(PREFIX) else None


def refuse(**given: object) -> None:
    """Raise UserError if something was given that is for slides alone."""
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        raise UserError(
            f"{parameter(name)} is for slides.",
            f"Leave it out, or name a folder of slides: {PREFIX}FOLDER.",
            code="conflict",
            parameter=name,
        )


def without_table() -> UserError:
    """The error where no table is named."""
    return UserError(
        "Nothing says which slides there are, and what their labels are.",
        f"Name a CSV file with a line for each slide: {parameter('table')}.",
        code="missing",
        parameter="table",
    )


def pooled(
    folder: Path,
    wanted: Wanted,
    classes: tuple[str, ...] | None,
    out: Path,
    progress: Progress | None,
    warn: Callable[[str], None],
) -> tuple[Tables, str | None]:
    """The records of slides.

    Args:
        folder: where the files lie, also in folders of it.
        wanted: the table, and how slides become records.
        classes: the asserted classes, in the order in which labels count them.
        out: the folder of the set to be made. A long list of broken slides goes beside it.
        progress: told how many slides were read.
        warn: told how many records became null.

    Returns:
        The tables, and the column that names persons. The rows of null records are NaN.

    Raises:
        UserError: the table or a slide cannot be used.

    """
    slides, keys, person = _listed(wanted.table, wanted.label_column, wanted.group_column, wanted.pool_by == "patient")
    found = _files(folder, slides, wanted.table)
    names = classes or _inferred({slide.label for slide in slides})
    counts = {split: 1 + max(s.record for s in slides if s.split == split) for split in {s.split for s in slides}}
    sums: dict[str, np.ndarray] = {}
    patches = {split: np.zeros(count, np.int64) for split, count in counts.items()}
    broken: dict[str, str] = {}
    for done, (slide, path) in enumerate(zip(slides, found, strict=True), 1):
        try:
            count, total = _sum(path, wanted.column)
        except UserError as error:
            if error.code in _LATER:
                raise
            broken[slide.name] = error.what
        else:
            if not sums:
                check_fits(folder, "one vector for each record", 8 * len(total) * sum(counts.values()), copies=3)
                sums = {split: np.zeros((n, len(total))) for split, n in counts.items()}
            _check_width(path, len(total), sums)
            sums[slide.split][slide.record] += total
            patches[slide.split][slide.record] += count
        if progress:
            progress("Reading slides", done, len(slides))
    _judge(broken, patches, wanted, bool(sums), out, warn)
    number = {name: label for label, name in enumerate(names)}
    splits = {}
    for split, count in counts.items():
        with np.errstate(invalid="ignore"):
            x = (sums[split] / patches[split][:, None]).astype(np.float32)
        y = np.full((count, 1), -1, np.int64)
        for slide in (s for s in slides if s.split == split):
            if slide.label not in number:
                raise _foreign(wanted.table, slide.label)
            y[slide.record] = number[slide.label]
        y[patches[split] == 0] = -1
        own = None if keys is None else keys[split]
        splits[split] = Table(n=count, d=x.shape[1], dtype=x.dtype, rows=sliced(x), y=y, nulls=True, keys=own)
    return Tables(splits=splits, classes=names, inferred=classes is None), person


def _inferred(labels: set[str]) -> tuple[str, ...]:
    """The classes that labels imply: numbers count from 0, names are sorted."""
    if all(label.isascii() and label.isdecimal() and len(label) < 10 for label in labels):
        return inferred_classes(max(map(int, labels)))
    return tuple(sorted(labels))


def _foreign(table: Path, label: str) -> UserError:
    return UserError(
        f"'{table}' has the label '{label}', which is not among the classes. {GUARDED}",
        f"Name it with {parameter('classes')}, or leave its slides out of the table.",
        code="conflict",
        parameter="classes",
        path=str(table),
    )


def _files(folder: Path, slides: list[Slide], table: Path) -> list[Path]:
    """The file of each slide; where there is none, the place where it should lie.

    Raises:
        UserError: there is no such folder, a name leads out of it, or two lines name one file.

    """
    if not folder.is_dir():
        raise UserError(
            f"There is no folder '{folder}'.",
            f"Name the folder with one .h5 file a slide: {PREFIX}FOLDER.",
            code="missing",
            path=str(folder),
        )
    below: dict[str, list[Path]] = {}
    skipped: list[OSError] = []
    for at, _, names in os.walk(folder, onerror=skipped.append):
        for name in sorted(names):
            if name.endswith((".h5", ".hdf5")) and not name.startswith("."):
                path = Path(at, name)
                below.setdefault(path.stem, []).append(path)
    found = []
    for slide in slides:
        place = inside(folder, slide.name)
        if place is None:
            raise UserError(
                f"'{table}' names the slide '{slide.name}', which is no name of a file in '{folder}'. {GUARDED}",
                "Write names without a path that leads out of the folder.",
                code="bad-record",
                path=str(table),
            )
        found.append(_file(place, slide.name, below, folder))
    # Slides in a folder that cannot be listed are not missing. A folder that is not for us may hold none of them.
    whole = all(path.exists() for path in found)
    stop = next((error for error in skipped if not (whole and isinstance(error, PermissionError))), None)
    if stop is not None:
        raise unreadable(Path(stop.filename), stop)
    named: set[Path] = set()
    twice = next((path for path in found if path in named or named.add(path)), None)  # type: ignore[func-returns-value]
    twice = twice or files.named_twice([path for path in found if path.exists()])
    if twice is not None:
        raise UserError(
            f"'{table}' names the file '{twice}' twice. It would count as two records, and the guarantee is for one.",
            f"Leave one line for each slide. {GUARDED}",
            code="bad-record",
            path=str(table),
        )
    return found


def _file(place: Path, name: str, below: dict[str, list[Path]], folder: Path) -> Path:
    """The file of a slide: under its name as it is, with the ending of HDF5, or in place of the slide's own ending.

    Raises UserError if the folder has two files of that name.
    """
    whole = place.with_name(f"{place.name}.h5")
    tried = [place] if place.suffix in (".h5", ".hdf5") else [whole, place.with_suffix(".h5")]
    for path in tried:
        if path.is_file():
            return path
    for stem in (Path(name).name, Path(name).stem):
        several = below.get(stem, [])
        if len(several) > 1:
            raise UserError(
                f"'{folder}' has {len(several)} files for the slide '{name}': "
                f"{', '.join(os.path.relpath(path, folder) for path in several[:4])}. {GUARDED}",
                "Name the folder of one run of one encoder.",
                code="conflict",
                path=str(folder),
            )
        if several:
            return several[0]
    return tried[0]


def _sum(path: Path, column: str | None) -> tuple[int, np.ndarray]:
    """The number of patches of a slide, and the sum of their features in float64.

    Raises:
        UserError: the file is missing or damaged, has no such matrix, or has a value that is not finite; or it cannot
            be read now (`_LATER`).
        MemoryError: a lack of memory may be the reason that it cannot be read.

    """
    with proved(0), opened_hdf5(path) as file, readable(path):
        name = column or next((name for name in FEATURES if name in file), FEATURES[0])
        dataset = local_dataset(file, path, name)
        total = np.zeros(_checked(dataset, path, name))
        count = len(dataset) if dataset.ndim == 2 else dataset.shape[1]
        # HDF5 calls a lack of memory in a filter a failure of the filter, as it calls a damaged chunk.
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
        with proved(4 * chunk + 2 * _BLOCK):
            for block in _blocks(dataset, count, len(total)):
                total += block.sum(0, dtype=np.float64)
    if not np.isfinite(total).all():
        raise damaged(path, "it has features that are not finite")
    return count, total


def _checked(dataset: h5py.Dataset, path: Path, name: str) -> int:
    """The number of dimensions. Raises UserError for anything but a matrix of floats that is wholly stored."""
    shape: tuple[int, ...] = dataset.shape or ()
    matrix = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if len(matrix) != 2 or min(matrix) < 1 or dataset.dtype.newbyteorder("=") not in FLOATS:
        raise damaged(path, f"'{name}' has shape {shape} and dtype {dataset.dtype}, which are no features of patches")
    check_stored(dataset, path, name)
    check_fits(path, "one patch", 8 * matrix[1], copies=4)
    if dataset.chunks is None:
        stored = min(dataset.id.get_storage_size(), path.stat().st_size)
        whole = stored >= math.prod(shape) * dataset.dtype.itemsize
    else:
        whole = dataset.id.get_num_chunks() >= math.prod(-(-n // c) for n, c in zip(shape, dataset.chunks, strict=True))
    if not whole:
        raise damaged(path, f"'{name}' was not written to its end")
    return int(matrix[1])


def _blocks(dataset: h5py.Dataset, count: int, width: int) -> Iterator[np.ndarray]:
    step = max(1, _BLOCK // (8 * width))
    for at in range(0, count, step):
        yield np.asarray(dataset[at : at + step] if dataset.ndim == 2 else dataset[0, at : at + step])


def _check_width(path: Path, width: int, sums: dict[str, np.ndarray]) -> None:
    wanted = next(iter(sums.values())).shape[1]
    if width != wanted:
        raise UserError(
            f"'{path}' has features of {width} numbers, and the slides before it have {wanted}.",
            "All slides must come from the same encoder.",
            code="conflict",
            path=str(path),
            dimensions=[wanted, width],
        )


def _judge(
    broken: dict[str, str],
    patches: dict[str, np.ndarray],
    wanted: Wanted,
    any_read: bool,
    out: Path,
    warn: Callable[[str], None],
) -> None:
    """Refuse broken slides, or say which records became null. Raises UserError, too, if those are too many."""
    lines = [f"{printable(name)}: {printable(why)}" for name, why in sorted(broken.items())]
    notes = listed(lines, out.with_name(f"{out.name}{LISTED}"))
    if not broken:
        return
    nulls = {split: int((found == 0).sum()) for split, found in patches.items()}
    allowed = {split: most_allowed(len(found), wanted.most_null) for split, found in patches.items()}
    over = next((split for split, count in nulls.items() if count > allowed[split]), None)
    if wanted.on_error == "refuse" or over is not None or not any_read:
        what = f"{counted(len(broken), 'slide')} cannot be read."
        if wanted.on_error == "null" and over is not None:
            what += f" At most {allowed[over]:,} of the {len(patches[over]):,} {over} records may become null records."
        remedy = "Make them again, or leave them out of the table."
        if wanted.on_error == "refuse":
            remedy += f" Or keep them as records without content: {parameter('on_error')} null."
        error = UserError(f"{what} {GUARDED}", remedy, code="bad-record", count=len(broken))
        for note in notes:
            error.add_note(Note(note))
        raise error
    said = " and ".join(f"{count:,} of {len(patches[split]):,} {split} records" for split, count in nulls.items())
    warn(
        f"{counted(len(broken), 'slide')} cannot be read. Null records, which add nothing to a training: {said}. These "
        "numbers depend on the records: do not publish them."
    )
    for note in notes:
        warn(note.strip())


# The table


def _listed(
    table: Path, label_column: str | None, group_column: str | None, by_patient: bool
) -> tuple[list[Slide], dict[str, persons.Keys] | None, str | None]:
    """The slides of a table, and whose they are.

    Args:
        table: a CSV or JSON-lines file with a line for each slide.
        label_column: the column of the labels, if it has no usual name.
        group_column: the column of the persons, if it has no usual name.
        by_patient: all slides of a patient are one record.

    Returns:
        The slides, the persons of the records of each split, and the column of the persons.

    Raises:
        UserError: the table cannot be used.

    """
    lines = list(rows(table, "slide"))
    columns = list(dict.fromkeys(column for _, line in lines for column in line))
    slide_column = _column(table, columns, None, SLIDE_COLUMNS, "slides")
    labels = _column(table, columns, label_column, USUAL_NAMES, "label_column")
    person = _column(table, columns, group_column, persons.USUAL_NAMES, "group_column", optional=True)
    if by_patient and person is None:
        raise UserError(
            f"'{table}' does not say which slides are of one patient.",
            f"Name the column that does: {parameter('group_column')}.",
            code="missing",
            parameter="group_column",
            path=str(table),
            known=columns,
        )
    lines = _of_splits(table, lines, next((c for c in columns if c.lower() == SPLIT_COLUMN), None))
    for number, line in lines:
        for column in (slide_column, labels):
            if line.get(column) is None or not str(line[column]).strip():
                raise UserError(
                    f"Line {number} of '{table}' has nothing under '{column}'. {GUARDED}",
                    "Each line needs the name of a slide and a label. Leave out slides without a label.",
                    code="bad-record",
                    path=str(table),
                    line=number,
                )
    slides: list[Slide] = []
    keys: dict[str, persons.Keys] = {}
    for split in dict.fromkeys(str(line[SPLIT_COLUMN]) for _, line in lines):
        own = [(number, line) for number, line in lines if line[SPLIT_COLUMN] == split]
        texts = [(str(line[slide_column]).strip(), str(line[labels]).strip()) for _, line in own]
        records = list(range(len(own)))
        if person is not None:
            known = _keys(table, own, person)
            if by_patient:
                _, first, codes = np.unique(known.codes, return_index=True, return_inverse=True)
                # Patients are numbered as they appear in the table.
                rank = np.argsort(np.argsort(first))
                records = rank[codes].tolist()
                known = known.part(np.sort(first))
            keys[split] = known
        slides += [
            Slide(name=name, split=split, label=label, record=record)
            for (name, label), record in zip(texts, records, strict=True)
        ]
    persons.check_apart(keys, str(table))
    if by_patient:
        _check_patients(table, slides)
    return slides, keys or None, person


def noticed(table: Path) -> str | None:
    """A column that seems to name persons, though its name is not among the usual ones; None if there is none.

    Raises:
        UserError: the table cannot be read.

    """
    lines = [line for _, line in rows(table, "slide")]
    columns = dict.fromkeys(column for line in lines for column in line)
    if any(column.lower() in persons.USUAL_NAMES for column in columns):
        return None
    return column_of({column: [line.get(column) for line in lines] for column in columns})


def _column(
    table: Path, columns: Sequence[str], given: str | None, usual: Sequence[str], option: str, optional: bool = False
) -> Any:
    """The given column, or the first one of a usual name; None if it is optional and not there."""
    if given is not None:
        if given in columns:
            return given
    else:
        for name in usual:
            for column in columns:
                if column.lower() == name:
                    return column
        if optional:
            return None
    what = f"'{given}'" if given is not None else "slides" if option == "slides" else "labels"
    raise UserError(
        f"'{table}' has no column {'' if given is not None else 'of '}{what}. It has: {', '.join(columns) or 'none'}.",
        f"Give it one of these names: {', '.join(usual)}."
        + (f" Or say its name: {parameter(option)}." if option != "slides" else ""),
        code="missing",
        path=str(table),
        known=list(columns),
    )


def _of_splits(
    table: Path, lines: list[tuple[int, dict[str, Value]]], column: str | None
) -> list[tuple[int, dict[str, Value]]]:
    """The lines for training and for testing, each with its split under one name. Others are left out."""
    words = {str(line.get(column) or "").strip().lower() for _, line in lines} if column else set()
    foreign = words.difference(TRAIN_SPLITS, TEST_SPLITS)
    if foreign:
        raise UserError(
            f"'{table}' names a split '{min(foreign)}'. {GUARDED}",
            f"Write {' or '.join(TRAIN_SPLITS)} or one of {', '.join(TEST_SPLITS)} into each line, or leave the column "
            "out: then all slides are for training.",
            code="bad-record",
            path=str(table),
        )
    test = next((word for word in TEST_SPLITS if word in words), None)
    kept = []
    for number, line in lines:
        word = str(line.get(column) or "").strip().lower() if column else "train"
        split = "train" if word in TRAIN_SPLITS else "test" if word == test else None
        if split is not None:
            kept.append((number, {**line, SPLIT_COLUMN: split}))
    if not any(line[SPLIT_COLUMN] == "train" for _, line in kept):
        raise UserError(
            f"'{table}' names no slide for training.",
            "Give it a line for each slide.",
            code="missing",
            path=str(table),
            split="train",
        )
    return kept


def _keys(table: Path, lines: list[tuple[int, dict[str, Value]]], column: str) -> persons.Keys:
    values = [line.get(column) for _, line in lines]
    return persons.keys_of(values, str(table), lambda i: f"line {lines[i][0]}", "Each slide needs a person.")


def _check_patients(table: Path, slides: list[Slide]) -> None:
    """Raise UserError if slides of a patient have two labels."""
    labels: dict[tuple[str, int], str] = {}
    for slide in slides:
        if labels.setdefault((slide.split, slide.record), slide.label) != slide.label:
            raise UserError(
                f"'{table}' gives slides of one patient two labels. One of them is '{slide.name}'. {GUARDED}",
                "Give all slides of a patient one label. Or make a record of each slide: leave out "
                f"{parameter('pool_by')}.",
                code="bad-record",
                path=str(table),
            )
