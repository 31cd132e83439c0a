"""Arrow streams of pictures, as `save_to_disk` of Hugging Face datasets writes them, read with PyArrow.

A file is mapped into memory, and its batches of records are slices of it. So a set may be larger than memory, and what
a file declares can take no more than the file has: every offset in a batch is checked against the file's own bytes
(`validate`), and a batch that says that it is compressed is refused before it is expanded.
"""

import hashlib
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.images.memory import check_size
from dpfc_cli.images.picture_columns import AGAIN, Columns, check_image, check_person, has_paths
from dpfc_cli.images.sets import Entry, Records
from dpfc_cli.images.tables import Listed, check_labels
from dpfc_cli.sources.groups import Rule, keys_of
from dpfc_cli.sources.key_columns import values_of
from dpfc_cli.sources.reading import readable

_DICTIONARY, _BATCH = 2, 3
"""Kinds of messages in a stream (MessageHeader in Arrow's Message.fbs)."""
_HEADER_TYPE, _HEADER, _DATA, _COMPRESSION = 1, 2, 1, 3
"""The places of fields in tables there: Message.header_type, Message.header, DictionaryBatch.data and
RecordBatch.compression."""

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends a stream."""


class RecordBatches:
    """Pictures in the batches of several files.

    Args:
        paths: the file of each batch.
        pictures: the bytes of the pictures of each batch, as slices of the files. There are b of them.
        starts: the first record of each batch, and the end of the last one, (b + 1,).
        records: the records that are wanted, (n,); all if None.

    """

    def __init__(
        self, paths: list[Path], pictures: list[Any], starts: NDArray[np.int64], records: Records | None = None
    ) -> None:
        self._paths, self._pictures, self._starts = paths, pictures, starts
        self._records = np.arange(starts[-1]) if records is None else records
        # The first record of each file: of a file with several batches, that of the first one.
        self._first = {path: int(starts[i]) for i, path in reversed(list(enumerate(paths)))}

    def __len__(self) -> int:
        return len(self._records)

    def name(self, i: int) -> str:
        path, row = self.place(i)
        return f"{path}: row {row}"

    def called(self, i: int) -> str:
        """The place of a picture, with its file's name. It stays if the file is moved."""
        path, row = self.place(i)
        return f"{path.name}/{row}"

    def read(self, i: int) -> bytes:
        record = int(self._records[i])
        batch = self._batch(record)
        data = self._pictures[batch][record - int(self._starts[batch])]
        if not data.is_valid:
            # The decoder refuses an empty picture.
            return b""
        check_size(len(data.as_buffer()))
        return bytes(data.as_buffer())

    def only(self, records: Records) -> "RecordBatches":
        return RecordBatches(self._paths, self._pictures, self._starts, self._records[records])

    def _batch(self, record: int) -> int:
        return int(np.searchsorted(self._starts, record, "right")) - 1

    def place(self, i: int) -> tuple[Path, int]:
        """The file of a picture, and the number of its row there."""
        record = int(self._records[i])
        path = self._paths[self._batch(record)]
        return path, record - self._first[path]


def schema_of(path: Path) -> Any:
    """The schema of a file. UserError if it cannot be read."""
    with _readable(path):
        schema = pa.ipc.open_stream(pa.memory_map(str(path))).schema
        # Names of columns that are no UTF-8 fail when they are first looked at.
        _ = schema.names
        return schema


def listed(paths: list[Path], columns: Columns, group_by: Rule | None) -> Listed:
    """List the files of a split, and read their labels.

    Raises:
        UserError: a file cannot be read, or differs from the others.

    """
    found = _Found(columns.image)
    labels: list[Any] = []
    persons: list[object] = []
    entries = []
    for path in paths:
        with _readable(path):
            digest = hashlib.sha256()
            for batch in found.add(path):
                y = batch.column(columns.label)
                check_labels(y, path, columns.label)
                values, codes = _values(y)
                labels += [None if code is None else values[code] for code in codes]
                if columns.person is not None:
                    check_person(batch.schema, columns.person, str(path))
                    persons += values_of(batch.column(columns.person))
                # The sizes of the pictures tell one source from another one with the same labels.
                digest.update(repr((values, codes)).encode() + np.asarray(found.sizes_of_last).tobytes())
            entries.append(Entry(path.name, path.stat().st_size, digest.hexdigest()))
    pictures = found.pictures()
    keys = None
    if group_by is not None:
        keys = keys_of(persons, str(paths[0].parent), pictures.called, group_by.remedy)
    return Listed(pictures, labels, entries, keys)


