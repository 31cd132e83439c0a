"""Sets of pictures in tables, parquet and what is like it, as the Hugging Face hub lays them out, read with PyArrow.

A column is a struct of `bytes` and perhaps `path`. Another one has the labels. What the integers mean says the
`ClassLabel` in the schema's `huggingface` metadata, if there is one. It may be made of the names of folders, so it says
nothing of which classes there are: the operator asserts them.

`Dataset.to_parquet` writes local pictures as paths without bytes. If the first row of a parquet file is such a one, all
rows must be so. The file must lie in the folder of the parquet file, or below it. A table may come from somebody else,
so it names no other files.

The row groups in memory are those that the threads are reading: three, or more if they are small. (The hub writes row
groups of 100 to 1,000 pictures.)
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfc_cli.annotations import columns
from dpfc_cli.annotations import person_hints as persons
from dpfc_cli.annotations.classes import Given, coded, hub_class_names
from dpfc_cli.annotations.columns import column_of, parquet, rows_of
from dpfc_cli.annotations.split_files import inside, refuse_twice, rows_by_split, split_column
from dpfc_cli.errors import GUARDED, UserError, conflict, counted, missing, quoted, secret
from dpfc_cli.images.pictures import Records, read_file
from dpfc_cli.images.prefetch import PIECE
from dpfc_cli.images.sets import Entry, ImageSet, Listed, Request, Unlabelled, image_set
from dpfc_cli.memory import check_fits, free_memory
from dpfc_cli.reading import readable
from dpfc_cli.threads import cores

LARGEST_GROUP = 2 << 30
"""Bytes of the largest row group that is read."""
HELD = 512 << 20
"""The least bytes of pictures that are held at once, if they are wanted in another order than that of the file."""
SPAN = 4 * PIECE * cores()
"""More pictures than all threads read at one moment. So many are kept in memory, in whole row groups."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The pictures of a row group of a parquet file, or of a batch of a stream."""

    path: Path
    first: int  # the number of its first row in the file
    rows: int  # how many it says that it has
    size: int = 0  # the bytes of all its columns, as the file says
    read: Callable[[], Any] | None = None  # reads the bytes of all its pictures, null where there are none
    one: Callable[[int], bytes] | None = None  # reads the picture of a row, where that needs no other one
    files: Sequence[Path] = ()  # the files that its rows name, if they hold no pictures


