"""The answers of a training, kept on disk until its head is written. So a training that was stopped can go on.

An answer that was released is paid for, and differentially private. If a training is killed, what is lost is only what
is not on disk. So each answer is on disk before the method sees it. The same command finds the answers and the
training's row in the ledger. It gives the method the answers that are there, in place of new ones, and releases the
rest. Nothing is charged again.

**Never two answers to one release.** A second answer, with other noise, would tell more than was paid for. An answer is
written, synced to disk and marked as whole, and only then handed out. When a training goes on, a last answer without a
mark is drawn anew and overwritten: nobody has seen it. The pieces of a large answer are kept one by one, and the
method sees the first when all are there. A piece with a mark is not drawn again, although nobody has seen it. If
anything else has changed, the disk has failed, or somebody has changed the file. Then the training cannot go on. If an
answer cannot be kept, the file is emptied or removed before the answer is handed out. One process at a time holds the
file. Its inode number stands in it, so a copy does not count.

The file lies beside the head that is to be, and its owner alone may read it. It is bound to the training by the row in
the ledger and by a digest of all that the training computes with. Whoever may write to the file could cut it off, and
draw answers again: it needs the same protection as the ledger.
"""

import fcntl
import hashlib
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.locks import claimed
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import TEMPORARY, json_of, opened, read_at, sync, write_at
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.training import ledger
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.kept_digests import charged
from dpfc_cli.training.ledger import Entry, Receipt
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import SPLIT, Request
from dpfc_cli.version import __version__

SUFFIX = ".answers"
_LARGEST_HEADER = 2**24
_HEADER = ("training", "at", "head", "ledger", "file")
_WHOLE = b"\n"
_DIGEST = hashlib.sha256().digest_size
"""Bytes before each answer: its SHA-256. The plan says how long it is."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A training that was charged and has no head.

    path: its answers. receipt: of its charge. answered: how many releases have their whole answer.
    """

    path: Path
    receipt: Receipt
    answered: int


class DamagedError(ValueError):
    """An answer that was handed out is not what it was."""


class Answers:
    """The answers of one training, in the order of its releases. They are this process's until `close`."""

    def __init__(self, path: Path, file: int) -> None:
        """Read the header. OSError, ValueError where it cannot be read, or is that of another file: this is a copy.

        path: the file. file: a descriptor of it, which holds its lock.
        """
        self.path = path
        self._file: int | None = file
        head = os.pread(file, _LARGEST_HEADER, 0)
        self._end = head.index(_WHOLE) + 1
        self.header: Mapping[str, str] = json_of(head[: self._end])
        if not isinstance(self.header, dict) or not all(isinstance(self.header.get(name), str) for name in _HEADER):
            raise ValueError("it has another header")
        if self.header["file"] != _number_of(file):
            raise ValueError("it is a copy")
        self._places: list[tuple[int, int]] = []

    def find(self, plan: Plan) -> None:
        """Find the answers that are there, of a training with this plan.

        Raises:
            OSError: the file cannot be read.
            DamagedError: an answer that was handed out has changed, or may have.

        """
        assert self._file is not None
        size = os.fstat(self._file).st_size
        for shape in (part for release in plan.releases for part in release.parts):
            start, length = self._end + _DIGEST, 8 * math.prod(shape)
            mark = b"" if start + length >= size else _read(self._file, start + length, 1)
            if mark in (b"", b"\0"):
                # It was being written. A disk may have put zeros where something was to be.
                if start + length + 1 < size:
                    raise DamagedError(f"answer {self.answered} has changed")
                return
            digest = hashlib.sha256(_read(self._file, start, length)).digest()
            if mark != _WHOLE or digest != _read(self._file, self._end, _DIGEST):
                raise DamagedError(f"answer {self.answered} has changed")
            self._places.append((start, length))
            self._end = start + length + 1
        if self._end != size:
            raise DamagedError("there are more answers than releases")

    @property
    def held(self) -> bool:
        """Whether the answers are on disk, and this process has the file."""
        return self._file is not None

    @property
    def answered(self) -> int:
        """How many answers there are, and parts of answers."""
        return len(self._places)

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """An answer, or a part of one; None if there is none yet. shape: as the plan says, so as `find` read it."""
        if number >= len(self._places):
            return None
        assert self._file is not None
        answer = np.empty(shape, "<f8")
        if not read_at(self._file, memoryview(answer).cast("B"), self._places[number][0]):
            raise OSError("the file ends early")
        return answer.astype(np.float64, copy=False)

    def keep(self, number: int, answer: np.ndarray) -> None:
        """Keep the next answer, or the next part of one. It is on disk when this returns.

        Where the disk is full or fails, nothing is kept any more and the file is emptied or removed. The training is
        paid for, so it ends without. UserError where neither can be done.
        """
        if self._file is None:
            return
        if number != len(self._places):
            raise RuntimeError(f"release {number} would have a second answer, or those before it have none")
        data = memoryview(np.ascontiguousarray(answer, "<f8")).cast("B")
        start = self._end + _DIGEST
        try:
            # An answer without a mark may lie there. Nobody has seen it.
            write_at(self._file, hashlib.sha256(data).digest(), self._end)
            write_at(self._file, data, start)
            os.fsync(self._file)
            write_at(self._file, _WHOLE, start + len(data))
            os.fsync(self._file)
        except OSError as error:
            self._give_up(error)
            return
        self._places.append((start, len(data)))
        self._end = start + len(data) + 1

    def _give_up(self, error: OSError) -> None:
        """Make sure that nobody can go on with what is there: later answers are handed out and not kept.

        UserError where that cannot be done. Then the answer must not be handed out.
        """
        assert self._file is not None
        emptied = gone = False
        with suppress(OSError):
            os.ftruncate(self._file, 0)
            os.fsync(self._file)
            emptied = True
        with suppress(OSError):
            self.path.unlink()
            sync(self.path.parent)
            gone = True
        if not (emptied or gone):
            raise UserError(
                f"'{self.path}' can neither be written nor removed: {error.strerror or error}.",
                "Make the place writable, with room left, and type the same command again: the training goes on, and "
                "nothing more is charged.",
                code="unwritable",
                path=str(self.path),
            ) from error
        self.close()

    def remove(self) -> None:
        """Remove the file: it is not needed any more."""
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let others have the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)


