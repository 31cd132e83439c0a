"""Files of digests: which records a feature set has, as far as `sources.digests` can tell them apart.

Digests depend on records: whoever has a picture can see whether it was in the set. So the files are for their owner
alone (mode 0600), as shards are. They lie in the folder of the set and beside its ledger, which outlives the set. Who
opens the first one to others opens the second one, too. Nothing else has digests: no head, no card, no row, no output.

A file has sections, one for each split. A section has the digests of its records in ascending order: one for each
record, so the size of the file depends on the number of records alone. Sections are compared block by block, so memory
is bounded. Each one is checked by its SHA-256 before it is used. A file that does not pass is refused and
never mended.
"""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, get_args

import numpy as np

from dpfc_cli import files
from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import unreadable
from dpfc_cli.schema import among, each, fault, record, test, text, whole
from dpfc_cli.sources.digests import NONE, SIZE, Digests, Kind

FILE = "records.digests"
"""The file in the folder of a set."""
NOTE = ".digests"
"""The end of the name of the digests of one shard, beside it. They are there while the set is being made."""
BLOCK = 1 << 20
"""Digests that are compared at a time."""
MOST_COMPARED = 63
"""Sections that are compared at a time. Each has a bit in an integer."""
_MAGIC = b"dpfc digests 1 "
_LONGEST = 1 << 20
"""Bytes of the longest header."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The digests of some records.

    records: the listing of their source. split: which of them. kind: what was digested. count: how many there are.
    sha256: of the digests.
    """

    records: str
    split: str
    kind: Kind
    count: int
    sha256: str

    @property
    def key(self) -> tuple[str, str, Kind]:
        """Which records these are, and how they were digested."""
        return self.records, self.split, self.kind


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A section in a file. start: its first byte."""

    path: Path
    start: int
    section: Section

    def read(self) -> Digests:
        """All digests, in ascending order. UserError where they are not those that were written."""
        with _reading(self.path), self.path.open("rb") as file:
            file.seek(self.start)
            found = np.fromfile(file, "<u8", self.section.count)
        if _sha256(found) != self.section.sha256:
            raise _damaged(self.path)
        return found.astype(np.uint64, copy=False)

    def check(self) -> None:
        """UserError where the digests are not those that were written."""
        digest, left = hashlib.sha256(), self.section.count * SIZE
        with _reading(self.path), self.path.open("rb") as file:
            file.seek(self.start)
            while left and (part := file.read(min(left, BLOCK * SIZE))):
                digest.update(part)
                left -= len(part)
        if digest.hexdigest() != self.section.sha256:
            raise _damaged(self.path)


def section_of(records: str, split: str, kind: Kind, digests: Digests) -> tuple[Section, Digests]:
    """A section and its digests, as they are stored."""
    ordered = np.sort(digests).astype("<u8", copy=False)
    return Section(records=records, split=split, kind=kind, count=len(ordered), sha256=_sha256(ordered)), ordered


def write(path: Path, sections: Sequence[tuple[Section, Digests]], mode: int = 0o600) -> None:
    """Write a file of these sections, or leave what was there. Raises OSError."""
    header = json.dumps([asdict(section) for section, _ in sections]).encode()
    first = _MAGIC + hashlib.sha256(header).hexdigest().encode() + b"\n" + header + b"\n"
    files.replace(path, (first, *(digests.data for _, digests in sections)), mode=mode)


_HEX = test(lambda value: type(value) is str and bool(re.fullmatch("[0-9a-f]{64}", value)))
_SECTIONS = each(
    record(
        {"records": text, "split": text, "kind": among(get_args(Kind)), "count": whole(1, 2**40), "sha256": _HEX},
    )
)


def stored_in(path: Path) -> tuple[Stored, ...]:
    """The sections of a file; none if there is no file.

    Their digests are not looked at yet: see `Stored.check`.

    Raises:
        UserError: the file cannot be read, or it is damaged.

    """
    with _reading(path):
        try:
            files.check_plain(path)
        except FileNotFoundError:
            return ()
        with path.open("rb") as file:
            first, header = file.readline(len(_MAGIC) + 65), file.readline(_LONGEST)
            size = os.fstat(file.fileno()).st_size
    header = header.removesuffix(b"\n")
    start = len(first) + len(header) + 1
    try:
        if first != _MAGIC + hashlib.sha256(header).hexdigest().encode() + b"\n":
            raise ValueError("its first line is another one")
        said = files.json_of(header)
        if (wrong := fault(said, _SECTIONS)) is not None:
            raise ValueError(f"'{wrong}' makes no sense")
        sections = [Section(**one) for one in said]
    except (ValueError, TypeError) as error:
        raise _damaged(path) from error
    found = list[Stored]()
    for section in sections:
        found.append(Stored(path=path, start=start, section=section))
        start += section.count * SIZE
    if start != size:
        raise _damaged(path)
    return tuple(found)


class _Run:
    """The digests of a section, block by block."""

    def __init__(self, file: BinaryIO, stored: Stored) -> None:
        self._file, self._at, self._left = file, stored.start, stored.section.count
        self._held = np.zeros(0, np.uint64)

    def block(self) -> Digests:
        """The next digests. None are left if there are none."""
        count = min(BLOCK, self._left)
        self._file.seek(self._at)
        found = np.fromfile(self._file, "<u8", count)
        self._at, self._left = self._at + count * SIZE, self._left - count
        return found.astype(np.uint64, copy=False)

    def up_to(self, last: np.uint64) -> Digests:
        """The next digests that are not larger than this one."""
        parts = [self._held]
        while self._left and (not len(parts[-1]) or parts[-1][-1] <= last):
            parts.append(self.block())
        held = parts[0] if len(parts) == 1 else np.concatenate(parts)
        at = int(np.searchsorted(held, last, "right"))
        self._held = held[at:]
        return held[:at]


def common(own: Stored, others: Sequence[Stored]) -> dict[int, int]:
    """Which of other sections have the records of a section.

    It takes memory for a few blocks, whatever the size of the sections.

    Args:
        own: the section.
        others: at most `MOST_COMPARED` other sections of the same kind.

    Returns:
        For each pattern how many different records have it. A pattern is a number: bit i says that others[i] has the
        record.

    Raises:
        UserError: a file is damaged.

    """
    for one in (own, *others):
        one.check()
    found = Counter[int]()
    with _reading(own.path), _runs([own, *others]) as (mine, *theirs):
        last = np.uint64(NONE)
        while len(block := mine.block()):
            # Different ones only. The last one of the block before counts as well, and so does `NONE`.
            different = block[np.diff(block, prepend=last) != 0]
            if not len(different):
                continue
            last = different[-1]
            patterns = np.zeros(len(different), np.uint64)
            for bit, run in enumerate(theirs):
                known = run.up_to(last)
                if len(known):
                    at = np.minimum(np.searchsorted(known, different), len(known) - 1)
                    patterns |= (known[at] == different).astype(np.uint64) << np.uint64(bit)
            for pattern, count in zip(*np.unique(patterns, return_counts=True), strict=True):
                found[int(pattern)] += int(count)
    return dict(found)


@contextmanager
def _runs(sections: Iterable[Stored]) -> Iterator[list[_Run]]:
    """Runs of several sections, each with a file of its own."""
    with ExitStack() as stack:
        yield [_Run(stack.enter_context(one.path.open("rb")), one) for one in sections]


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """UserError where the system does not let us read the file."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from error


def _sha256(digests: Digests) -> str:
    return hashlib.sha256(digests.data).hexdigest()


def _damaged(path: Path) -> UserError:
    return UserError(
        f"'{path}' is damaged. It says which records a feature set has in common with others.",
        "Put it back from a backup. If there is none, delete it: then nothing is known of these records, and what is "
        "not counted is named.",
        code="damaged",
        path=str(path),
    )


def noted(path: Path, rows: int) -> Digests | None:
    """The digests in a note beside a shard; None if there is none. ValueError if it has another size."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != rows * SIZE:
        raise ValueError("a note has another number of digests")
    return np.frombuffer(data, "<u8").astype(np.uint64)


def note(path: Path, parts: Sequence[Digests]) -> None:
    """Write the digests of a shard beside it. They count once the shard is finished. Raises OSError."""
    files.replace(path, np.concatenate(parts).astype("<u8").tobytes(), mode=0o600)
