"""Arrow streams of pictures. A stream is mapped into memory, and its batches are slices of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dpfc_cli.annotations.columns import AGAIN
from dpfc_cli.errors import quoted, unsupported
from dpfc_cli.files import bytes_in
from dpfc_cli.images.pictures import check_size
from dpfc_cli.images.tables import Group, bytes_of, elsewhere, names_in
from dpfc_cli.reading import readable

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends a stream."""


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
        for batch in self.batches:
            for name in names_in(batch.column(image)):
                raise elsewhere(self.path, name)
            one = partial(_picture, bytes_of(batch.column(image)))
            found.append(Group(path=self.path, first=first, rows=len(batch), one=one))
            first += len(batch)
        return found

    def fingerprint(self, image: str) -> bytes:
        """The sizes of the pictures."""
        sizes = (pc.binary_length(bytes_of(batch.column(image))).fill_null(0) for batch in self.batches)
        return b"".join(each.to_numpy(zero_copy_only=False).tobytes() for each in sizes)


def _picture(pictures: Any, row: int) -> bytes:
    picture = pictures[row]
    check_size(len(picture.as_buffer()) if picture.is_valid else 0)
    return picture.as_py() or b""


@contextmanager
def arrow_file(path: Path) -> Iterator[Arrow]:
    """An Arrow stream, for as long as a block lasts. UserError, also in the block, if it cannot be read."""
    with readable(path, "a stream of Arrow", AGAIN, pa.ArrowException):
        source = pa.memory_map(str(path))
        source.seek(max(0, source.size() - len(_END)))
        if source.read() != _END:
            # Without it a file that was cut off behind a batch would look complete.
            raise ValueError("it has no mark at its end, so it was cut off or is no stream")
        source.seek(0)
        mapped = source.read_buffer()
        reader = pa.ipc.open_stream(mapped)
        # Names of columns that are no UTF-8 fail when they are first looked at.
        _ = reader.schema.names
        batches = list[Any]()
        for batch in reader:
            parts = (part for column in batch.columns for part in column.buffers() if part is not None and part.size)
            if not all(0 <= part.address - mapped.address < mapped.size for part in parts):
                raise unsupported(
                    f"{quoted(path)} is compressed, and dpfc reads Arrow in place.",
                    "Write it without compression, as save_to_disk does.",
                )
            # Offsets that lead out of the batch would be followed otherwise.
            batch.validate(full=True)
            batches.append(batch)
        # Old versions of datasets write there alone what labels mean.
        info = path.with_name("dataset_info.json")
        said = {b"huggingface": b'{"info": %b}' % bytes_in(info)} if info.is_file() else {}
        yield Arrow(path, batches, reader.schema.with_metadata(said | (reader.schema.metadata or {})))
