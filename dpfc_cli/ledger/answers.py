"""The answers of unfinished trainings: rows of the ledger's file, until the head is written.

An answer that was released is paid for, and differentially private. Each is committed to the ledger before the method
sees it. The same command finds the answers of its charge, gives them to the method in place of new ones, and releases
the rest. Nothing is charged again.

**A charge and its answers are one thing.** Row 0 of a charge is written in the transaction that charges it, and says
which code its training is made with; row r + 1 is answer r. All of them are deleted in the transaction that says that
there is a head. A charge without row 0 is never resumed. A ledger that is put back, from before a charge, has lost the
charge and its answers, and a new training is a new charge. The rows of a training that nobody resumes stay: whoever
types its command may be years late, and nobody else can say that it is abandoned.

**Never two answers to one release.** Whoever trains holds a lock: the file `ledger.locks/ID`, which is made before the
charge and removed after the head. It says how many answers were handed out. A charge whose lock is gone does not go on,
nor does one with fewer answers than were handed out: its ledger is a copy, or was put back. An answer that cannot be
kept is not handed out: the training stops, and the same command resumes with those before it.

What no rule here sees: the ledger and its locks are copied, or put back, together while a training is unfinished, and
it goes on in both. Then the rest of its answers are drawn twice. Where the two ledgers are united, its charge counts
twice.
"""

import fcntl
import hashlib
import itertools
import math
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfc_cli.errors import UserError, counted, quoted, unwritable
from dpfc_cli.files import claimed, opened, private_folder
from dpfc_cli.folders import LEDGER_LOCKS
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import reading, writing
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.privacy.oracle import Plan
from dpfc_cli.version import TRAINING, code_digest