class TablePictures:
    """Pictures in the groups of several files.

    Pictures of parquet are read in windows. When the first picture of a window is wanted, all are read, each row group
    once. A window is a row group, or what is wanted of it, and three are held. If pictures are wanted in an order of
    their own, such as person by person, two windows are held. Each then has about an eighth of the free memory, or
    `HELD` bytes if that is more. Several are held because threads work at the end of one and at the beginning of the
    next.
    """

    def __init__(
        self, groups: list[Group], records: Records | None = None, called: Callable[[Path], str] | None = None
    ) -> None:
        """records: those that are wanted, in the order that is wanted, (n,); all if None. called: what a file is called
        in the names of its pictures; None: as it is.
        """
        self._groups, self._called = groups, called or (lambda path: path.name)
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

    def __len__(self) -> int:
        return len(self._records)

    def name(self, i: int) -> str:
        group, row = self._at(i)
        return f"{self._called(group.path)}/{group.first + row}"

    def title(self, i: int) -> str:
        group, row = self._at(i)
        return str(group.files[row]) if group.files else f"{group.path}: row {group.first + row}"

    def only(self, records: Records) -> "TablePictures":
        return TablePictures(self._groups, self._records[records], self._called)

    def read(self, i: int) -> bytes:
        group, row = self._at(i)
        if group.one is not None:
            return group.one(row)
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
            read = self._groups[number].read
            if read is None:
                continue
            places = np.flatnonzero(groups == number)
            own = pa.array(wanted[places] - self._starts[number])
            for place, data in zip(places.tolist(), read().take(own).to_pylist(), strict=True):
                held[place] = data or b""
                size += len(held[place])
            if size > 2 * self._most and len(held) > 1:
                self._bounds = np.unique(np.append(self._bounds, (self._bounds[:-1] + self._bounds[1:]) // 2))
                self._kept.clear()
                return
        self._kept[start, stop] = held


# Files


class TableFile(Protocol):
    """A file of pictures and other columns, as long as it is open."""

    @property
    def schema(self) -> Any: ...

    def column(self, name: str) -> Iterator[Any]:
        """The values of a column, part by part; nothing if there is no such column."""
        ...

    def groups(self, image: str) -> list[Group]:
        """Its pictures, which stand in this column."""
        ...

    def fingerprint(self, image: str) -> bytes:
        """What tells it from others of its name."""
        ...


Opens = Callable[[Path], AbstractContextManager[TableFile]]
"""Opens a file, for as long as a block lasts. UserError, also in the block, if it cannot be read."""


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
            size = self.file.metadata.row_group(number).total_byte_size
            _refuse_giant(size, self.path)
            if named:
                files = self._files(number, rows, image)
                one = partial(_file_of, files)
                found.append(Group(path=self.path, first=first, rows=rows, one=one, files=files))
            else:
                read = partial(_bytes_in, self.path, number, rows, image)
                found.append(Group(path=self.path, first=first, rows=rows, size=size, read=read))
            first += rows
        return found

    def _names_files(self, image: str) -> bool:
        """Whether the first row has no bytes and names a file."""
        if not sum(rows_of(self.file)):
            return False
        first = next(self.file.iter_batches(1, columns=[image]), None)
        if first is None:
            raise ValueError("it has no pictures, and says that it has some")
        return any(names_in(first.column(0)))

    def _files(self, number: int, rows: int, image: str) -> list[Path]:
        """The files that all rows of a row group name."""
        found = list[Path]()
        pictures = _read_group(self.file, self.path, number, rows, image)
        for name, data in zip(
            pictures.flatten()[pictures.type.get_field_index("path")], bytes_of(pictures), strict=True
        ):
            # Of a row with both, the first row would decide which is read, and so perhaps whether it is a null record.
            file = inside(self.path.parent, name.as_py()) if name.is_valid and not data.is_valid else None
            if file is None or not file.exists():
                raise elsewhere(self.path, name.as_py())
            found.append(file)
        return found

    def fingerprint(self, image: str) -> bytes:
        """The footer, which holds each column's place and extremes."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - 8, 0))
            footer = int.from_bytes(file.read(4), "little")
            file.seek(max(size - 8 - footer, 0))
            return file.read(footer + 8)


@contextmanager
def parquet_file(path: Path) -> Iterator[Parquet]:
    """A parquet file, for as long as a block lasts. UserError, also in the block, if it cannot be read."""
    with parquet(path) as file:
        rows, size = max(sum(rows_of(file)), file.metadata.num_rows), path.stat().st_size
        if rows > size:
            # A repeated label takes no bytes, so a file of 1 kB may declare billions of records. Pictures take some.
            raise ValueError(f"it declares {counted(rows, 'record')} in {counted(size, 'byte')}")
        yield Parquet(path, file, file.schema_arrow)


def _file_of(files: Sequence[Path], row: int) -> bytes:
    return read_file(files[row])


def _bytes_in(path: Path, number: int, rows: int, image: str) -> Any:
    """The bytes of the pictures of a row group, null where there are none."""
    with parquet(path) as file:
        pictures = _read_group(file, path, number, rows, image)
        for name in names_in(pictures):
            # This is never a null record: whether files are looked for depends on the first row.
            raise elsewhere(path, name)
        return bytes_of(pictures)


def _read_group(file: Any, path: Path, number: int, rows: int, image: str) -> Any:
    """The pictures of a row group with so many rows, with their paths if they have some.

    A picture that is repeated may be stored once. So a small row group may expand to any size, and its declared size
    says nothing. Therefore it is read in batches that cannot be larger than a row group may be, and they are counted.
    """
    group = file.metadata.row_group(number)
    _refuse_giant(group.total_byte_size, path)
    most = max(1, min(group.num_rows, LARGEST_GROUP // max(1, group.total_byte_size)))
    parts, size = [], 0
    for batch in file.iter_batches(most, row_groups=[number], columns=[f"{image}.bytes", f"{image}.path"]):
        parts.append(batch.column(0))
        size += parts[-1].nbytes
        _refuse_giant(size, path)
    if sum(map(len, parts)) != rows:
        # Pictures would get the labels of others.
        raise ValueError(f"its row group {number} has other pictures than the {rows:,} that it says")
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _refuse_giant(size: int, path: Path) -> None:
    if size > LARGEST_GROUP:
        raise UserError(
            f"{quoted(path)} has a row group of {size / 1e9:.1f} GB. dpfc holds row groups in memory.",
            "Write the file again with smaller row groups: pyarrow's write_table(…, row_group_size=1000).",
            code="memory",
        )


def bytes_of(pictures: Any) -> Any:
    """The bytes of pictures, null where there are none."""
    return pictures.flatten()[pictures.type.get_field_index("bytes")]


def names_in(pictures: Any) -> Iterator[str]:
    """The names of files in the rows that hold no bytes."""
    at, data = pictures.type.get_field_index("path"), bytes_of(pictures)
    if at >= 0 and data.null_count:
        names = pictures.flatten()[at]
        yield from names.filter(pc.and_(data.is_null(), names.is_valid())).to_pylist()


def elsewhere(path: Path, name: str | None) -> UserError:
    """The error for a table with pictures that are neither in it nor in its folder."""
    return missing(
        f"{quoted(path)} does not hold all its pictures, but names files such as {secret(name or 'in its first row')}. "
        f"{GUARDED}",
        "Write it with the pictures in it: with Hugging Face datasets, map the data set with "
        "datasets.table.embed_table_storage. Files that parquet names are read if they lie in its folder or below it, "
        "and if all rows name one and hold none.",
    )


# Sets


def open_tables(
    name: str, opened: Opens, found: Mapping[str, list[Path]], request: Request, remarks: tuple[str, ...] = ()
) -> ImageSet:
    """The set of pictures in tables.

    Args:
        name: of the data set.
        opened: opens a file of it.
        found: the files of each split.
        request: what the data set is opened with.
        remarks: as in `ImageSet`.

    Raises:
        UserError: a file is damaged, differs from the others, or has no such columns.

    """
    source = str(request.place)
    person = None if request.group_by is None else request.group_by.column
    with opened(found.get("train", next(iter(found.values())))[0]) as file:
        schema = file.schema
    image = image_column(schema, source)
    if person is not None:
        columns.chosen(schema, person, columns.is_key, "integers or texts", "group_by", source)
    label = columns.label_column(schema, request.label_column, columns.is_label, "labels", source, person)
    names = hub_class_names(schema.metadata, label)
    others = [each for each in schema.names if each not in (image, label, person)]
    if others:
        remarks += (f"Left out: {counted(len(others), 'column')} ({', '.join(others[:20])}).",)

    def values(column: str, *splits: str) -> Iterator[object]:
        for split in splits:
            for path in found[split]:
                with opened(path) as file:
                    if column == person:
                        columns.same(file.schema, column, columns.is_key, path)
                    yield from columns.values_in(file.column(column))

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
            with opened(path) as file:
                columns.same(file.schema, image, _holds_bytes, path)
                labels.append(_labels(file, label, path))
                groups += file.groups(image)
                digest = hashlib.sha256(file.fingerprint(image))
            own = labels[-1]
            digest.update(own.tobytes() if isinstance(own, np.ndarray) else json.dumps(own).encode())
            entries.append(Entry(path.name, path.stat().st_size, digest.hexdigest()))
            if request.progress is not None:
                request.progress("Listing", done, len(paths))
        named = [place for group in groups for place in group.files]
        for place in named:
            with readable(place, "a picture", "Remove it, and its row."):
                entries.append(Entry(os.path.relpath(place, paths[0].parent.absolute()), place.stat().st_size, ""))
        refuse_twice(named)
        numbers = [part for part in labels if isinstance(part, np.ndarray)]
        listed[split] = Listed(
            labels=coded(
                np.concatenate(numbers) if len(numbers) == len(labels) else [y for part in labels for y in part], names
            ),
            pictures=TablePictures(groups),
            entries=entries,
            classes=names or (),
            persons=None if person is None else values(person, split),
        )
    return replace(image_set(name, listed, request, also=names or (), remarks=remarks), noticed=noticed)


def unlabelled_in(
    opened: Opens, paths: list[Path], source: str, called: Callable[[Path], str] | None = None
) -> Unlabelled:
    """The pictures of some files, without their labels, called FILE/ROW. source: what the user calls them. called: as
    in `TablePictures`. Raises UserError as `open_tables`.
    """
    image, groups = None, list[Group]()
    for path in paths:
        with opened(path) as file:
            image = image or image_column(file.schema, source)
            columns.same(file.schema, image, _holds_bytes, path)
            groups += file.groups(image)
    return Unlabelled(TablePictures(groups, called=called))


def _labels(file: TableFile, label: str, path: Path) -> Given:
    """The labels of a file, None where there is none; or integers, −1 where there is none."""
    if not columns.is_integer(columns.same(file.schema, label, columns.is_label, path)):
        return list(columns.values_in(file.column(label)))
    return np.concatenate([np.zeros(0, np.int64), *map(columns.integers, file.column(label))])


def image_column(schema: Any, source: str) -> str:
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


def _holds_bytes(kind: Any) -> bool:
    at = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))
