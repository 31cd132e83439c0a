"""The answers of a training, kept on disk until its head is written. So a training that was stopped can go on.

An answer that was released is paid for, and differentially private. If a training is killed, what is lost is only what
is not on disk. So each answer is on disk before the method sees it. The same command finds the answers and the
training's row in the ledger. It gives the method the answers that are there, in place of new ones, and releases the
rest. Nothing is charged again.

**Never two answers to one release.** A second answer, with other noise, would tell more than was paid for. An answer is
written, synced to disk and marked as whole, and only then handed out. When a training goes on, what has no mark is
removed: nobody has seen it, so it may be drawn anew. An answer with a mark whose bytes have changed means that the disk
has failed. Then the training cannot go on. One process at a time holds the file.

The file lies beside the head that is to be, and its owner alone may read it. It is bound to the training by the row in
the ledger and by a digest of all that the training computes with. Whoever may write to the file could cut it off, and
draw answers again: it needs the same protection as the ledger.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.locks import claimed
from dpfc_cli.files import TEMPORARY, json_of, opened, sync
from dpfc_cli.training import ledger
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.ledger import Entry, Receipt
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Request
from dpfc_cli.version import __version__

SUFFIX = ".answers"
_LARGEST_HEADER = 2**24
_HEADER = ("training", "at", "head", "ledger")
_WHOLE = b"\n"
_LENGTHS = 8 + hashlib.sha256().digest_size
"""Bytes before each answer: its length, and its SHA-256."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A training that was charged and has no head.

    path: its answers. receipt: of its charge. answered: how many releases have an answer.
    """

    path: Path
    receipt: Receipt
    answered: int


class DamagedError(ValueError):
    """An answer that was handed out is not what it was."""


class Answers:
    """The answers of one training, in the order of its releases. They are this process's until `close`."""

    def __init__(self, path: Path, file: int) -> None:
        """Read the header. OSError, ValueError where it cannot be read.

        path: the file. file: a descriptor of it, which holds its lock.
        """
        self.path = path
        self._file: int | None = file
        head = os.pread(file, _LARGEST_HEADER, 0)
        self._end = head.index(_WHOLE) + 1
        self.header: Mapping[str, str] = json_of(head[: self._end])
        if not isinstance(self.header, dict) or not all(isinstance(self.header.get(name), str) for name in _HEADER):
            raise ValueError("it has another header")
        self._places: list[tuple[int, int]] = []

    def find(self) -> None:
        """Find the answers that are there. OSError; DamagedError where one that was handed out has changed."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        while self._end + _LENGTHS < size:
            about = _read(self._file, self._end, _LENGTHS)
            start, length = self._end + _LENGTHS, int.from_bytes(about[:8], "little")
            if start + length + 1 > size or _read(self._file, start + length, 1) != _WHOLE:
                break
            if hashlib.sha256(_read(self._file, start, length)).digest() != about[8:]:
                raise DamagedError(f"answer {len(self._places)} has changed")
            self._places.append((start, length))
            self._end = start + length + 1

    @property
    def answered(self) -> int:
        """How many releases have an answer."""
        return len(self._places)

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """The answer to a release; None if it has none yet. DamagedError where it has another shape."""
        if number >= len(self._places):
            return None
        assert self._file is not None
        start, length = self._places[number]
        found = np.frombuffer(_read(self._file, start, length), "<f8")
        if found.size != np.prod(shape, dtype=int):
            raise DamagedError(f"answer {number} is not of this training")
        return found.reshape(shape).astype(np.float64)

    def keep(self, number: int, answer: np.ndarray) -> None:
        """Keep the answer to the next release. It is on disk when this returns.

        Where the disk is full or fails, nothing is kept any more and the file is removed. The training is paid for, so
        it ends without.
        """
        if self._file is None:
            return
        if number != len(self._places):
            raise RuntimeError(f"release {number} would have a second answer, or those before it have none")
        data = np.ascontiguousarray(answer, "<f8").tobytes()
        start = self._end + _LENGTHS
        try:
            # What is left of an answer that nobody has seen.
            os.ftruncate(self._file, self._end)
            _write(self._file, self._end, len(data).to_bytes(8, "little") + hashlib.sha256(data).digest() + data)
            os.fsync(self._file)
            _write(self._file, start + len(data), _WHOLE)
            os.fsync(self._file)
        except OSError:
            self.remove()
            return
        self._places.append((start, len(data)))
        self._end = start + len(data) + 1

    def remove(self) -> None:
        """Remove the file: it is not needed any more, or cannot be kept."""
        with suppress(OSError):
            self.path.unlink()
            sync(self.path.parent)
        self.close()

    def close(self) -> None:
        """Let others have the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)


