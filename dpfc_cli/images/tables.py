"""Sets of pictures in tables, parquet or Arrow, as the Hugging Face hub lays them out.

A column is a struct of `bytes` and perhaps `path`. Another one has the labels: integers, or names of classes. What the
integers mean says the `ClassLabel` in the schema's `huggingface` metadata. If there is none, the operator asserts the
classes, or they are inferred.

A row of parquet without bytes may name a file by its path: `Dataset.to_parquet` writes such rows for local pictures.
The file must lie in the folder of the parquet file, or below it. A table may come from somebody else, so it names no
other files.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.files import named_twice
from dpfc_cli.images.dataset import Request
from dpfc_cli.images.encoded import encoded_split
from dpfc_cli.images.rows import (
    Group,
    Pictures,
    bytes_of,
    elsewhere,
    names_in,
    read_group,
    refuse_giant,
    refuse_more_rows_than_bytes,
)
from dpfc_cli.images.sets import Entry, ImageSet
from dpfc_cli.memory import check_fits
from dpfc_cli.sources import columns
from dpfc_cli.sources import noticed as persons
from dpfc_cli.sources.classes import Given, hub_class_names, labelled
from dpfc_cli.sources.columns import AGAIN, column_of, encoded, parquet, rows_of
from dpfc_cli.sources.groups import Keys, joined
from dpfc_cli.sources.reading import readable
from dpfc_cli.sources.split_files import inside

_HEADER, _DATA, _COMPRESSION = 2, 1, 3
"""The places of fields in messages of a stream (Message.fbs of Arrow): Message.header, DictionaryBatch.data and
RecordBatch.compression."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends a stream."""


