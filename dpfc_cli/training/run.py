"""The training itself: records are summed, noised and released, and the head is written."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dpfc_cli.errors import printable
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.ledger.standing import charged_standing
from dpfc_cli.ledger.totals import Account
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.directions import InMemory, Shelf
from dpfc_cli.privacy.oracle import MAKING, TAKING, Oracle
from dpfc_cli.privacy.parts import Sum
from dpfc_cli.show.document import Told
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import card_of
from dpfc_cli.training.charged import Charged, Confirm, charged
from dpfc_cli.training.check import Checked
from dpfc_cli.training.machine import shelf_for, side_of, stack_bytes, stack_for, training_bytes
from dpfc_cli.training.observer import MATRICES, SOLVING, TRAINING, Observer

Solve = Callable[[Charged, Calibrated, Oracle], Solution]
"""Makes a head of the answers to a training that was charged."""


def _solved(paid: Charged, calibrated: Calibrated, oracle: Oracle) -> Solution:
    return calibrated.method.solve(oracle, calibrated.facts, calibrated.options)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trained(Told):
    """A training that ended with a head.

    charged: what it spent.
    checked: what was trained.
    head: the head, with its file.
    """

    charged: Charged
    checked: Checked
    head: Head

    @property
    def path(self) -> Path:
        """Where the head was written."""
        return self.head.file

    @property
    def sha256(self) -> str:
        """Of that file."""
        return str(self.charged.sha256)

    @property
    def spent(self) -> Account:
        """What the ledger has of the population of these records, this training included."""
        return self.charged.spent

    def told(self) -> dict[str, str]:
        return {**self.head.told(), "file": printable(str(self.path)), **self.spent.told()}


def spending(checked: Checked, confirm: Confirm) -> AbstractContextManager[Charged]:
    """The life of a training's charge, see `charged`."""
    request = checked.request
    return charged(
        checked.calibrated,
        checked.features,
        checked.charge,
        checked.book,
        by=request.whose,
        confirm=confirm,
        again=request.again,
        keep=checked.keeps,
        unfinished=checked.unfinished,
    )


def run(checked: Checked, observer: Observer, solve: Solve = _solved) -> Trained:
    """Charge a training if the observer says yes, train and write the head. The ledger then says what became of it.

    solve: what makes the head of the answers; that of the method. UserError: the observer said no, or the head, its
    answers or the ledger cannot be written. KeyboardInterrupt, Exception: it was stopped. A note of the exception says
    whether it was charged, and whether there is a head.
    """
    calibrated, features = checked.calibrated, checked.features

    def progress(stage: str, done: int, total: int) -> None:
        observer.progress(_named(stage), done, total)

    with spending(checked, observer.confirm) as paid:
        with _shelves_of(checked) as (shelf, stack), _summing(checked) as total:
            oracle = paid.oracle(progress, shelf, stack, total)
            # Of the ledger alone, before a record is read.
            standing = charged_standing(paid.ledger, paid.charge)
            solution = solve(paid, calibrated, oracle)
        card = card_of(calibrated, features, paid.charge.at, solution, standing)
        head = Head(
            chain=solution.chain, weight=solution.weight, bias=solution.bias, card=card, evidence=solution.evidence
        )
        data = heads.encoded(head)
        # A training that was killed may have written it already.
        paid.path, paid.sha256 = checked.path, hashlib.sha256(data).hexdigest()
        paid.path = path = heads.save(data, checked.path)
        if card.converged is False:
            observer.warn("the optimum was not reached. The head is where the iteration ended.")
        for hook in checked.request.hooks:
            hook.ended(card, observer)
    if paid.unsettled is not None:
        observer.warn(f"the head is written to '{path}', but the ledger does not say so. {paid.unsettled.what}")
    return Trained(charged=paid, checked=checked, head=replace(head, path=path))


def _named(stage: str) -> str:
    """A stage of a training, in words."""
    return {MAKING: MATRICES, TAKING: SOLVING}.get(stage, f"{TRAINING}, {stage.replace('_', ' ')}")


@contextmanager
def _shelves_of(checked: Checked) -> Iterator[tuple[Shelf | None, Shelf]]:
    """Where the training keeps what its sums share, and answers in pieces. Nothing stays there."""
    calibrated, request, grid = checked.calibrated, checked.request, checked.grid
    plan, facts, folder = calibrated.plan, calibrated.facts, checked.features.scratch
    others = training_bytes(calibrated.method, plan, facts)
    promised = checked.beside
    stack = stack_for(plan, others, request.memory, folder, promised)
    if isinstance(stack, InMemory):
        others += stack_bytes(plan)
    else:
        promised += stack_bytes(plan)
    side = side_of(plan, grid, facts.k)
    shelf = shelf_for(side, facts.records, facts, grid, others, request.memory, folder, promised)
    try:
        yield shelf, stack
    finally:
        for each in (shelf, stack):
            if each is not None:
                each.clear()


def _summing(checked: Checked) -> AbstractContextManager[Sum]:
    calibrated, request = checked.calibrated, checked.request
    side = side_of(calibrated.plan, checked.grid, calibrated.facts.k)
    return request.summing.begun(checked.features, SPLIT, calibrated.facts, checked.grid, side, request.memory)
