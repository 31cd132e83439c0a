"""The charge: the one step after which the privacy is spent."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from dpfc_cli.heads import head as heads
from dpfc_cli.privacy.curator import BlockStream, Records
from dpfc_cli.training import ledger
from dpfc_cli.training.account import account_of
from dpfc_cli.training.card import entry_of
from dpfc_cli.training.check import Checked
from dpfc_cli.training.ledger import Receipt
from dpfc_cli.training.request import SPLIT
from dpfc_cli.training.sharing import keep


@dataclass(frozen=True, kw_only=True)
class Charged(Records):
    """A training that was charged to its ledger. It is the only value that gives a curator private records.

    receipt: the ledger's row. temporary: an empty file that keeps the head's place. unused: free until a curator is
    made. One charge pays for one curator, because a second one would release the same sums with other noise.
    """

    checked: Checked
    receipt: Receipt
    temporary: Path
    unused: Lock = field(default_factory=Lock)

    def opened(self) -> BlockStream:
        """The private records, block by block, for one curator. RuntimeError the second time."""
        if not self.unused.acquire(blocking=False):
            raise RuntimeError("one charge pays for one training, and this one was used already")
        features, by_person = self.checked.features, self.checked.calibrated.facts.rows is not None
        return features.grouped(SPLIT) if by_person else features.stream(SPLIT)


def charge(checked: Checked) -> Charged:
    """Charge a training to the ledger of its features, durably. From here on its privacy is spent, whatever happens.

    Whether it fits under the caps of its records is looked at again, while nobody else can charge anything to them.

    Raises:
        UserError: it does not fit, or the head's place or the ledger cannot be written. Then nothing is charged.

    """
    request, path = checked.request, ledger.ledger_path(checked.features.folder)
    temporary = heads.reserve(checked.path)
    try:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        entry = entry_of(checked.calibrated, checked.features, checked.path.name, at, request.by, request.purpose)

        def allow(locked: frozenset[Path]) -> frozenset[Path]:
            keep(path, checked.features.folder)
            account = account_of(path, checked.features.folder)
            missing = account.ledgers - locked
            if not missing:
                account.check(entry)
            return missing

        receipt = ledger.charge(path, entry, allow)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return Charged(checked=checked, receipt=receipt, temporary=temporary)
