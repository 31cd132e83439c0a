"""The charge: the one step after which the privacy is spent."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import structs

from dpfc_cli.errors import UserError, missing, parameter, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import EVALUATION, Charge, Outcome, State, new_id, now
from dpfc_cli.ledger.file import append, ledger_path, read
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.privacy.curator import Records
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.rounding import cost, rounded_up
from dpfc_cli.training.answers import Answers, begun, is_held, reopened
from dpfc_cli.training.calibrate import Planned
from dpfc_cli.training.check import Checked, check_charge
from dpfc_cli.training.request import SPLIT


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof that something was charged. Only `pay` and `charge` make one.

    charge: the ledger's fact. by: who runs it now. ledger: all facts, this one included. after: the last outcome of the
    charge that this process knows of: its id, if it goes on with a charge that was stopped. outcome: the id of the one
    that this process writes.
    """

    charge: Charge
    by: str
    ledger: Ledger
    after: str | None = None
    outcome: str = field(default_factory=new_id)


@dataclass(frozen=True, kw_only=True)
class Paid(Records):
    """Records that were charged for in their ledger. No other value gives a curator private records.

    planned: what was charged. features, split: the records. receipt: of the charge. unused: free until a curator is
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
        return self.features.watched(self.features.stream(self.split, groups=by_person))


@dataclass(frozen=True, kw_only=True)
class Charged:
    """A training that was charged to its ledger.

    paid: its records. answers: where they are kept until there is a head; None if none are to be kept.
    """

    checked: Checked
    paid: Paid
    answers: Answers | None = None

    @property
    def receipt(self) -> Receipt:
        return self.paid.receipt


def question(charge: Charge, name: str, after: Account) -> str:
    """What a question says of a charge: 'ε = 0.1 to digits (then … is spent together)'; and what a cap leaves then.

    name: of the set. after: what will be spent with the charge.
    """
    if charge.epsilon is None or charge.delta is None:
        return f"no ε to {name}"
    rest = caps.left(after, charge.delta, charge)
    capped = "" if rest is None else f", and ε = {rest[0]:.4g} is left under the cap"
    total = cost(after.epsilon(charge.delta), charge.delta)
    return f"ε = {rounded_up(charge.epsilon, 6)} to {name} (then {total} is spent together{capped})"


def charged_before(ledger: Ledger, charge: Charge) -> list[Charge]:
    """The charges of the same training or private evaluation, whatever became of them."""

    def asked(of: Charge) -> tuple[Any, ...]:
        return of.set, of.split, of.digest, of.epsilon, of.delta

    return [each for each in ledger.charges if asked(each) == asked(charge)]


def charged_again(ledger: Ledger, charge: Charge, name: str) -> UserError | None:
    """The refusal to charge the same training or private evaluation once more; None if it was not charged before.

    Without a guarantee it matters what became of it, because only a head is lost. charge: what would be charged. name:
    of the set.
    """
    same = charged_before(ledger, charge)
    ends = [end for each in same if (end := ledger.outcome(each.id)) is not None and end.state == "written"]
    if not (ends or (same and charge.private)):
        return None
    training = charge.method != EVALUATION
    runs = not ends and (not training or any(is_held(ledger.path, each.id) for each in same))
    became = "has not ended" if not ends else f"its head is '{ends[0].head}'" if ends[0].head else "has ended"
    cost = question(charge, name, ledger.with_facts(charge).account_of(charge.set))
    cost += "" if charge.private else ", for the same head to the bit"
    return UserError(
        f"The same {'training' if training else EVALUATION} was charged before, and {became}.",
        f"{'Wait for its end. Or give' if runs else 'Give'} the option '{parameter('again')}' to charge {cost} again.",
        code="busy" if runs else "exists",
    )


def pay(planned: Planned, features: FeatureSet, charge: Charge, again: bool) -> Paid:
    """Charge a plan to the ledger of a feature set, durably. From here on its privacy is spent, whatever happens.

    Whether it may be charged is looked at again, while nobody else can charge anything. It is dated then: a cap may
    have been set meanwhile. again: whether the same may have been charged before (`charged_again`). UserError: it may
    not be charged, or the ledger cannot be written. Then nothing is charged, unless the message says that it may be.
    """
    made: list[Charge] = []

    def allowed(ledger: Ledger) -> list[Charge]:
        # The charge is for the records that were checked.
        features.check_same()
        check_charge(ledger, features, charge)
        if not again and (refused := charged_again(ledger, charge, features.name)) is not None:
            raise refused
        made.append(structs.replace(charge, at=now()))
        return made

    ledger = append(ledger_path(features.folder), allowed, "The charge")
    receipt = Receipt(charge=made[0], by=charge.by, ledger=ledger)
    return Paid(planned=planned, features=features, split=charge.split, receipt=receipt)


def charge(checked: Checked) -> Charged:
    """Charge a training, see `pay`. One that was charged and stopped goes on under its own charge. UserError: it may
    not be charged, or the head, its answers or the ledger cannot be written. Then nothing is charged, unless the
    message says so.
    """
    calibrated, features, found = checked.calibrated, checked.features, checked.unfinished
    # Time may have passed since it was checked.
    heads.try_place(checked.path, calibrated.facts.d, calibrated.facts.m)
    answers: Answers | None = None
    try:
        if found is None:
            if calibrated.claim == "private" and checked.request.keep:
                answers = begun(checked.charge, calibrated.plan, ledger_path(features.folder))
            paid = pay(calibrated, features, checked.charge, checked.request.again)
        else:
            answers = reopened(found, calibrated.plan)
            receipt = _resumed(found.charge, checked.request.whose, answers, ledger_path(features.folder))
            paid = Paid(planned=calibrated, features=features, split=SPLIT, receipt=receipt)
    except BaseException:
        if answers is not None:
            # If it was not charged, the file is dead, and the next training removes it.
            answers.close()
        raise
    return Charged(checked=replace(checked, charge=paid.receipt.charge), paid=paid, answers=answers)


def _resumed(charge: Charge, by: str, answers: Answers, path: Path) -> Receipt:
    made: list[Outcome] = []

    def goes_on(ledger: Ledger) -> list[Outcome]:
        _check_there(ledger, charge)
        last = ledger.outcome(charge.id)
        if last is not None and last.state == "written":
            raise UserError("This training has its head.", "Look for it: 'dpfc list'.", code="busy")
        after = None if last is None else last.id
        made.append(Outcome(by=by, charge=charge.id, state="resumed", answers=answers.answered, after=after))
        return made

    ledger = append(path, goes_on, "That the training goes on")
    return Receipt(charge=charge, by=by, ledger=ledger, after=made[0].id)


def settle(
    receipt: Receipt, state: State, answers: int = 0, head: str | None = None, sha256: str | None = None
) -> UserError | None:
    """Write down what became of a charge. The second time nothing is written: it may be stopped after the first.

    answers: how many are kept. head: the name of the file that was written. sha256: of its bytes, or of the figures of
    an evaluation. Where the ledger cannot be written, or lacks the charge, the error is returned: it stays charged in
    any case.
    """
    charge = receipt.charge
    known: dict[str, Any] = {"id": receipt.outcome, "by": receipt.by, "charge": charge.id, "after": receipt.after}
    outcome = Outcome(**known, state=state, head=head, sha256=sha256, answers=answers)

    def unless_known(ledger: Ledger) -> list[Outcome]:
        _check_there(ledger, charge)
        return [] if outcome.id in ledger.known else [outcome]

    try:
        append(receipt.ledger.path, unless_known, "What became of the charge")
    except UserError as error:
        return error
    return None


def spent_now(receipt: Receipt) -> Account:
    """What is spent now. Others may have charged something meanwhile, so the ledger is read again."""
    try:
        return read(receipt.ledger.path).account_of(receipt.charge.set)
    except UserError:
        return receipt.ledger.account_of(receipt.charge.set)


def _check_there(ledger: Ledger, charge: Charge) -> None:
    if charge.id not in ledger.known:
        raise missing(
            f"The ledger {quoted(ledger.path)} does not have the charge any more: it is gone, or too old a copy.",
            "Put the newer ledger back, or unite the two: 'dpfc merge'.",
        )
