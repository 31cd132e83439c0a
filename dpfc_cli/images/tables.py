"""Sets of pictures in tables, parquet or Arrow, as the Hugging Face hub lays them out.

A column is a struct of `bytes` and perhaps `path`. Another one has the labels: integers, or names of classes. What the
integers mean says the `ClassLabel` in the schema's `huggingface` metadata. If there is none, the operator asserts the
classes, or they are inferred.

A row of parquet without bytes may name a file by its path: `Dataset.to_parquet` writes such rows for local pictures.
The file must lie in the folder of the parquet file, or below it. A table may come from somebody else, so it names no
other files.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.images.dataset import Request
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.labels import labelled
from dpfc_cli.images.rows import Group, Pictures
from dpfc_cli.images.sets import Entry, Given, ImageSet
from dpfc_cli.images.table_files import Arrow, Parquet, arrow_file, entries_of, parquet_file
from dpfc_cli.sources import columns
from dpfc_cli.sources.groups import Keys, joined
from dpfc_cli.sources.label_columns import hub_class_names
from dpfc_cli.sources.noticed import column_of

Opened = Callable[[Path], AbstractContextManager[Parquet | Arrow]]
_KINDS: dict[str, Opened] = {"parquet": parquet_file, "arrow": arrow_file}
"""How a file is opened, for as long as a block lasts. UserError, also in the block, if it cannot be read."""


@dataclass(frozen=True)
class _Listed:
    """The files of a split: their pictures, the labels (n of them), the entries of the files, and the persons."""

    pictures: Pictures
    labels: Given
    entries: list[Entry]
    keys: Keys | None


def open_tables(kind: str, found: Mapping[str, list[Path]], request: Request) -> ImageSet:
    """The set of pictures in tables.

    Args:
        kind: "parquet" or "arrow".
        found: the files of each split.
        request: what is wanted. Without a geometry all pictures must have the size of the first one.

    Raises:
        UserError: a file is damaged, differs from the others, or has no such columns; or both the files and the
            operator name the classes (code "conflict").

    """
    source, opened = str(request.place), _KINDS[kind]
    person = None if request.group_by is None else request.group_by.column
    with opened(found.get("train", next(iter(found.values())))[0]) as file:
        schema = file.schema
    image = image_column(schema, source)
    if person is not None:
        columns.chosen(schema, person, columns.is_key, "integers or texts", "group_by", source)
    label = columns.label_column(schema, request.label_column, columns.is_key, "integers or texts", source, person)
    names = hub_class_names(schema.metadata, label)
    if names and request.classes:
        raise UserError(
            f"The files of '{source}' name their classes themselves.",
            f"Leave out {parameter('classes')}.",
            code="conflict",
            parameter="classes",
            path=source,
        )
    files = {split: _listed(opened, paths, image, label, person, request) for split, paths in found.items()}
    known = labelled({split: each.labels for split, each in files.items()}, names or request.classes)
    splits = {
        role: encoded_split(
            known.labels[split],
            files[split].pictures,
            request.preparation,
            classes=names or (),
            entries=files[split].entries,
            name=files[split].pictures.called,
            keys=files[split].keys,
        )
        for role, split in known.used.items()
    }

    def values(name: str) -> Iterator[object]:
        for split in known.used.values():
            for path in found[split]:
                with opened(path) as file:
                    yield from columns.values_in(file.column(name))

    def noticed() -> str | None:
        name = column_of({name: values(name) for name in columns.seeming(schema, image, label)})
        return None if name is None else f"column:{name}"

    origin = "data set" if names else known.origin
    return ImageSet(kind, known.classes, splits, origin, known.renumbered, noticed=noticed)


def pictures_in(kind: str, paths: list[Path], source: str) -> Pictures:
    """The pictures of some files, without their labels. source: what the user calls them. Raises UserError as
    `open_tables`.
    """
    image, groups = None, list[Group]()
    for path in paths:
        with _KINDS[kind](path) as file:
            image = image or image_column(file.schema, source)
            columns.same(file.schema, image, _holds_bytes, path)
            groups += file.groups(image)
    return Pictures(groups)


def _listed(opened: Opened, paths: list[Path], image: str, label: str, person: str | None, request: Request) -> _Listed:
    """List the files of a split, and read their labels."""
    groups, entries = list[Group](), list[Entry]()
    labels, keys = list[Given](), list[Keys]()
    for done, path in enumerate(paths, 1):
        with opened(path) as file:
            columns.same(file.schema, image, _holds_bytes, path)
            labels.append(_labels(file, label, path))
            if person is not None:
                columns.same(file.schema, person, columns.is_key, path)
                keys.append(columns.keys_in(file.column(person), str(path), person))
            groups += file.groups(image)
            entries.append(Entry(path.name, path.stat().st_size, file.digest(image, label, labels[-1])))
        if request.progress is not None:
            request.progress("Listing", done, len(paths))
    entries += entries_of((file for group in groups for file in group.files.values()), paths[0].parent)
    numbers = [part for part in labels if isinstance(part, np.ndarray)]
    given: Given = np.concatenate(numbers) if len(numbers) == len(labels) else [y for part in labels for y in part]
    return _Listed(Pictures(groups), given, entries, joined(keys) if keys else None)


def _labels(file: Parquet | Arrow, label: str, path: Path) -> Given:
    """The labels of a file: names of classes, None where there is none; or numbers."""
    if columns.is_text(columns.same(file.schema, label, columns.is_key, path)):
        return list(columns.values_in(file.column(label)))
    parts = [np.zeros(0, np.int64)]
    for part in file.column(label):
        if part.null_count:
            raise UserError(
                f"'{path}' has labels in '{label}' that are not integers. {GUARDED}",
                "Correct them: every label must be an integer, or the name of a class.",
                code="bad-record",
                path=str(path),
                column=label,
            )
        # A number beyond int64 becomes a negative one, which no class has.
        parts.append(columns.integers(part, safe=False))
    return np.concatenate(parts)


def image_column(schema: Any, source: str) -> str:
    """The column of pictures. UserError if there is none, or more than one."""
    found = [field.name for field in schema if _holds_bytes(field.type)]
    if len(found) != 1:
        raise UserError(
            f"'{source}' has {'no column' if not found else f'several columns {found}'} of pictures.",
            "One column must be a struct of 'bytes' and 'path', as the Hugging Face hub writes images. "
            "If the files hold features and not pictures, use 'dpfc import'.",
            code="conflict" if found else "missing",
            path=source,
            known=found,
        )
    return str(found[0])


def _holds_bytes(kind: Any) -> bool:
    at = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))
