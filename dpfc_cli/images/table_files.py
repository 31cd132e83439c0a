"""Files with a picture in each row: parquet, and Arrow streams as `save_to_disk` of Hugging Face datasets writes them.

An Arrow file is mapped into memory, and its batches are slices of it. So a set may be larger than memory, and what a
file declares can take no more than the file has: every offset in a batch is checked against the file's own bytes
(`validate`), and a batch that says that it is compressed is refused before it is expanded.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.files import named_twice
from dpfc_cli.images.rows import (
    Group,
    bytes_of,
    elsewhere,
    names_in,
    read_group,
    refuse_giant,
    refuse_more_rows_than_bytes,
)
from dpfc_cli.images.sets import Entry, Given
from dpfc_cli.memory import check_fits
from dpfc_cli.sources.columns import AGAIN, column_of, encoded, parquet, rows_of
from dpfc_cli.sources.names import inside
from dpfc_cli.sources.reading import readable

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
