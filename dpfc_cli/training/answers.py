"""The answers of a training, kept on disk until its head is written. So a training that was stopped can go on.

An answer that was released is paid for, and differentially private. If a training is killed, what is lost is only what
is not on disk. So each answer is on disk before the method sees it. The same command finds the answers of its charge.
It gives the method the answers that are there, in place of new ones, and releases the rest. Nothing is charged again.

**A charge and its answers are one thing.** The file has the name of the charge's id, which is random, and lies beside
the ledger. Its header (the id, the number of the file, a digest of the training) is on disk before the charge is. It is
opened and removed under its lock. So:

- The file counts as charged exactly if the ledger has its id. One charge pays for one file.
- A header without a charge is dead: it is removed.
- Answers without a charge say that the ledger is too old a copy. Nothing more is charged until it is put back or
  merged.

**Never two answers to one release.** A second answer, with other noise, would tell more than was paid for. An answer is
written, synced to disk and marked as whole, and only then handed out. When a training goes on, a last answer without a
mark is drawn anew and overwritten: nobody has seen it. The pieces of a large answer are kept one by one, and the method
sees the first when all are there. A piece with a mark is not drawn again, although nobody has seen it. If anything else
has changed, the disk has failed, or somebody has changed the file. Then the training cannot go on. The ledger says how
many answers there were when a training was stopped or went on. A file that has fewer was put back from a copy. If an
answer cannot be kept, the file is emptied or removed before the answer is handed out. The number of the file stands in
it, so a copy that has another number does not count.

Its owner alone may read the file. Whoever cuts it off, or puts an older copy over it after a kill, makes answers be
drawn again: it needs the same protection as the ledger.
"""

import fcntl
import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError
from dpfc_cli.features.manifest import unreadable
from dpfc_cli.features.unfinished import claimed
from dpfc_cli.files import json_of, opened, read_at, sync, write_at
from dpfc_cli.folders import LEDGER_ANSWERS
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.training.observer import Observer

_LARGEST_HEADER = 4096
_HEADER = ("charge", "training", "file")
_WHOLE = b"\n"
_DIGEST = hashlib.sha256().digest_size
"""Bytes before each answer: its SHA-256. The plan says how long it is."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A training that was charged and has no head.

    path: its answers. charge: what was charged. answered: how many releases have their whole answer.
    """

    path: Path
    charge: Charge
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
        self.header, self._begin = _header_of(file)
        self._end = self._begin
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
    def is_new(self) -> bool:
        """Whether there is nothing behind the header."""
        return self._file is not None and os.fstat(self._file).st_size == self._begin

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
        if not read_at(self._file, answer.data.cast("B"), self._places[number][0]):
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
        data = np.ascontiguousarray(answer, "<f8").data.cast("B")
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


def _header_of(file: int) -> tuple[Mapping[str, str], int]:
    """The header of a file, and where it ends. OSError, ValueError where there is none."""
    head = os.pread(file, _LARGEST_HEADER, 0)
    end = head.index(_WHOLE) + 1
    found = json_of(head[:end])
    if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in _HEADER):
        raise ValueError("it has another header")
    return found, end


def _number_of(file: int) -> str:
    """The number that the file system gives to a file. A copy has another one."""
    return str(os.fstat(file).st_ino)


def _read(file: int, at: int, length: int) -> bytes:
    found = bytearray(length)
    if not read_at(file, found, at):
        raise OSError("the file ends early")
    return bytes(found)


def begun(charge: Charge, ledger: Path) -> Answers | None:
    """A new file for the answers of a training that is about to be charged. None if none can be kept there."""
    path, file = ledger.parent / LEDGER_ANSWERS / charge.id, None
    try:
        path.parent.mkdir(exist_ok=True)
        file = claimed(path)
        if file is None:
            return None
        header = {"charge": charge.id, "training": charge.digest, "file": _number_of(file)}
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


def digest_of(*parts: object) -> str:
    """A digest of all that a training computes with, beside the records. Trainings of one command have the same."""
    digest = hashlib.sha256()
    for part in parts:
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


def any_kept(ledger: Ledger) -> bool:
    """Whether answers of some training are there: of one that runs, or that may go on."""
    return any(_files(ledger.path))