def _values(column: Any) -> tuple[list[Any], list[int | None]]:
    """The values of a column, and for each row the place of its own. A text that is repeated is held once."""
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_pylist()


def values_in(path: Path, column: str, image: str) -> Iterator[object]:
    """The values of a column of a file; nothing if it has no such column. image: the column of pictures.

    Raises:
        UserError: the file cannot be read.

    """
    with _readable(path):
        for batch in _Found(image).add(path):
            if column in batch.schema.names:
                yield from values_of(batch.column(column))


def pictures_in(paths: list[Path], image: str) -> RecordBatches:
    """The pictures of some files, without their labels. image: their column. Raises UserError as `listed`."""
    found = _Found(image)
    for path in paths:
        with _readable(path):
            for _ in found.add(path):
                pass
    return found.pictures()


class _Found:
    """The batches of files, one file after the other. sizes_of_last: of the pictures of the last batch, in bytes."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._paths: list[Path] = []
        self._pictures: list[Any] = []
        self._rows = [0]
        self.sizes_of_last: Any = ()

    def add(self, path: Path) -> Iterator[Any]:
        """Add the batches of a file. Yields each of them, checked."""
        source = pa.memory_map(str(path))
        source.seek(max(0, source.size() - len(_END)))
        if source.read() != _END:
            # Without it a file that was cut off behind a batch would look complete.
            raise ValueError("it has no mark at its end, so it was cut off or is no stream")
        source.seek(0)
        for message in pa.ipc.MessageReader.open_stream(source):
            if _is_compressed(message.metadata.to_pybytes()):
                raise UserError(
                    f"'{path}' is compressed, and dpfc reads Arrow in place.",
                    "Write it without compression, as save_to_disk does.",
                    code="unsupported",
                    path=str(path),
                )
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        check_image(reader.schema, self._image, path)
        for batch in reader:
            # Offsets that lead out of the batch would be followed otherwise.
            batch.validate(full=True)
            image = batch.column(self._image)
            data = image.field("bytes")
            if has_paths(reader.schema, self._image) and data.null_count:
                _refuse_paths(image, path)
            self.sizes_of_last = pc.binary_length(data).fill_null(0).to_numpy(zero_copy_only=False)
            self._paths.append(path)
            self._pictures.append(data)
            self._rows.append(batch.num_rows)
            yield batch

    def pictures(self) -> RecordBatches:
        return RecordBatches(self._paths, self._pictures, np.cumsum(self._rows))


def _refuse_paths(image: Any, path: Path) -> None:
    """Raise UserError for a row that has no bytes, but names a file."""
    named = image.filter(image.field("bytes").is_null()).field("path").drop_null()
    if len(named):
        raise UserError(
            f"'{path}' does not hold all its pictures, but names files such as '{named[0].as_py()}'. {GUARDED}",
            "Write it with the pictures in it: map the data set with datasets.table.embed_table_storage before "
            "save_to_disk.",
            code="missing",
            path=str(path),
        )


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message says that its buffers are compressed. ValueError if the message is damaged.

    PyArrow expands buffers before it can be asked how large they are. The metadata is a flatbuffer: each table begins
    with the distance to a list of the places of its fields.
    """
    try:
        message = struct.unpack_from("<I", metadata, 0)[0]
        place = _field(metadata, message, _HEADER_TYPE)
        kind = 0 if place is None else metadata[place]
        if kind not in (_DICTIONARY, _BATCH):
            return False
        batch = _table(metadata, message, _HEADER)
        if batch is not None and kind == _DICTIONARY:
            batch = _table(metadata, batch, _DATA)
        return batch is not None and _field(metadata, batch, _COMPRESSION) is not None
    except (struct.error, IndexError) as error:
        raise ValueError("a message in it is damaged") from error


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a field of a table; None if it has none."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", data, fields)[0]:
        return None
    offset = struct.unpack_from("<H", data, fields + 4 + 2 * number)[0]
    return table + offset if offset else None


def _table(data: bytes, table: int, number: int) -> int | None:
    """The place of a table in a field of another one."""
    place = _field(data, table, number)
    return None if place is None else place + int(struct.unpack_from("<I", data, place)[0])


def _readable(path: Path) -> AbstractContextManager[None]:
    return readable(path, "a stream of Arrow", AGAIN, pa.ArrowException)
