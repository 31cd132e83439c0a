"""The training itself: records are summed, noised and released, and the head is written."""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpfc_cli.errors import UserError
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.privacy.oracle import Oracle, Progress
from dpfc_cli.training import ledger
from dpfc_cli.training.account import Account
from dpfc_cli.training.card import card_of
from dpfc_cli.training.charge import Charged
from dpfc_cli.training.observer import Observer


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training that ended with a head.

    path: where the head was written; not always where it was to be, see `heads.save`. sha256: of that file. spent: all
    trainings on these records, this one included, as far as the ledgers know.
    """

    charged: Charged
    head: Head
    path: Path
    sha256: str
    spent: Account


def run(charged: Charged, observer: Observer) -> Trained:
    """Train and write the head. The ledger's row then says what became of the training.

    Raises:
        UserError: the head could not be written anywhere.
        KeyboardInterrupt, Exception: whatever stopped the training; its row says `stopped`.
        RuntimeError: this charge was used before.

    """
    if not charged.unused.acquire(blocking=False):
        raise RuntimeError("one charge pays for one training, and this one was run already")
    checked = charged.checked
    calibrated = checked.calibrated
    try:
        oracle = _oracle_of(charged, lambda done, total: observer.progress("Training", done, total))
        solution = calibrated.method.solve(oracle, calibrated.facts, calibrated.options)
        card = card_of(calibrated, checked.features, charged.receipt.entry.at, solution)
        head = Head(chain=solution.chain, weight=solution.weight, bias=solution.bias, card=card)
        path = heads.save(head, checked.path, charged.temporary)
    except BaseException:
        # The row stays charged in any case; that it was stopped is worth knowing, and no reason for another error.
        with suppress(UserError):
            ledger.settle(charged.receipt, "stopped")
        raise
    finally:
        charged.temporary.unlink(missing_ok=True)
    digest, receipt = sha256_of(path), charged.receipt
    try:
        receipt = ledger.settle(receipt, "written", path.name, digest)
    except UserError as error:
        observer.warn(f"The head is written, but the ledger's row does not say so. {error.what}")
    spent = checked.account.after(receipt)
    return Trained(charged=charged, head=replace(head, path=path), path=path, sha256=digest, spent=spent)


def _oracle_of(charged: Charged, progress: Progress) -> Oracle:
    """The oracle of a charged training: the curator, or the plain sums where no noise was asked for."""
    calibrated = charged.checked.calibrated
    if calibrated.mechanism is None:
        return curator.NonPrivate(calibrated.facts, charged, calibrated.plan, progress)
    seed = calibrated.privacy.seed
    bits = SystemBits() if seed is None else SeededBits(seed)
    return curator.Curator(calibrated.mechanism, charged, bits, progress)