def refuse_old(ledger: Ledger) -> None:
    """UserError where there are answers of a charge that the ledger lacks. Only a ledger that has it gives answers."""
    for path in _files(ledger.path):
        # A file of somebody else, which we may not read, has the name of its charge.
        charge = None if path.name in ledger.known else _charge_of(path)
        if charge is None or charge in ledger.known or charge in read(ledger.path).known:
            # The second reading is for what was charged since the first.
            continue
        raise UserError(
            f"The ledger '{ledger.path}' is too old a copy: there are answers of a training that it does not have "
            f"('{path}').",
            "Put the newer ledger back, or unite the two: 'dpfc budget' with --merge. Until then nothing is charged.",
            code="damaged",
            path=str(ledger.path),
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a command wants to train, and may go on with.

    charge: what it would charge. named: the head's file, if it names one. plan: what is released. has_head: whether
    there is a head of a charge, all the same. Then no answer is drawn anew. observer: told of trainings that do not go
    on.
    """

    charge: Charge
    named: str | None
    plan: Plan
    has_head: Callable[[str], bool]
    observer: Observer

    def unfinished(self, ledger: Ledger) -> Unfinished | None:
        """A training of the same command that was charged and has no head; None if there is none.

        Files of trainings that were never charged, or that have their head, are removed.
        """
        for path in _files(ledger.path):
            answers = _opened(path, self.observer.say)
            if answers is not None:
                try:
                    found = self._found(answers, ledger)
                finally:
                    answers.close()
                if found is not None:
                    return found
        return None

    def _found(self, answers: Answers, ledger: Ledger) -> Unfinished | None:
        """The training of these answers, which this process holds, if it is the one that is wanted."""
        charge = ledger.known.get(answers.header["charge"])
        last = None if charge is None else ledger.outcome(charge.id)
        if not isinstance(charge, Charge) or (last is not None and last.state == "written"):
            if charge is not None or answers.is_new:
                answers.remove()
            return None
        if charge.set != self.charge.set:
            return None
        same = charge.digest == self.charge.digest == answers.header["training"]
        if not same or self.named not in (None, charge.head):
            self.observer.say(
                f"A training of {charge.at} on this set was stopped. It goes on when its own command is typed again, "
                "with the same version of dpfc. This command is another one. If it is not to go on, delete "
                f"'{answers.path}'."
            )
            return None
        ends = list(itertools.accumulate(len(release.parts) for release in self.plan.releases))
        try:
            answers.find(self.plan)
            if last is not None and answers.answered < last.answers:
                raise DamagedError(f"{last.answers} answers were kept, and {answers.answered} are there")
            if answers.answered < ends[-1] and self.has_head(charge.id):
                raise DamagedError("its head was written, and some of its answers are gone")
        except (OSError, DamagedError) as error:
            self.observer.warn(
                f"the training of '{answers.path}' cannot go on: {error}. A new one will be charged. Delete that file."
            )
            return None
        return Unfinished(path=answers.path, charge=charge, answered=sum(end <= answers.answered for end in ends))


def reopened(found: Unfinished, plan: Plan) -> Answers:
    """The answers of a training that goes on. They are this process's.

    Raises:
        UserError: another process goes on with it.
        OSError, DamagedError: the file cannot be read any more.

    """
    answers = _opened(found.path)
    if answers is None:
        raise UserError(
            "Another process goes on with this training, or has ended it.",
            "Look for its head: 'dpfc list'.",
            code="busy",
            path=str(found.path),
        )
    try:
        answers.find(plan)
    except BaseException:
        answers.close()
        raise
    return answers


def _files(ledger: Path) -> Iterator[Path]:
    """The files of answers beside a ledger."""
    folder = ledger.parent / LEDGER_ANSWERS
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreadable(folder, error) from error
    yield from (folder / name for name in names)


def _charge_of(path: Path) -> str | None:
    """The id of the charge whose answers a file has; None if it has none. Whoever holds the file is not waited for."""
    try:
        file = opened(path, os.O_RDONLY)
    except PermissionError as error:
        raise unreadable(path, error) from error
    except OSError:
        return None
    try:
        header, end = _header_of(file)
        return header["charge"] if os.fstat(file).st_size > end else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)


def _opened(path: Path, say: Callable[[str], None] = lambda text: None) -> Answers | None:
    """The answers in a file; None if another process has it, or it cannot be used. A file without a header is dead.

    say: told of a file that cannot be used.
    """
    file = None
    try:
        file = opened(path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.lstat(path)):
            if _WHOLE in os.pread(file, _LARGEST_HEADER, 0):
                return Answers(path, file)
            path.unlink()
    except OSError:
        pass
    except ValueError as error:
        say(f"The answers in '{path}' cannot be used: {error}. Their training does not go on. Delete that file.")
    if file is not None:
        os.close(file)
    return None
