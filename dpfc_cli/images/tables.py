"""Pictures in parquet files, as the Hugging Face hub lays them out, read with PyArrow.

A column is a struct of `bytes` and perhaps `path`. Another one has the labels. What the integers mean says the
`ClassLabel` in the schema's `huggingface` metadata, if there is one. It may be made of the names of folders, so it says
nothing of which classes there are: the operator asserts them. A row that names a file in place of the bytes is refused:
a table may come from somebody else.

The row groups in memory are those that the threads are reading: three, or more if they are small. (The hub writes row
groups of 100 to 1,000 pictures.)
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpfc_cli.annotations import columns
from dpfc_cli.annotations import person_hints as persons
from dpfc_cli.annotations.classes import Given, coded, hub_class_names
from dpfc_cli.annotations.columns import parquet, rows_of
from dpfc_cli.annotations.split_files import rows_by_split, split_column
from dpfc_cli.errors import GUARDED, UserError, conflict, counted, missing, quoted, secret
from dpfc_cli.images.pictures import Records
from dpfc_cli.images.prefetch import PIECE
from dpfc_cli.images.sets import Entry, ImageSet, Listed, Request, Unlabelled, image_set
from dpfc_cli.memory import check_fits, free_memory
from dpfc_cli.threads import cores

LARGEST_GROUP = 2 << 30
"""Bytes of the largest row group that is read."""
HELD = 512 << 20
"""The least bytes of pictures that are held at once, if they are wanted in another order than that of the file."""
SPAN = 4 * PIECE * cores()
"""More pictures than all threads read at one moment. So many are kept in memory, in whole row groups."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The pictures of a row group.

    Attributes:
        path: the file.
        number: of the row group.
        image: the column of pictures.
        first: the number of its first row in the file.
        rows: how many it says that it has.
        size: the bytes of all its columns, as the file says.

    """

    path: Path
    number: int
    image: str
    first: int
    rows: int
    size: int


class TablePictures:
    """Pictures in the row groups of several files.

    They are read in windows. When the first picture of a window is wanted, all are read, each row group once. A window
    is a row group, or what is wanted of it, and three are held. If pictures are wanted in an order of their own, such
    as person by person, two windows are held. Each then has about an eighth of the free memory, or `HELD` bytes if that
    is more. Several are held because threads work at the end of one and at the beginning of the next.
    """

    def __init__(self, groups: list[Group], records: Records | None = None) -> None:
        """records: those that are wanted, in the order that is wanted, (n,); all if None."""
        self._groups = groups
        self._starts = np.cumsum([0, *(group.rows for group in groups)])
        n = int(self._starts[-1])
        self._records = np.arange(n) if records is None else records
        ordered = not (np.diff(self._records) < 0).any()
        self._windows, self._least, self._most = 3, SPAN, float("inf")
        # The first picture of each window, and the end of the last one.
        self._bounds = np.unique(np.searchsorted(self._records, self._starts))
        if not ordered:
            self._windows, self._least, self._most = 2, 0, max(HELD, free_memory() / 8)
            mean = sum(group.size for group in groups) / n
            span = max(1, int(min(self._most / max(mean, 1), len(self._records))))
            self._bounds = np.append(np.arange(0, len(self._records), span), len(self._records))
        self._kept: dict[tuple[int, int], list[bytes]] = {}
        self._lock = Lock()

    def __reduce__(self) -> tuple[type["TablePictures"], tuple[list[Group], Records]]:
        """To another process goes what is wanted, and nothing that was read."""
        return TablePictures, (self._groups, self._records)

    def __len__(self) -> int:
        return len(self._records)

    def name(self, i: int) -> str:
        group, row = self._at(i)
        return f"{group.path.name}/{group.first + row}"

    def title(self, i: int) -> str:
        group, row = self._at(i)
        return f"{group.path}: row {group.first + row}"

    def only(self, records: Records) -> "TablePictures":
        return TablePictures(self._groups, self._records[records])

    def read(self, i: int) -> bytes:
        window = self._window(i)
        if (held := self._kept.get(window)) is None:
            # One thread reads a window. The others that need it wait, and then find it.
            with self._lock:
                while (held := self._kept.get(window := self._window(i))) is None:
                    self._fill(*window)
        return held[i - window[0]]

    def _window(self, i: int) -> tuple[int, int]:
        """The first picture of the window that picture i is in, and the end of the window."""
        bounds = self._bounds
        at = int(np.searchsorted(bounds, i, "right"))
        return int(bounds[at - 1]), int(bounds[at])

    def _at(self, i: int) -> tuple[Group, int]:
        record = int(self._records[i])
        number = int(np.searchsorted(self._starts, record, "right")) - 1
        return self._groups[number], record - int(self._starts[number])

    def _fill(self, start: int, stop: int) -> None:
        """Read a window. Or halve all windows, if it has more bytes than two should have."""
        while len(self._kept) >= self._windows and sum(map(len, self._kept.values())) > self._least:
            del self._kept[next(iter(self._kept))]
        wanted = self._records[start:stop]
        groups = np.searchsorted(self._starts, wanted, "right") - 1
        # The decoder refuses an empty picture.
        held, size = [b""] * len(wanted), 0
        for number in np.unique(groups).tolist():
            places = np.flatnonzero(groups == number)
            own = pa.array(wanted[places] - self._starts[number])
            for place, data in zip(places.tolist(), _bytes_in(self._groups[number]).take(own).to_pylist(), strict=True):
                held[place] = data or b""
                size += len(held[place])
            if size > 2 * self._most and len(held) > 1:
                self._bounds = np.unique(np.append(self._bounds, (self._bounds[:-1] + self._bounds[1:]) // 2))
                self._kept.clear()
                return
        self._kept[start, stop] = held


# Files


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    """A parquet file of pictures, for as long as a block lasts. UserError, also in the block, if it cannot be read."""
    with parquet(path) as file:
        rows, size = max(sum(rows_of(file)), file.metadata.num_rows), path.stat().st_size
        if rows > size:
            # A repeated label takes no bytes, so a file of 1 kB may declare billions of records. Pictures take some.
            raise ValueError(f"it declares {counted(rows, 'record')} in {counted(size, 'byte')}")
        yield file


def _column(file: pq.ParquetFile, path: Path, name: str) -> Iterator[pa.Array]:
    """The values of a column, part by part; nothing if there is no such column."""
    check_fits(path, f"'{name}'", 8 * sum(rows_of(file)), copies=4)
    return columns.column_of(file, path, name)


def _groups(file: pq.ParquetFile, path: Path, image: str) -> Iterator[Group]:
    first = 0
    for number, rows in enumerate(rows_of(file)):
        size = file.metadata.row_group(number).total_byte_size
        _refuse_giant(size, path)
        yield Group(path=path, number=number, image=image, first=first, rows=rows, size=size)
        first += rows


def _footer(path: Path) -> bytes:
    """The footer, which holds each column's place and extremes, and so tells a file from others of its name."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little")
        file.seek(max(size - 8 - footer, 0))
        return file.read(footer + 8)


