"""The charge: the one step after which the privacy is spent."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from dpfc_cli.errors import UserError
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.privacy.curator import Records
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.training import ledger
from dpfc_cli.training.account import account_of
from dpfc_cli.training.answers import Answers, begun, resumed
from dpfc_cli.training.calibrate import Planned
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.check import Checked
from dpfc_cli.training.kept_digests import keep
from dpfc_cli.training.ledger import Entry, Receipt
from dpfc_cli.training.request import SPLIT


@dataclass(frozen=True, kw_only=True)
class Paid(Records):
    """Records that were charged for in their ledger. No other value gives a curator private records.

    planned: what was charged. features, split: the records. receipt: the ledger's row. unused: free until a curator is
    made. One charge pays for one curator, because a second one would release the same sums with other noise.
    """

    planned: Planned
    features: FeatureSet
    split: str
    receipt: Receipt
    unused: Lock = field(default_factory=Lock)

    def opened(self) -> BlockStream:
        """The private records, block by block, for one curator. RuntimeError the second time.

        While they are read: UserError where another set has taken the place of the one that was charged.
        """
        if not self.unused.acquire(blocking=False):
            raise RuntimeError("one charge pays for one curator, and this one was used already")
        by_person = self.planned.facts.rows is not None
        stream: BlockStream = self.features.grouped(self.split) if by_person else self.features.stream(self.split)
        return self.features.watched(stream)


@dataclass(frozen=True, kw_only=True)
class Charged(Records):
    """A training that was charged to its ledger.

    paid: its records. temporary: an empty file that keeps the head's place. answers: where the answers are kept until
    there is a head; None if they cannot be kept.
    """

    checked: Checked
    paid: Paid
    temporary: Path
    answers: Answers | None = None

    @property
    def receipt(self) -> Receipt:
        """The ledger's row."""
        return self.paid.receipt

    def opened(self) -> BlockStream:
        """The private records, see `Paid`."""
        return self.paid.opened()


def pay(
    planned: Planned,
    features: FeatureSet,
    split: str,
    head: str,
    by: str | None,
    purpose: str | None = None,
    begin: Callable[[Entry], None] | None = None,
) -> Paid:
    """Charge a plan to the ledger of a feature set, durably. From here on its privacy is spent, whatever happens.

    Whether it fits under the caps of its records is looked at again, while nobody else can charge anything to them.

    Args:
        planned: what will be released.
        features: the feature set.
        split: of which of its splits.
        head: the name of the file of the head that is to be written, or is evaluated.
        by: who asks for it.
        purpose: what for.
        begin: told of the row before it is written.

    Raises:
        UserError: it does not fit, or the ledger cannot be written. Then nothing is charged, unless the message says
            that it may be.

    """
    path = ledger.ledger_path(features.folder)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    entry = entry_of(planned, features, head, at, by, purpose, split)
    if begin is not None:
        begin(entry)

    def allow(locked: frozenset[Path]) -> frozenset[Path]:
        # The row names the records that were checked. Caps are looked for by what lies there now.
        features.check_same()
        keep(path, features.folder)
        account = account_of(path, features.folder, split=split)
        missing = account.ledgers - locked
        if not missing:
            account.check(entry)
        return missing

    receipt = ledger.charge(path, entry, allow)
    return Paid(planned=planned, features=features, split=split, receipt=receipt)


def charge(checked: Checked) -> Charged:
    """Charge a training, see `pay`, and keep the place of its head.

    A training that was charged and stopped goes on under its own row.

    Raises:
        UserError: it does not fit, or the head's place or the ledger cannot be written. Then nothing is charged.

    """
    request, calibrated, features = checked.request, checked.calibrated, checked.features
    if checked.unfinished is not None:
        held, receipt, place = resumed(checked.unfinished, calibrated.plan)
        paid = Paid(planned=calibrated, features=features, split=SPLIT, receipt=receipt)
        return Charged(checked=checked, paid=paid, temporary=place, answers=held)
    temporary = heads.reserve(checked.path)
    answers: Answers | None = None

    def begin(entry: Entry) -> None:
        nonlocal answers
        if calibrated.claim == "private":
            answers = begun(temporary, calibrated, features, entry)

    try:
        paid = pay(calibrated, features, SPLIT, checked.path.name, request.by, request.purpose, begin)
    except BaseException as stop:
        with suppress(OSError):
            temporary.unlink()
        if answers is not None:
            # If it was stopped, nobody knows yet whether it is charged.
            answers.remove() if isinstance(stop, UserError) else answers.close()
        raise
    return Charged(checked=checked, paid=paid, temporary=temporary, answers=answers)
