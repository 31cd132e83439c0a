"""Sets of pictures in tables: what parquet and Arrow share once their files can be listed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.images.encoded import Encoded, encoded_split
from dpfc_cli.images.labels import labelled
from dpfc_cli.images.picture_columns import Columns, is_text
from dpfc_cli.images.preparation import Preparation
from dpfc_cli.images.sets import Entry, Given, ImageSet
from dpfc_cli.sources.groups import Keys
from dpfc_cli.sources.noticed import column_of


class Pictures(Encoded, Protocol):
    """Pictures in the rows of tables."""

    def called(self, i: int) -> str:
        """The place of picture i, with its file's name. It stays if the file is moved."""
        ...


@dataclass(frozen=True)
class Listed:
    """The files of a split: their pictures, the labels (n of them), the entries of the files, and the persons."""

    pictures: Pictures
    labels: Given
    entries: list[Entry]
    keys: Keys | None


def opened(
    kind: str,
    source: str,
    found: Mapping[str, list[Path]],
    columns: Columns,
    classes: tuple[str, ...] | None,
    preparation: Preparation,
    listed: Callable[[list[Path]], Listed],
    values: Callable[[Path, str], Iterator[object]],
) -> ImageSet:
    """The set of the files of a source.

    Args:
        kind: the name of the data set.
        source: what the user calls the files, for messages.
        found: the files of each split.
        columns: where they hold what.
        classes: the classes that the operator asserts, or None.
        preparation: what is done with the pictures.
        listed: lists the files of a split.
        values: the values of a column of a file, or nothing if it has no such column.

    Raises:
        UserError: both the files and the operator name the classes (code "conflict"); as for `listed`.

    """
    if columns.classes and classes:
        raise UserError(
            f"The files of '{source}' name their classes themselves.",
            f"Leave out {parameter('classes')}.",
            code="conflict",
            parameter="classes",
            path=source,
        )
    files = {split: listed(paths) for split, paths in found.items()}
    known = labelled({split: each.labels for split, each in files.items()}, columns.classes or classes)
    splits = {
        role: encoded_split(
            known.labels[split],
            files[split].pictures,
            preparation,
            classes=columns.classes or (),
            entries=files[split].entries,
            name=files[split].pictures.called,
            keys=files[split].keys,
        )
        for role, split in known.used.items()
    }

    def of(column: str) -> Iterator[object]:
        return (value for split in known.used.values() for path in found[split] for value in values(path, column))

    def noticed() -> str | None:
        column = column_of({column: of(column) for column in columns.seeming})
        return None if column is None else f"column:{column}"

    origin = "data set" if columns.classes else known.origin
    return ImageSet(kind, known.classes, splits, origin, known.renumbered, noticed=noticed)


def check_labels(column: Any, path: Path, name: str) -> None:
    """Raise UserError unless a column has texts, or an integer in each row."""
    if not (is_text(column.type) or (pa.types.is_integer(column.type) and not column.null_count)):
        raise UserError(
            f"'{path}' has labels in '{name}' that are not integers. {GUARDED}",
            "Correct them: every label must be an integer, or the name of a class.",
            code="bad-record",
            path=str(path),
            column=name,
        )