@dataclass(frozen=True)
class Parquet:
    """A parquet file, as long as it is open."""

    path: Path
    file: Any
    schema: Any

    def column(self, name: str) -> Iterator[Any]:
        check_fits(self.path, f"'{name}'", 8 * sum(rows_of(self.file)), copies=4)
        return column_of(self.file, self.path, name)

    def groups(self, image: str) -> list[Group]:
        found, first, named = list[Group](), 0, self._names_files(image)
        for number, rows in enumerate(rows_of(self.file)):
            size, files = self.file.metadata.row_group(number).total_byte_size, dict[int, Path]()
            refuse_giant(size, self.path)
            for row, name in names_in(read_group(self.file, self.path, number, image)) if named else ():
                if (place := inside(self.path.parent, name)) is None or not place.exists():
                    raise elsewhere(self.path, name)
                files[row] = place
            found.append(
                Group(path=self.path, column=image, number=number, first=first, rows=rows, size=size, files=files)
            )
            first += rows
        return found

    def _names_files(self, image: str) -> bool:
        """Whether the first row holds no bytes, so that rows may name files by their path.

        If it holds its bytes, all others are taken to do so, and reading stops at one that does not. To look at all of
        them would be to read all pictures.
        """
        if self.schema.field(image).type.get_field_index("path") < 0 or not sum(rows_of(self.file)):
            return False
        first = next(self.file.iter_batches(1, columns=[f"{image}.bytes"]), None)
        if first is None:
            raise ValueError("it has no pictures, and says that it has some")
        return bool(bytes_of(first.column(0)).null_count)

    def digest(self, image: str, label: str, labels: Given) -> str:
        """Of the labels and the footer, which holds each column's place and extremes."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - 8, 0))
            footer = int.from_bytes(file.read(4), "little")
            file.seek(max(size - 8 - footer, 0))
            digest = hashlib.sha256(file.read(footer + 8))
        digest.update(labels.tobytes() if isinstance(labels, np.ndarray) else json.dumps(labels).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Arrow:
    """An Arrow stream."""

    path: Path
    batches: list[Any]
    schema: Any

    def column(self, name: str) -> Iterator[Any]:
        return (batch.column(name) for batch in self.batches if name in self.schema.names)

    def groups(self, image: str) -> list[Group]:
        found, first = list[Group](), 0
        for number, batch in enumerate(self.batches):
            for _, name in names_in(batch.column(image)):
                raise elsewhere(self.path, name)
            pictures = bytes_of(batch.column(image))
            found.append(
                Group(path=self.path, column=image, number=number, first=first, rows=len(batch), mapped=pictures)
            )
            first += len(batch)
        return found

    def digest(self, image: str, label: str, labels: Given) -> str:
        """Of the labels and of the sizes of the pictures."""
        digest = hashlib.sha256()
        for batch in self.batches:
            y = encoded(batch.column(label))
            sizes = pc.binary_length(bytes_of(batch.column(image))).fill_null(0).to_numpy(zero_copy_only=False)
            digest.update(repr((y.dictionary.to_pylist(), y.indices.to_pylist())).encode() + sizes.tobytes())
        return digest.hexdigest()


@contextmanager
def parquet_file(path: Path) -> Iterator[Parquet]:
    """A parquet file."""
    with parquet(path) as file:
        refuse_more_rows_than_bytes(max(sum(rows_of(file)), file.metadata.num_rows), path)
        yield Parquet(path, file, file.schema_arrow)


@contextmanager
def arrow_file(path: Path) -> Iterator[Arrow]:
    """An Arrow stream."""
    with readable(path, "a stream of Arrow", AGAIN, pa.ArrowException):
        source = pa.memory_map(str(path))
        source.seek(max(0, source.size() - len(_END)))
        if source.read() != _END:
            # Without it a file that was cut off behind a batch would look complete.
            raise ValueError("it has no mark at its end, so it was cut off or is no stream")
        source.seek(0)
        for message in pa.ipc.MessageReader.open_stream(source):
            if _is_compressed(message):
                raise UserError(
                    f"'{path}' is compressed, and dpfc reads Arrow in place.",
                    "Write it without compression, as save_to_disk does.",
                    code="unsupported",
                    path=str(path),
                )
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        # Names of columns that are no UTF-8 fail when they are first looked at.
        _ = reader.schema.names
        batches = list(reader)
        for batch in batches:
            # Offsets that lead out of the batch would be followed otherwise.
            batch.validate(full=True)
        yield Arrow(path, batches, reader.schema)


def _is_compressed(message: Any) -> bool:
    """Whether a message says that its buffers are compressed. ValueError if the message is damaged.

    PyArrow expands buffers before it can be asked how large they are. The metadata is a flatbuffer: each table begins
    with the distance to a list of the places of its fields.
    """
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        """The table in a field of a table; 0 if it has none."""
        fields = table - struct.unpack_from("<i", data, table)[0]
        known = 4 + 2 * number < struct.unpack_from("<H", data, fields)[0]
        offset = struct.unpack_from("<H", data, fields + 4 + 2 * number)[0] if known else 0
        return int(table + offset + struct.unpack_from("<I", data, table + offset)[0]) if offset else 0

    try:
        batch = field(struct.unpack_from("<I", data)[0], _HEADER) if "schema" not in message.type else 0
        if batch and message.type == "dictionary":
            batch = field(batch, _DATA)
        return bool(batch and field(batch, _COMPRESSION))
    except struct.error as error:
        raise ValueError("a message in it is damaged") from error


def entries_of(files: Iterable[Path], folder: Path) -> list[Entry]:
    """The entries of the files that rows name. UserError if one cannot be read, or would be two records."""
    entries, files = [], list(files)
    for file in files:
        with readable(file, "a picture", "Remove it, and its row."):
            entries.append(Entry(os.path.relpath(file, folder.absolute()), file.stat().st_size, ""))
    if (twice := named_twice(files)) is not None:
        raise UserError(
            f"Two rows name '{twice}', or it is there under two names. It would count as two records, and the "
            f"guarantee is for one. {GUARDED}",
            "Leave one of them.",
            code="conflict",
            path=str(twice),
        )
    return entries


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
        name = persons.column_of({name: values(name) for name in columns.seeming(schema, image, label)})
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
