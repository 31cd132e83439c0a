"""Files of digests: which records a feature set has, as far as `sources.digests` can tell them apart.

Digests depend on records: whoever has a picture can see whether it was in the set. So the files are for their owner
alone (mode 0600), as shards are. One lies in the folder of the set, and a copy of it beside the ledger, which outlives
the set. Nothing else has digests: no head, no card, no fact of a ledger, no output.

A file is one line of JSON (the kind, the number and the SHA-256 of the digests) and the digests of all records in
ascending order. It is checked before it is used. One that does not pass is refused and never mended.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np

from dpfc_cli import files
from dpfc_cli.errors import UserError, damaged, quoted
from dpfc_cli.reading import unread
from dpfc_cli.schema import among, closed, fault, test, whole
from dpfc_cli.sources.digests import NONE, SIZE, Digests, Kind

FILE = "records.digests"
"""The file in the folder of a set."""
NOTE = ".digests"
"""The end of the name of the digests of one shard, beside it. They are there while the set is being made."""
_LONGEST = 1024
_HEADER = closed(
    {
        "kind": among(get_args(Kind)),
        "count": whole(0),
        "sha256": test(lambda value: type(value) is str and len(value) == 64),
    }
)


def write(path: Path, kind: Kind, digests: Digests) -> None:
    """Write a file of digests, or leave what was there. Raises OSError."""
    data = np.sort(digests).astype("<u8", copy=False).tobytes()
    header = {"kind": kind, "count": len(digests), "sha256": hashlib.sha256(data).hexdigest()}
    files.replace(path, (json.dumps(header).encode() + b"\n", data), mode=0o600)


def read(path: Path) -> tuple[str, Digests] | None:
    """The kind of the digests in a file, and the digests, in ascending order. None if there is no file. UserError: the
    file cannot be read, or it is damaged.
    """
    try:
        files.check_plain(path)
        with path.open("rb") as file:
            header, data = file.readline(_LONGEST), file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unread(path, error, wrong="unreadable") from error
    try:
        said = files.json_of(header)
        wrong = fault(said, _HEADER)
        if wrong is not None or (said["count"] * SIZE, said["sha256"]) != (len(data), hashlib.sha256(data).hexdigest()):
            raise ValueError(wrong or "digests")
    except ValueError as error:
        raise _damaged(path) from error
    return said["kind"], np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def copy(source: Path, path: Path) -> None:
    """Copy a file of digests, for its owner alone. Raises OSError."""
    files.replace(path, source.read_bytes(), mode=0o600)


def common(one: Path, other: Path) -> int:
    """How many different records two files of digests have in common; 0 where nothing can be told. UserError: a file
    cannot be read, or it is damaged.
    """
    first, second = read(one), read(other)
    if first is None or second is None or first[0] != second[0]:
        return 0
    both = np.intersect1d(first[1], second[1])
    return int((both != NONE).sum())


def noted(path: Path, rows: int) -> Digests | None:
    """The digests in a note beside a shard; None if there is none. UserError if it has another size."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) != rows * SIZE:
        raise _damaged(path)
    return np.frombuffer(data, "<u8").astype(np.uint64)


def note(path: Path, parts: Sequence[Digests]) -> None:
    """Write the digests of a shard beside it. They count once the shard is finished. Raises OSError."""
    files.replace(path, np.concatenate(parts).astype("<u8").tobytes(), mode=0o600)


def _damaged(path: Path) -> UserError:
    return damaged(
        f"{quoted(path)} is damaged. It says which records a feature set has.",
        "Put it back from a backup. If there is none, delete it: nothing then tells whether a record is in two "
        "populations.",
    )