def _bytes_in(group: Group) -> pa.Array:
    """The bytes of the pictures of a row group, null where there are none."""
    with parquet(group.path) as file:
        pictures = _read_group(file, group)
        fields, kind = pictures.flatten(), pictures.type
        data, at = fields[kind.get_field_index("bytes")], kind.get_field_index("path")
        if at >= 0 and data.null_count:
            # Never a null record: the picture is there, elsewhere.
            for name in fields[at].filter(pc.and_(data.is_null(), fields[at].is_valid())):
                raise missing(
                    f"{quoted(group.path)} does not hold all its pictures, but names files such as "
                    f"{secret(name.as_py())}. {GUARDED}",
                    "Write it with the pictures in it: with Hugging Face datasets, map the data set with "
                    "datasets.table.embed_table_storage.",
                )
        return data


def _read_group(file: pq.ParquetFile, wanted: Group) -> pa.Array:
    """The pictures of a row group, with their paths if they have some.

    A picture that is repeated may be stored once. So a small row group may expand to any size, and its declared size
    says nothing. Therefore it is read in batches that cannot be larger than a row group may be, and they are counted.
    """
    path, image, group = wanted.path, wanted.image, file.metadata.row_group(wanted.number)
    _refuse_giant(group.total_byte_size, path)
    most = max(1, min(group.num_rows, LARGEST_GROUP // max(1, group.total_byte_size)))
    parts, size = [], 0
    for batch in file.iter_batches(most, row_groups=[wanted.number], columns=[f"{image}.bytes", f"{image}.path"]):
        parts.append(batch.column(0))
        size += parts[-1].nbytes
        _refuse_giant(size, path)
    if sum(map(len, parts)) != wanted.rows:
        # Pictures would get the labels of others.
        raise ValueError(f"its row group {wanted.number} has other pictures than the {wanted.rows:,} that it says")
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _refuse_giant(size: int, path: Path) -> None:
    if size > LARGEST_GROUP:
        raise UserError(
            f"{quoted(path)} has a row group of {size / 1e9:.1f} GB. dpfc holds row groups in memory.",
            "Write the file again with smaller row groups: pyarrow's write_table(…, row_group_size=1000).",
            code="memory",
        )


# Sets


def open_tables(found: Mapping[str, list[Path]], request: Request) -> ImageSet:
    """The set of pictures in parquet files. found: the files of each split. UserError: a file is damaged, differs from
    the others, or has no such columns.
    """
    source = str(request.place)
    person = None if request.group_by is None else request.group_by.column
    with _opened(found.get("train", next(iter(found.values())))[0]) as file:
        schema = file.schema_arrow
    image = image_column(schema, source)
    if person is not None:
        columns.chosen(schema, person, columns.is_key, "integers or texts", "group_by", source)
    label = columns.label_column(schema, request.label_column, columns.is_label, "labels", source, person)
    names = hub_class_names(schema.metadata, label)
    for each in request.subgroups:
        columns.chosen(schema, each, columns.is_label, "subgroups", "subgroups", source)
    others = [each for each in schema.names if each not in (image, label, person, *request.subgroups)]
    remarks = (f"Left out: {counted(len(others), 'column')} ({', '.join(others[:20])}).",) if others else ()

    def values(column: str, *splits: str) -> Iterator[object]:
        for split in splits:
            for path in found[split]:
                with _opened(path) as file:
                    if column == person:
                        columns.same(file.schema_arrow, column, columns.is_key, path)
                    yield from columns.values_in(_column(file, path, column))

    in_column = split_column(others)
    if in_column and "train" in found and set(rows_by_split(values(in_column, "train"), source)) != {"train"}:
        raise conflict(
            f"{quoted(source)} has a column '{in_column}' that names several splits.",
            "Write a file for each split, and begin its name with the split's.",
        )

    def noticed() -> str | None:
        seeming = persons.column_of({each: values(each, *found) for each in columns.seeming(schema, image, label)})
        return None if seeming is None else f"column:{seeming}"

    listed = dict[str, Listed]()
    for split, paths in found.items():
        groups, entries, labels = list[Group](), list[Entry](), list[Given]()
        for done, path in enumerate(paths, 1):
            with _opened(path) as file:
                columns.same(file.schema_arrow, image, _holds_bytes, path)
                labels.append(own := _labels(file, label, path))
                groups += _groups(file, path, image)
                digest = hashlib.sha256(_footer(path))
            digest.update(own.tobytes() if isinstance(own, np.ndarray) else json.dumps(own).encode())
            entries.append(Entry(path.name, path.stat().st_size, digest.hexdigest()))
            if request.progress is not None:
                request.progress("Listing", done, len(paths))
        numbers = [part for part in labels if isinstance(part, np.ndarray)]
        listed[split] = Listed(
            labels=coded(
                np.concatenate(numbers) if len(numbers) == len(labels) else [y for part in labels for y in part], names
            ),
            pictures=TablePictures(groups),
            entries=entries,
            classes=names or (),
            persons=None if person is None else values(person, split),
            subgroups={each: values(each, split) for each in request.subgroups},
        )
    return replace(image_set("parquet", listed, request, also=names or (), remarks=remarks), noticed=noticed)


def unlabelled_in(paths: list[Path], source: str) -> Unlabelled:
    """The pictures of some files, without their labels, called FILE/ROW. source: what the user calls them. Raises
    UserError as `open_tables`.
    """
    image, groups = None, list[Group]()
    for path in paths:
        with _opened(path) as file:
            image = image or image_column(file.schema_arrow, source)
            columns.same(file.schema_arrow, image, _holds_bytes, path)
            groups += _groups(file, path, image)
    return Unlabelled(TablePictures(groups))


def _labels(file: pq.ParquetFile, label: str, path: Path) -> Given:
    """The labels of a file, None where there is none; or integers, −1 where there is none."""
    if not columns.is_integer(columns.same(file.schema_arrow, label, columns.is_label, path)):
        return list(columns.values_in(_column(file, path, label)))
    return np.concatenate([np.zeros(0, np.int64), *map(columns.integers, _column(file, path, label))])


def image_column(schema: pa.Schema, source: str) -> str:
    """The column of pictures. UserError if there is none, or more than one."""
    found = [field.name for field in schema if _holds_bytes(field.type)]
    if len(found) != 1:
        raise UserError(
            f"{quoted(source)} has {'no column' if not found else f'several columns {found}'} of pictures.",
            "One column must be a struct of 'bytes' and 'path', as the Hugging Face hub writes images. "
            "If the files hold features and not pictures, use 'dpfc import'.",
            code="conflict" if found else "missing",
        )
    return str(found[0])


def _holds_bytes(kind: pa.DataType) -> bool:
    at = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))
