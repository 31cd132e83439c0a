"""The answers of a training, kept on disk until its head is written. So a training that was stopped can go on.

An answer that was released is paid for, and differentially private. If a training is killed, what is lost is only what
is not on disk. So each answer is on disk before the method sees it. The same command finds the answers of its charge.
It gives the method the answers that are there, in place of new ones, and releases the rest. Nothing is charged again.

**A charge and its answers are one thing.** The file `ID.COUNT` lies beside the ledger: the id of the charge, which is
random, and how many answers there are. Its header (the id, a digest of the training, the number that the file system
gives to the file, and the generation of that number) is on disk before the charge is. It is opened and removed under
its lock. So:

- The file counts as charged exactly if the ledger has its id. One charge pays for one file.
- A file without answers and without a charge is dead: it is removed.
- Answers without a charge say that the ledger is too old a copy. Nothing more is charged until it is put back or
  merged.

**Never two answers to one release.** A second answer, with other noise, would tell more than was paid for. An answer is
written and synced to disk, then the file gets the name with the next count, and only then it is handed out. One answer
may lie behind those that the name counts. If it is whole, it counts from now on: somebody may have renamed the file.
If it is not, it was seen by nobody, and is drawn anew and overwritten. The pieces of a large answer are kept one by
one, and the method sees the first when all are there. A piece that is there is not drawn again, although nobody has
seen it. If the file has fewer answers than its name says, or others, it was changed, or an
older copy was put over it: the training cannot go on. The ledger says how many answers there were when a training was
stopped or went on, and the header which file it is. An answer that cannot be kept is not handed out: the training
stops, and the same command goes on with those before it.

Its owner alone may read the file, and list its folder. What no rule here sees, after a kill: the file is cut and
renamed by hand, a whole disk is put back, or an older copy gets the number of a file that was deleted, where the file
system has no generations (NFS). Then answers are drawn again. It needs the same protection as the ledger.
"""

import fcntl
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError, counted, damaged, quoted, unwritable
from dpfc_cli.files import claimed, fill, json_of, opened, private_folder, read_at, sync, write_at
from dpfc_cli.folders import LEDGER_ANSWERS
from dpfc_cli.heads.head import cards
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import read
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.reading import unread
from dpfc_cli.training.observer import Observer
from dpfc_cli.version import TRAINING, code_digest

_LARGEST_HEADER = 4096
_GENERATION = 0x80087601
"""What asks Linux (FS_IOC_GETVERSION) for a random number that a file gets when it is made."""
_DIGEST = hashlib.sha256().digest_size
"""Bytes before each answer: its SHA-256. The plan says how long it is."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A training that was charged and has no head.

    path: its answers. charge: what was charged. answered: how many releases have their whole answer. size: bytes of the
    file.
    """

    path: Path
    charge: Charge
    answered: int
    size: int


class DamagedError(ValueError):
    """An answer that was handed out is not what it was."""


class Answers:
    """The answers of one training, in the order of its releases. They are this process's until `close`.

    path: the file. charge: its id. training: see `training_of`. answered: how many answers there are, and parts of
    answers.
    """

    def __init__(self, path: Path, file: int) -> None:
        """Read the header. OSError, ValueError where it cannot be read, or is that of another file: this is a copy.

        path: the file. file: a descriptor of it, which holds its lock.
        """
        self._file: int | None = None
        self.path = path
        self.charge, self.answered = _named(path)
        line, end, _ = os.pread(file, _LARGEST_HEADER, 0).partition(b"\n")
        self.training = json_of(line)["training"]
        if line + end != _header(self.charge, self.training, file):
            raise ValueError("it is a copy")
        self._end = len(line + end)
        self._starts: list[int] = []
        self._file = file

    def __del__(self) -> None:
        # Ctrl-C may lose them before anybody has them, and a notebook lives on.
        self.close()

    def find(self, plan: Plan) -> None:
        """Find the answers that are there, of a training with this plan. OSError: the file cannot be read.
        DamagedError: an answer that was handed out has changed, or may have.
        """
        assert self._file is not None
        lengths = _lengths(plan)
        for number, length in enumerate(lengths[: self.answered]):
            if not self._is_whole(length):
                raise DamagedError(f"answer {number} has changed")
            self._follows(length)
        # One more may have been written, whole or in part.
        rest, left = os.fstat(self._file).st_size - self._end, lengths[self.answered :]
        begun = sum(_DIGEST + length for length in left[:1])
        if self.answered > len(lengths) or rest > begun:
            raise DamagedError("it has other answers than its name says")
        if left and rest == begun and self._is_whole(left[0]):
            # Where a sync failed, the next one may say that it did not. So it is written anew.
            write_at(self._file, memoryview(_read(self._file, self._end, rest)), self._end)
            self._count(left[0])

    def _is_whole(self, length: int) -> bool:
        assert self._file is not None
        digest, answer = _read(self._file, self._end, _DIGEST), _read(self._file, self._end + _DIGEST, length)
        return hashlib.sha256(answer).digest() == digest

    def _count(self, length: int) -> None:
        """From now on the answer counts that was written behind the others. OSError."""
        assert self._file is not None
        os.fsync(self._file)
        self.path = self.path.rename(_path_of(self.path.parent, self.charge, self.answered + 1))
        sync(self.path.parent)
        self.answered += 1
        self._follows(length)

    def _follows(self, length: int) -> None:
        self._starts.append(self._end + _DIGEST)
        self._end += _DIGEST + length

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """An answer, or a part of one; None if there is none yet. shape: as the plan says, so as `find` read it."""
        if number >= len(self._starts):
            return None
        assert self._file is not None
        data = _read(self._file, self._starts[number], 8 * math.prod(shape))
        return np.frombuffer(data, "<f8").reshape(shape).astype(np.float64, copy=False)

    def keep(self, number: int, answer: np.ndarray) -> None:
        """Keep the next answer, or the next part of one. It is on disk when this returns.

        UserError where it cannot be kept. Then it must not be handed out.
        """
        assert self._file is not None
        if number != self.answered:
            raise RuntimeError(f"release {number} would have a second answer, or those before it have none")
        data = np.ascontiguousarray(answer, "<f8").data.cast("B")
        try:
            write_at(self._file, hashlib.sha256(data).digest(), self._end)
            write_at(self._file, data, self._end + _DIGEST)
            self._count(len(data))
        except OSError as error:
            raise _unwritable(self.path, error, "type the same command again: the training goes on") from error

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                os.close(file)


