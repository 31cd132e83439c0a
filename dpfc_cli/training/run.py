"""The training itself: records are summed, noised and released, and the head is written."""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dpfc_cli.errors import Note, UserError, printable
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.totals import Account
from dpfc_cli.privacy import curator
from dpfc_cli.privacy.directions import InMemory, Shelf
from dpfc_cli.privacy.lattice import Reals
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.privacy.oracle import MAKING, TAKING, Oracle
from dpfc_cli.privacy.parts import Sum
from dpfc_cli.privacy.queries import Grid
from dpfc_cli.rounding import rounded_up
from dpfc_cli.show.document import Told
from dpfc_cli.training.card import card_of, charge_of_training, charged_standing
from dpfc_cli.training.charge import Charged, settle, spent_now
from dpfc_cli.training.check import Checked, answers_beside
from dpfc_cli.training.machine import shelf_for, side_of, stack_bytes, stack_for, training_bytes
from dpfc_cli.training.observer import MATRICES, SOLVING, TRAINING, Observer
from dpfc_cli.training.request import SPLIT


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Told):
    """A training that ended with a head.

    path: where the head was written. sha256: of that file. spent: what the ledger has of the population of these
    records, this training included.
    """

    charged: Charged
    head: Head
    path: Path
    sha256: str
    spent: Account

    def told(self) -> dict[str, str]:
        return {**self.head.told(), "file": printable(str(self.path)), **self.spent.told()}


def run(charged: Charged, observer: Observer) -> Trained:
    """Train and write the head. The ledger then says what became of the training.

    UserError: the head could not be written, or there is no room for its answers. KeyboardInterrupt, Exception:
    whatever stopped the training. The ledger then says `stopped`, or `written` if there is a head; a note of the
    exception says the same. RuntimeError: this charge was used before, or for another training.
    """
    checked, receipt = charged.checked, charged.receipt
    calibrated, features, answers = checked.calibrated, checked.features, charged.answers
    made = charge_of_training(calibrated, features, "", checked.request.whose, checked.request.purpose)
    if receipt.charge != checked.charge or made.digest != checked.charge.digest:
        raise RuntimeError("the charge was for another training")
    oracle, digest, saved = None, None, None
    try:
        with _shelves_of(checked) as (shelf, stack), _summing(checked) as total:
            oracle = _oracle_of(charged, observer, total, shelf, stack)
            # Of the ledger alone, before a record is read.
            standing = charged_standing(receipt.ledger, receipt.charge)
            solution = calibrated.method.solve(oracle, calibrated.facts, calibrated.options)
        card = card_of(calibrated, features, receipt.charge.at, solution, standing)
        head = Head(chain=solution.chain, weight=solution.weight, bias=solution.bias, card=card)
        data = heads.encoded(head)
        digest = hashlib.sha256(data).hexdigest()
        # A training that was killed may have written it already.
        path = saved = heads.save(data, checked.path)
        unsettled = _settled(charged, path, digest)
        spent = spent_now(receipt)
        if answers is not None and unsettled is None:
            # Without the ledger they are what says that there was a charge.
            answers.remove()
        if unsettled is not None:
            observer.warn(f"the head is written to '{path}', but the ledger does not say so. {unsettled.what}")
        if card.converged is False:
            observer.warn("the optimum was not reached. The head is where the iteration ended.")
        start = card.public_head
        if start is not None and start.trusted is not None and round(100 * start.trusted) == 0:
            observer.warn(
                "the public start was trusted to 0 %, so the head has nothing of it. Its vectors are wrong, or of "
                "another backbone or order of classes."
            )
    except BaseException as stop:
        if oracle is None and charged.paid.unused.locked():
            # Another run has this charge, and says what becomes of it.
            raise
        # Stopped while it was saved, the file may be there all the same.
        found = saved or (checked.path if digest and _holds(checked.path, digest) else None)
        _settled(charged, found, digest)
        stop.add_note(stands(charged, found))
        let_go(charged)
        raise
    let_go(charged)
    return Trained(charged=charged, head=replace(head, path=path), path=path, sha256=digest, spent=spent)