LARGEST = 999_000_000
"""Bytes of the largest answer, or part of one, that SQLite keeps."""


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A training that was charged and has no head. answered: the releases that have their whole answer. size: bytes."""

    charge: Charge
    answered: int
    size: int


class Answers:
    """The answers of one charge, in the order of its plan. They are this process's until `close`. answered: how many
    there are, and parts of answers.
    """

    def __init__(self, ledger: Path, charge: str, new: bool = False) -> None:
        """Take the lock, and count what is there. new: the charge is about to be made. UserError: another process has
        it, or there is no room for a lock.
        """
        self.charge, self._ledger = charge, ledger
        self._path = _lock(ledger, charge)
        try:
            private_folder(self._path.parent)
            lock = claimed(self._path)
            while new and lock is None:
                # Whoever looks for locks that a kill has left holds it for a moment.
                lock = claimed(self._path)
        except OSError as error:
            what = f"{quoted(self._path)} cannot be written: {error.strerror or error}."
            raise unwritable(what, "Make the place writable, and train again: nothing was charged.") from error
        if lock is None:
            what, remedy = "Another process resumes this training.", "Look for its head: 'dpfc list'."
            raise UserError(what, remedy, code="busy")
        # An object that closes it, whoever loses it.
        self._file = os.fdopen(lock, "r+b", buffering=0)
        self.answered = 0 if new else _answered(ledger, charge)

    def recall(self, number: int, shape: tuple[int, ...]) -> np.ndarray | None:
        """An answer, or a part of one; None if there is none yet. UserError: the ledger cannot be read, or the answer
        has changed.
        """
        if number >= self.answered:
            return None
        found = _answer(self._ledger, self.charge, number)
        if found is None:
            raise UserError(f"Answer {number} in {quoted(self._ledger)} is gone, or has changed.", "Put it back.")
        return np.frombuffer(bytearray(found), "<f8").reshape(shape).astype(np.float64, copy=False)

    def keep(self, number: int, answer: np.ndarray) -> None:
        """Keep the next answer, or the next part of one. It is on disk when this returns.

        UserError where it cannot be kept. Then it must not be handed out.
        """
        if number != self.answered:
            raise RuntimeError(f"release {number} would have a second answer, or those before it have none")
        data = np.ascontiguousarray(answer, "<f8").data.cast("B")
        with writing(self._ledger) as rows:
            if rows.execute("SELECT count(*) FROM answers WHERE charge = ?", (self.charge,)).fetchone() != (
                number + 1,
            ):
                what = f"{quoted(self._ledger)} is not the ledger any more that has the answers of this training."
                raise UserError(what, "Put the newer one back.", code="missing")
            row = (self.charge, number + 1, hashlib.sha256(data).hexdigest(), len(data))
            at = rows.execute("INSERT INTO answers VALUES (?, ?, ?, zeroblob(?))", row).lastrowid
            assert at is not None
            with rows.blobopen("answers", "answer", at) as blob:
                blob.write(data)
        self.answered += 1
        os.pwrite(self._file.fileno(), b"%d" % self.answered, 0)

    def remove(self) -> None:
        """Remove the lock: the rows are deleted."""
        with suppress(OSError):
            self._path.unlink()
        self.close()

    def close(self) -> None:
        """Let others have them. The second time it does nothing."""
        self._file.close()


def begin(rows: sqlite3.Connection, charge: str) -> None:
    """In the transaction that charges it: from now on its answers are kept."""
    rows.execute("INSERT INTO answers VALUES (?, 0, ?, x'')", (charge, code_digest(*TRAINING)))


def delete(rows: sqlite3.Connection, charge: str) -> None:
    """In the transaction that says that there is a head."""
    rows.execute("DELETE FROM answers WHERE charge = ?", (charge,))


def sizes(plan: Plan) -> list[int]:
    """The bytes of each answer, or part of one."""
    return [8 * math.prod(shape) for release in plan.releases for shape in release.parts]


def begun(ledger: Path) -> dict[str, str]:
    """The charges whose answers are kept, with a digest of the code that they are made with."""
    return dict(_asked(ledger, "SELECT charge, sha256 FROM answers WHERE number = 0"))


def is_held(ledger: Path, charge: str) -> bool | None:
    """Whether a process has the answers of a charge now: it trains. None: there is no lock."""
    try:
        file = opened(_lock(ledger, charge), os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def unfinished(
    ledger: Ledger,
    wanted: Charge,
    named: str | None,
    plan: Plan,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Unfinished | None:
    """A training of the same command that was charged and has no head; None if there is none.

    wanted: what the command would charge. named: the head's file, if it names one. say, warn: told of trainings that do
    not go on.
    """
    kept, others = begun(ledger.path), 0
    for charge in ledger.all(Charge):
        last = ledger.outcome(charge.id)
        ended = last is not None and last.state == "written"
        if charge.id not in kept or charge.set != wanted.set or ended or is_held(ledger.path, charge.id):
            continue
        same = charge.digest == wanted.digest and kept[charge.id] == code_digest(*TRAINING)
        if not same or named not in (None, charge.head):
            others += 1
        elif (found := _whole(ledger.path, charge, plan, warn)) is not None:
            return found
    if others:
        say(
            f"{counted(others, 'other training')} on this set stopped. Each resumes when its own command is typed "
            "again, with the same version of dpfc."
        )
    return None


def _whole(ledger: Path, charge: Charge, plan: Plan, warn: Callable[[str], None]) -> Unfinished | None:
    """The training of a charge, if all answers that were handed out are there and unchanged."""
    due, wrong, answered = sizes(plan), None, _answered(ledger, charge.id)
    for number, size in itertools.zip_longest(range(answered), due[:answered]):
        if len(_answer(ledger, charge.id, number) or b"") != size:
            wrong = f"answer {number} has changed"
    try:
        handed = int(_lock(ledger, charge.id).read_bytes() or b"0")
    except (OSError, ValueError):
        wrong = "its lock is gone, so this ledger is a copy, or was put back"
    else:
        if answered < handed:
            wrong = f"{handed} answers were handed out, and this ledger has {answered}: it was put back"
    if wrong is not None:
        warn(f"the training of '{charge.head}' of {charge.at} cannot go on: {wrong}. A new one will be charged.")
        return None
    ends = itertools.accumulate(len(release.parts) for release in plan.releases)
    return Unfinished(charge=charge, answered=sum(end <= answered for end in ends), size=sum(due[:answered]))


def sweep(ledger: Path) -> None:
    """Remove the locks that a kill has left: of what was not charged, or has its head."""
    folder, kept = ledger.parent / LEDGER_LOCKS, begun(ledger)
    with suppress(OSError):
        for name in os.listdir(folder):
            if not re.fullmatch("[0-9a-f]{32}", name) or name in kept or (lock := claimed(folder / name)) is None:
                continue
            # It may have been charged since.
            if name not in begun(ledger):
                (folder / name).unlink()
            os.close(lock)


def _lock(ledger: Path, charge: str) -> Path:
    return ledger.parent / LEDGER_LOCKS / charge


def _asked(ledger: Path, sql: str, *values: str | int) -> list[tuple[Any, ...]]:
    """The rows that a question finds; none if there is no ledger."""
    with reading(ledger) as rows:
        return [] if rows is None else rows.execute(sql, values).fetchall()


def _answered(ledger: Path, charge: str) -> int:
    return len(_asked(ledger, "SELECT number FROM answers WHERE charge = ? AND number > 0", charge))


def _answer(ledger: Path, charge: str, number: int) -> bytes | None:
    """An answer as it was kept; None if it is not there or has changed."""
    sql = "SELECT sha256, answer FROM answers WHERE charge = ? AND number = ?"
    for digest, answer in _asked(ledger, sql, charge, number + 1):
        if type(answer) is bytes and hashlib.sha256(answer).hexdigest() == digest:
            return answer
    return None