def _lengths(plan: Plan) -> list[int]:
    """The bytes of each answer, or part of one."""
    return [8 * math.prod(shape) for release in plan.releases for shape in release.parts]


def _path_of(folder: Path, charge: str, answers: int) -> Path:
    return folder / f"{charge}.{answers}"


def _named(path: Path) -> tuple[str, int]:
    """The charge whose answers a file has, and how many, by its name."""
    charge, _, count = path.name.partition(".")
    return charge, int(count)


def _header(charge: str, training: str, file: int) -> bytes:
    """The first line of a file of answers. A copy of it has another number, or another generation of that number."""
    generation = bytearray(8)
    # Not every file system has one.
    with suppress(OSError):
        fcntl.ioctl(file, _GENERATION, generation)
    said = {"charge": charge, "training": training, "file": str(os.fstat(file).st_ino), "generation": generation.hex()}
    return json.dumps(said).encode() + b"\n"


def _read(file: int, at: int, length: int) -> bytearray:
    found = bytearray(length)
    if not read_at(file, found, at):
        raise DamagedError("it ends early")
    return found


def begun(charge: Charge, plan: Plan, ledger: Path) -> Answers:
    """A new file for the answers of a training that is about to be charged. UserError: there is no room for all."""
    path, file = _path_of(ledger.parent / LEDGER_ANSWERS, charge.id, 0), None
    size = sum(_DIGEST + length for length in _lengths(plan))
    try:
        private_folder(path.parent)
        # Its name is new. Who looks through the files holds it for a moment, and may remove it.
        while file is None:
            file = claimed(path)
        fill(file, size)
        os.ftruncate(file, 0)
        write_at(file, _header(charge.id, training_of(charge), file), 0)
        os.fsync(file)
        sync(path.parent)
        return Answers(path, file)
    except (OSError, ValueError) as error:
        # ValueError: somebody changed it meanwhile.
        with suppress(OSError):
            path.unlink()
        if file is not None:
            os.close(file)
        room = f"{size // 10**6 + 1:,} MB"
        raise _unwritable(path.parent, error, "train again: nothing was charged", room) from error


def _unwritable(path: Path, error: OSError | ValueError, then: str, room: str = "room") -> UserError:
    what = f"{quoted(path)} cannot be written: {getattr(error, 'strerror', None) or error}."
    return unwritable(what, f"Make the place writable, with {room} left, and {then}.")


def digest_of(*parts: object) -> str:
    """A digest of all that a training computes with, beside the records. Equal trainings have the same."""
    digest = hashlib.sha256()
    for part in parts:
        _add(digest, part)
    return digest.hexdigest()


def training_of(charge: Charge) -> str:
    """A digest of the training and of the code that makes its head: other code does not go on with its answers."""
    return digest_of(charge.digest, code_digest(*TRAINING))


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