def let_go(charged: Charged) -> None:
    """Let others have the answers. The second time it does nothing."""
    if charged.answers is not None:
        charged.answers.close()


def _named(stage: str) -> str:
    """A stage of a training, in words."""
    return {MAKING: MATRICES, TAKING: SOLVING}.get(stage, f"{TRAINING}, {stage.replace('_', ' ')}")


def stands(charged: Charged, head: Path | None) -> Note:
    """What is said of a training that was charged and stopped. head: the file that was written, if one was."""
    answers = charged.answers
    if head is not None:
        said = f"The head was written: '{head}'."
    elif answers is not None and charged.checked.features.is_same():
        said = "No head was written. The same command goes on where it stopped, and charges nothing more."
    else:
        asks = ": it asks first" if charged.receipt.charge.private else ""
        said = f"No head was written. The same command would make a new training, which is charged, too{asks}."
    spent = charged.receipt.charge.epsilon
    what = "The training" if spent is None else f"ε = {rounded_up(spent, 6)}"
    return Note(printable(f"{what} was charged to '{charged.receipt.ledger.path}' and stays charged. {said}"))


def _settled(charged: Charged, path: Path | None, digest: str | None) -> UserError | None:
    """Write into the ledger what became of a training, see `settle`."""
    answers = 0 if charged.answers is None else charged.answers.answered
    if path is None:
        return settle(charged.receipt, "stopped", answers)
    return settle(charged.receipt, "written", answers, path.name, digest)


def _holds(path: Path, digest: str) -> bool:
    """Whether there is a file with these bytes."""
    try:
        return sha256_of(path) == digest
    except OSError:
        return False


@contextmanager
def _shelves_of(checked: Checked) -> Iterator[tuple[Shelf | None, Shelf]]:
    """Where the training keeps what its sums share, and answers in pieces. Nothing stays there."""
    calibrated, request, grid = checked.calibrated, checked.request, _grid_of(checked)
    plan, facts, folder = calibrated.plan, calibrated.facts, checked.features.folder.resolve()
    others = training_bytes(calibrated.method, plan, facts)
    promised = answers_beside(calibrated, checked.unfinished)
    stack = stack_for(plan, others, request.memory, folder, promised)
    if isinstance(stack, InMemory):
        others += stack_bytes(plan)
    else:
        promised += stack_bytes(plan)
    records = request.summing.records(facts)
    shelf = shelf_for(side_of(plan, grid, facts.k), records, facts, grid, others, request.memory, folder, promised)
    try:
        yield shelf, stack
    finally:
        for each in (shelf, stack):
            if each is not None:
                each.clear()


def _grid_of(checked: Checked) -> Grid:
    mechanism = checked.calibrated.mechanism
    return Reals() if mechanism is None else curator.lattice_of(mechanism)


def _summing(checked: Checked) -> AbstractContextManager[Sum]:
    calibrated, request, grid = checked.calibrated, checked.request, _grid_of(checked)
    side = side_of(calibrated.plan, grid, calibrated.facts.k)
    return request.summing.begun(SPLIT, calibrated.facts, grid, side, request.memory)


def _oracle_of(charged: Charged, observer: Observer, total: Sum, shelf: Shelf | None, stack: Shelf) -> Oracle:
    """The oracle of a charged training: the curator, or the plain sums where no noise was asked for."""
    calibrated, paid = charged.checked.calibrated, charged.paid

    def progress(stage: str, done: int, total: int) -> None:
        observer.progress(_named(stage), done, total)

    if calibrated.mechanism is None:
        return curator.NonPrivate(calibrated.facts, paid, calibrated.plan, progress, shelf, total, stack)
    seed = calibrated.privacy.seed
    bits = SystemBits() if seed is None else SeededBits(seed)
    return curator.Curator(calibrated.mechanism, paid, bits, progress, shelf, charged.answers, total, stack)