def _number_of(file: int) -> str:
    """The number that the file system gives to a file. A copy has another one."""
    return str(os.fstat(file).st_ino)


def _read(file: int, at: int, length: int) -> bytes:
    found = bytearray(length)
    if not read_at(file, found, at):
        raise OSError("the file ends early")
    return bytes(found)


def begun(temporary: Path, calibrated: Calibrated, features: FeatureSet, entry: Entry) -> Answers | None:
    """A new file for the answers of a training that is about to be charged. None if none can be kept there.

    Args:
        temporary: the file that keeps the head's place.
        calibrated: the training.
        features: the private records.
        entry: its row.

    """
    path, file = temporary.with_suffix(SUFFIX), None
    try:
        file = claimed(path)
        if file is None:
            return None
        header = {
            "training": digest_of(calibrated, features, entry),
            "at": entry.at,
            "head": entry.head,
            "ledger": _ledger_of(features),
            "file": _number_of(file),
        }
        write_at(file, json.dumps(header).encode() + _WHOLE, 0)
        os.fsync(file)
        sync(path.parent)
        return Answers(path, file)
    except OSError:
        with suppress(OSError):
            path.unlink()
        if file is not None:
            os.close(file)
        return None


def _ledger_of(features: FeatureSet) -> str:
    return str(ledger.ledger_path(features.folder).resolve())


def digest_of(calibrated: Calibrated, features: FeatureSet, entry: Entry) -> str:
    """A digest of all that a training computes with, beside the records. Trainings of one command have the same.

    Method, noise, unit, purpose and whose training it is are in the row. The row also names the records, and that
    stays there. How the features were made is in their fingerprint.
    """
    digest = hashlib.sha256()
    own = replace(entry, at="", head="", records="", persons=None)
    made = features.manifest.fingerprint
    for part in (__version__, made, own, calibrated.options, calibrated.facts, calibrated.tuning, calibrated.before):
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


def stopped(folder: Path, features: FeatureSet) -> Iterator[Answers]:
    """The answers of trainings on a set that were stopped. Each is held until the next one is asked for."""
    for path in sorted(folder.glob(f".*{SUFFIX}")):
        answers = _opened(path)
        if answers is None:
            continue
        try:
            if answers.header["ledger"] == _ledger_of(features):
                yield answers
        finally:
            answers.close()


def unfinished(request: Request, calibrated: Calibrated, folder: Path, observer: Observer) -> Unfinished | None:
    """A training of the same command that was charged and has no head; None if there is none.

    Files of trainings that were never charged, or that have their head, are removed.

    Args:
        request: what is wanted.
        calibrated: the training.
        folder: where its head will be.
        observer: told of trainings that do not go on.

    """
    if calibrated.claim != "private":
        return None
    features = request.features
    book = ledger.ledger_path(features.folder)
    entry = entry_of(calibrated, features, "", "", request.by, request.purpose)
    wanted = digest_of(calibrated, features, entry)
    for answers in stopped(folder, features):
        at, head = answers.header["at"], answers.header["head"]
        if not any((row.at, row.head) == (at, head) and row.state != "written" for row in ledger.read(book)):
            # It was never charged, or has its head.
            answers.remove()
            continue
        receipt = ledger.receipt_of(book, replace(entry, at=at, head=head))
        named = request.out is None or request.out.name == head
        same = receipt is not None and named and answers.header["training"] == wanted
        # The listing names the source. The set may have been made again, of another part of it.
        if receipt is None or not same or not charged(book, features.folder, SPLIT):
            other = "set may have other ones now" if same else "command is another one"
            observer.say(
                f"A training of {at} on this set was stopped. It goes on when its own command is typed again, with the "
                f"same version of dpfc and on the same records. This {other}. If it is not to go on, delete "
                f"'{answers.path}'."
            )
            continue
        try:
            answers.find(calibrated.plan)
        except (OSError, DamagedError) as error:
            observer.warn(
                f"the training of '{answers.path}' cannot go on: {error}. A new one will be charged. Delete that file."
            )
            continue
        ends = itertools.accumulate(len(release.parts) for release in calibrated.plan.releases)
        return Unfinished(path=answers.path, receipt=receipt, answered=sum(end <= answers.answered for end in ends))
    return None


def _opened(path: Path) -> Answers | None:
    """The answers in a file; None if another process has it, or it cannot be used."""
    file = None
    try:
        file = opened(path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.lstat(path)):
            return Answers(path, file)
    except (OSError, ValueError):
        pass
    if file is not None:
        os.close(file)
    return None


def resumed(found: Unfinished, plan: Plan) -> tuple[Answers, Receipt, Path]:
    """The answers of a training that goes on, the proof that it was charged, and an empty file for its head.

    Raises:
        UserError: another process goes on with it.
        OSError: the file cannot be made.

    """
    answers, charged = _opened(found.path), found.receipt
    try:
        if answers is not None and (receipt := ledger.receipt_of(charged.ledger, charged.entry)) is not None:
            answers.find(plan)
            temporary = answers.path.with_suffix(TEMPORARY)
            # What the process that was stopped has left there.
            temporary.unlink(missing_ok=True)
            temporary.touch(exist_ok=False)
            return answers, receipt, temporary
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
