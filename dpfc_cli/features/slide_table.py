"""A table of slides: which there are, what their labels are, whose they are, and which split they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.sources import groups, label_columns
from dpfc_cli.sources.metadata import Value, rows
from dpfc_cli.sources.noticed import column_of
from dpfc_cli.sources.split_files import TEST_SPLITS, TRAIN_SPLITS

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


def listed(
    table: Path, label_column: str | None, group_column: str | None, by_patient: bool
) -> tuple[list[Slide], dict[str, groups.Keys] | None, str | None]:
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
    labels = _column(table, columns, label_column, label_columns.USUAL_NAMES, "label_column")
    person = _column(table, columns, group_column, groups.USUAL_NAMES, "group_column", optional=True)
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
    keys: dict[str, groups.Keys] = {}
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
    groups.check_apart(keys, str(table))
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
    if any(column.lower() in groups.USUAL_NAMES for column in columns):
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


def _keys(table: Path, lines: list[tuple[int, dict[str, Value]]], column: str) -> groups.Keys:
    values = [line.get(column) for _, line in lines]
    return groups.keys_of(values, str(table), lambda i: f"line {lines[i][0]}", "Each slide needs a person.")


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
