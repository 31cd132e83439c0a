"""CSV files: what separates their values, the names of their columns, and their rows. All values are texts.

Python's `csv` reads them, strictly: a quotation mark that is not closed would else swallow the lines behind it. What
has two readings is refused.
"""

import codecs
import csv
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from dpfc_cli.errors import GUARDED

SEPARATORS = ",;\t|"
"""What lies between the values. One that makes columns of the first two lines is the one, if no other does."""
_DECLARED = re.compile(r"sep=(.)")
"""What Excel reads in a line before the others."""


class Csv(NamedTuple):
    """A CSV file. names: of its columns, without blanks at their ends; '' for one without a name. separator: what lies
    between its values. rows: the number of the line in which each row ends, and its values, as many as there are names.
    ValueError or csv.Error while they are read: the file is no such table.
    """

    names: list[str]
    separator: str
    rows: Iterator[tuple[int, list[str]]]


def csv_in(path: Path) -> Csv:
    """A CSV file. Raises OSError, csv.Error, or ValueError: it is no text, or has no line of names or several readings.
    Lines without a value do not count: spreadsheets write them behind the others.
    """
    encoding = _encoding(path)
    with path.open(encoding=encoding) as file:
        declared = _DECLARED.fullmatch(file.readline().rstrip("\n"))
    separator = declared[1] if declared else _separator(path, encoding)
    rows = _rows(path, encoding, separator, skip=declared is not None)
    _, names = next(rows, (0, []))
    names = [name.strip() for name in names]
    different = {name.casefold() for name in names if name}
    if not different or len(different) < len([*filter(None, names)]):
        raise ValueError("its first line must name the columns, each once (in whatever capitals)")
    if names[0].startswith("#") and len(names[0]) > 1:
        raise ValueError("it begins with '#'. Take comments out, and let its first line name the columns")
    return Csv(names, separator, _whole(rows, len(names)))


def _whole(rows: Iterator[tuple[int, list[str]]], width: int) -> Iterator[tuple[int, list[str]]]:
    for number, values in rows:
        if len(values) != width:
            what = f"line {number} has another number of values ({len(values)}) than the first one ({width})"
            raise ValueError(f"{what}. {GUARDED}")
        yield number, values


def _rows(path: Path, encoding: str, separator: str, skip: bool = False) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding=encoding, newline="") as file:
        if skip:
            file.readline()
        reader = csv.reader(file, delimiter=separator, strict=True)
        for values in reader:
            if any(map(str.strip, values)):
                yield reader.line_num + skip, values


def _separator(path: Path, encoding: str) -> str:
    found, likely, error = [], {}, None
    for separator in SEPARATORS:
        try:
            widths = [len(values) for _, values in islice(_rows(path, encoding, separator), 2)]
        except csv.Error as wrong:
            error = wrong
            continue
        likely[separator] = widths[0] if widths else 0
        if likely[separator] > 1 and len(set(widths)) == 1:
            found.append(separator)
    if len(found) > 1:
        several = " or ".join(map(repr, found))
        raise ValueError(f"{several} may separate its values. Say it in a line above the others: sep={found[0]}")
    if error is not None and not found:
        raise error
    # Where no separator fits both lines, that of most names says which line is wrong.
    return found[0] if found else max(likely, key=lambda separator: likely[separator])


def _encoding(path: Path) -> str:
    """UTF-8, or what spreadsheets on Windows write where the bytes are none. ValueError if it is UTF-16."""
    decoder, found = codecs.getincrementaldecoder("utf-8")(), "utf-8-sig"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if b"\0" in block:
                raise ValueError("it has zero bytes: it is UTF-16, or damaged. Save it as UTF-8")
            try:
                decoder.decode(block)
            except UnicodeDecodeError:
                found = "cp1252"
    return "cp1252" if decoder.getstate()[0] else found