def is_held(ledger: Path, charge: str) -> bool | None:
    """Whether a process has the answers of a charge now: it trains. So may one whose files cannot be opened here.
    None: there are none.
    """
    while path := next((each for each in _files(ledger) if _named(each)[0] == charge), None):
        # With each answer it gets another name.
        with suppress(FileNotFoundError):
            try:
                file = opened(path, os.O_RDWR)
            except PermissionError:
                return True
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(file)
            return False
    return None


def refuse_old(ledger: Ledger) -> None:
    """UserError where there are answers of a charge that the ledger lacks. Only a ledger that has it gives answers."""
    for path in _files(ledger.path):
        charge, answers = _named(path)
        # The second reading is for what was charged since the first.
        if not answers or charge in ledger.known or charge in read(ledger.path).known:
            continue
        raise damaged(
            f"The ledger {quoted(ledger.path)} is too old a copy: there are answers of a training that it does not "
            f"have ('{path}').",
            "Put the newer ledger back, or unite the two: 'dpfc merge'. Until then nothing is charged.",
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a command wants to train, and may go on with.

    charge: what it would charge. named: the head's file, if it names one. plan: what is released. heads: the folder
    where its head would be. Of a charge that has one, all the same, no answer is drawn anew. observer: told of
    trainings that do not go on.
    """

    charge: Charge
    named: str | None
    plan: Plan
    heads: Path
    observer: Observer

    def unfinished(self, ledger: Ledger) -> Unfinished | None:
        """A training of the same command that was charged and has no head; None if there is none.

        Files of trainings that were never charged, or that have their head, are removed.
        """
        others = list[Path]()
        for path in _files(ledger.path):
            answers = _opened(path, self.observer.say)
            if answers is not None:
                try:
                    found = self._found(answers, ledger, others)
                finally:
                    answers.close()
                if found is not None:
                    return found
        if others:
            named = ", ".join(f"'{each}'" for each in others)
            self.observer.say(
                f"{counted(len(others), 'other training')} on this set stopped. Each goes on when its own command is "
                f"typed again, with the same version of dpfc. If one is not to go on, delete its file: {named}."
            )
        return None

    def _found(self, answers: Answers, ledger: Ledger, others: list[Path]) -> Unfinished | None:
        """The training of these answers, which this process holds, if it is the one that is wanted.

        others: gets the file of another one on this set.
        """
        charge = ledger.known.get(answers.charge)
        last = None if charge is None else ledger.outcome(charge.id)
        if not isinstance(charge, Charge) or (last is not None and last.state == "written"):
            if charge is not None or not answers.answered:
                answers.remove()
            return None
        if charge.set != self.charge.set:
            return None
        same = charge.digest == self.charge.digest and answers.training == training_of(charge)
        if not same or self.named not in (None, charge.head):
            others.append(answers.path)
            return None
        ends = list(itertools.accumulate(len(release.parts) for release in self.plan.releases))
        try:
            answers.find(self.plan)
            if last is not None and answers.answered < last.answers:
                raise DamagedError(f"{last.answers} answers were kept, and {answers.answered} are there")
            made = (card.ledger.charge for _, card in cards(self.heads) if card.ledger)
            if answers.answered < ends[-1] and charge.id in made:
                raise DamagedError("its head was written, and some of its answers are gone")
        except OSError as error:
            raise _unwritable(answers.path, error, "type the same command again: nothing more was charged") from error
        except DamagedError as error:
            self.observer.warn(
                f"the training of '{answers.path}' cannot go on: {error}. A new one will be charged. Delete that file."
            )
            return None
        answered = sum(end <= answers.answered for end in ends)
        return Unfinished(path=answers.path, charge=charge, answered=answered, size=answers.path.stat().st_size)


def reopened(found: Unfinished, plan: Plan) -> Answers:
    """The answers of a training that goes on. They are this process's. UserError: another process goes on with it.
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
    """The files of answers beside a ledger. Other files that lie there are left alone."""
    folder = ledger.parent / LEDGER_ANSWERS
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise unread(folder, error) from error
    yield from (folder / name for name in names if re.fullmatch(r"[0-9a-f]{32}\.[0-9]+", name))


def _opened(path: Path, say: Callable[[str], None] = lambda text: None) -> Answers | None:
    """The answers in a file; None if another process has it, or it cannot be used. A file without a header is dead.

    say: told of a file that cannot be used.
    """
    file = None
    try:
        file = opened(path, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), os.lstat(path)):
            if b"\n" in os.pread(file, _LARGEST_HEADER, 0):
                return Answers(path, file)
            path.unlink()
    except OSError:
        pass
    except (ValueError, LookupError, TypeError) as error:
        say(f"The answers in '{path}' cannot be used: {error}. Their training does not go on. Delete that file.")
    if file is not None:
        os.close(file)
    return None