def _read(file: int, at: int, length: int) -> bytes:
    found = os.pread(file, length, at)
    while len(found) < length:
        more = os.pread(file, length - len(found), at + len(found))
        if not more:
            raise OSError("the file ends early")
        found += more
    return found


def _write(file: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while len(rest):
        written = os.pwrite(file, rest, at)
        at, rest = at + written, rest[written:]


def begun(temporary: Path, calibrated: Calibrated, entry: Entry, book: Path) -> Answers | None:
    """A new file for the answers of a training that is about to be charged. None if none can be kept there.

    Args:
        temporary: the file that keeps the head's place.
        calibrated: the training.
        entry: its row.
        book: its ledger.

    """
    path = temporary.with_suffix(SUFFIX)
    header = {
        "training": digest_of(calibrated, entry),
        "at": entry.at,
        "head": entry.head,
        "ledger": str(book.resolve()),
    }
    try:
        file = claimed(path)
        if file is None:
            return None
        os.ftruncate(file, 0)
        _write(file, 0, json.dumps(header).encode() + _WHOLE)
        os.fsync(file)
        sync(path.parent)
    except OSError:
        return None
    return Answers(path, file)


def digest_of(calibrated: Calibrated, entry: Entry) -> str:
    """A digest of all that a training computes with, beside the records. Trainings of one command have the same.

    Method, noise, unit, purpose and whose training it is are in the row. The row also names the records, and that
    stays there.
    """
    digest = hashlib.sha256()
    own = replace(entry, at="", head="", records="", persons=None)
    for part in (__version__, own, calibrated.options, calibrated.facts, calibrated.tuning, calibrated.before):
        _add(digest, part)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            digest.update(f"{field.name}=".encode())
            _add(digest, getattr(value, field.name))
    else:
        digest.update((json.dumps(value, sort_keys=True, default=repr) + ";").encode())


def unfinished(request: Request, calibrated: Calibrated, folder: Path, observer: Observer) -> Unfinished | None:
    """A training of the same command that was charged and has no head; None if there is none.

    Files of such trainings that were never charged, or that have their head, are removed.

    Args:
        request: what is wanted.
        calibrated: the training.
        folder: where its head will be.
        observer: told of a training that cannot go on.

    """
    if calibrated.claim != "private":
        return None
    book = ledger.ledger_path(request.features.folder)
    entry = entry_of(calibrated, request.features, "", "", request.by, request.purpose)
    wanted = {"training": digest_of(calibrated, entry), "ledger": str(book.resolve())}
    for path in sorted(folder.glob(f".*{SUFFIX}")):
        answers = _opened(path)
        if answers is None:
            continue
        try:
            if {name: answers.header.get(name) for name in wanted} != wanted:
                continue
            at, head = answers.header["at"], answers.header["head"]
            if not any((row.at, row.head) == (at, head) and row.state != "written" for row in ledger.read(book)):
                # It was never charged, or has its head.
                answers.remove()
                continue
            receipt = ledger.receipt_of(book, replace(entry, at=at, head=head))
            if receipt is not None and (request.out is None or request.out.name == head):
                answers.find()
                return Unfinished(path=path, receipt=receipt, answered=answers.answered)
        except (OSError, DamagedError) as error:
            observer.warn(f"the training of '{path}' cannot go on: {error}. A new one will be charged.")
        finally:
            answers.close()
    return None


def _opened(path: Path) -> Answers | None:
    """The answers in a file; None if another process has it, or it cannot be used."""
    file = None
    try:
        file = opened(path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Answers(path, file)
    except (OSError, ValueError):
        if file is not None:
            os.close(file)
        return None


def resumed(found: Unfinished) -> tuple[Answers, Receipt]:
    """The answers of a training that goes on, and the proof that it was charged. Its place for a head is given up.

    Raises:
        UserError: another process goes on with it.

    """
    answers = _opened(found.path)
    charged = replace(found.receipt.entry, state="charged")
    try:
        if answers is not None and (receipt := ledger.receipt_of(found.receipt.ledger, charged)) is not None:
            answers.find()
            # It has the name of the file that the process which was stopped has left there.
            answers.path.with_suffix(TEMPORARY).unlink(missing_ok=True)
            return answers, receipt
    except BaseException:
        assert answers is not None
        answers.close()
        raise
    if answers is not None:
        answers.close()
    raise UserError(
        "Another process goes on with this training, or has ended it.",
        "Look for its head: 'dpfc list'.",
        code="busy",
        path=str(found.path),
    )
