"""Everything that can be refused is refused here, before anything is charged.

The features are verified, the head's place is tried, memory and devices are checked, the plan is rehearsed. No record
is summed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from dpfc_cli.errors import UserError, parameter, sentence, unsupported
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.curator import lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check as check_query
from dpfc_cli.privacy.oracle import Oracle, Plan, PlanError
from dpfc_cli.privacy.queries import Query
from dpfc_cli.records.card import Standing
from dpfc_cli.training.answers import Unfinished, Wanted, any_kept, refuse_old
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import card_of, charge_of_training, loses, path_of, standing_of, with_ending, without_charge
from dpfc_cli.training.machine import check_devices, check_memory, stack_bytes, stack_for, training_bytes
from dpfc_cli.training.observer import CHECKING, Observer
from dpfc_cli.training.request import SPLIT, Request

REHEARSED = 3
"""Records, dimensions and (at most) classes and steps of a rehearsal."""
_DATE = "1970-01-01T00:00:00+00:00"
"""Of a card that is tried and not kept."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A training that nothing stands against: what is left is to charge it and to run it.

    path: where the head will be, unless that name is taken meanwhile. charge: what it will charge. account: what was
    spent before. after: what will be spent then. unfinished: a training of the same command that was charged and
    stopped. This one goes on with it, and charges nothing.
    """

    request: Request
    calibrated: Calibrated
    path: Path
    charge: Charge
    account: Account
    after: Account
    unfinished: Unfinished | None = None

    @property
    def features(self) -> FeatureSet:
        return self.request.features


def check(request: Request, calibrated: Calibrated, observer: Observer) -> Checked:
    """Refuse whatever can be refused. UserError: features that are damaged, a place that cannot be written, a ledger
    that cannot be read, a cap that does not allow it, too little memory, or devices that do not compute exactly.

    A training that is tuned is checked before, and again with what was chosen: tuning may take hours, and the features
    may have changed meanwhile.
    """
    features = request.features
    if calibrated.facts != request.facts:
        raise ValueError("the training was calibrated for other records than these")
    book = read(ledger_path(features.folder))
    known_set(book, features)
    # Tuning decides the options, and so which training it is, and whether it was charged before.
    final = request.tune_on is None or bool(calibrated.parts)
    path, charge, found = _place(request, calibrated, book, observer, final)
    account = book.account_of(features.manifest.id)
    after = account if found is not None else book.with_facts(charge).account_of(features.manifest.id)
    lost = without_charge(heads.cards(request.folder), book)
    if lost is not None and not (request.tune_on and final):
        observer.warn(lost)
    if found is None and (final or not any_kept(book)):
        check_charge(book, features, charge)
    said = loses(account, charge) if found is None and final else None
    if said is not None:
        observer.warn(said)
    method, plan, facts = calibrated.method, calibrated.plan, calibrated.facts
    check_memory(method, plan, facts, request.memory)
    beside = answers_beside(calibrated, found)
    stack_for(plan, training_bytes(method, plan, facts), request.memory, features.folder.resolve(), beside)
    if calibrated.mechanism is not None:
        try:
            lattice_of(calibrated.mechanism)
        except ValueError as error:
            raise UserError(
                f"The noise is too strong to be added exactly: {error}.",
                f"Choose a larger {parameter('epsilon')}, a smaller {parameter('noise_multiplier')} or fewer "
                f"{parameter('steps')}.",
            ) from error
    check_devices()
    rehearse(calibrated, features, standing_of(after, charge))
    request.summing.verify(features, SPLIT, facts, partial(observer.progress, CHECKING))
    heads.try_place(path, facts.d, facts.m)
    return Checked(
        request=request, calibrated=calibrated, path=path, charge=charge, account=account, after=after, unfinished=found
    )


def check_charge(ledger: Ledger, features: FeatureSet, charge: Charge) -> None:
    """Refuse what may not be charged. UserError: the ledger lacks the set, or is too old a copy, or a cap does not
    allow the charge.
    """
    known_set(ledger, features)
    refuse_old(ledger)
    caps.check(ledger, charge)


def _place(
    request: Request, calibrated: Calibrated, book: Ledger, observer: Observer, look: bool
) -> tuple[Path, Charge, Unfinished | None]:
    """Where the head will be, what is charged for it, and the training that goes on, if one does."""
    out = None if request.out is None else with_ending(Path(request.out), calibrated.claim)
    folder = request.folder if out is None else out.parent

    def charge(head: str) -> Charge:
        return charge_of_training(calibrated, request.features, head, request.whose, request.purpose)

    if look and calibrated.claim == "private":
        named = None if out is None else out.name
        wanted = Wanted(charge=charge("head"), named=named, plan=calibrated.plan, heads=folder, observer=observer)
        found = wanted.unfinished(book)
        if found is not None:
            return folder / found.charge.head, found.charge, found
    path = path_of(calibrated, request.features, out, request.folder)
    return path, charge(path.name), None


class _Rehearsal(Oracle):
    """An oracle without records: it checks that a method asks for what a plan says, and answers with zeros."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self._plan, self._facts = plan, facts
        self.released = 0

    def release(self, query: Query) -> np.ndarray:
        return next(self.pieces(query))

    def pieces(self, query: Query) -> Iterator[np.ndarray]:
        check_query(query, self._facts)
        due = self._plan.due(self.released, query, self._facts)
        self.released += 1
        return iter([np.zeros(due.shape)])


def answers_beside(calibrated: Calibrated, found: Unfinished | None) -> int:
    """The bytes that the answers in pieces will take beside the ledger, which is on the disk of the features.

    found: the training that goes on: what it has kept is there.
    """
    kept = 0 if found is None else found.size
    return max(0, stack_bytes(calibrated.plan) - kept) if calibrated.claim == "private" else 0


def rehearse(calibrated: Calibrated, features: FeatureSet, standing: Standing) -> None:
    """Run the method on made-up facts of small size, hold its queries against its plan, and make a head of the result.
    UserError: the card is too large for the file of a head, or the method does not follow its plan.

    So a method that does not follow its plan, or a card that cannot be written, fails here and not after the charge.
    Small facts do not show everything: a method that cuts its classes into blocks has one block then. Without noise a
    method may take as many passes as it needs, so only the card is tried. standing: what it will say of the ledger.
    """
    weight = np.zeros((calibrated.facts.d, calibrated.facts.m))
    solution = Solution(chain=(), weight=weight, bias=np.zeros(calibrated.facts.m))
    heads.check_card(card_of(calibrated, features, _DATE, solution, standing))
    if calibrated.mechanism is None:
        return
    method, options = calibrated.method, calibrated.options
    options = replace(options, **dict.fromkeys(method.public))
    if "steps" in method.declared:
        # All steps run the same code, and thousands of them take seconds.
        options = replace(options, steps=min(options.steps, REHEARSED))
    facts = replace(calibrated.facts, n=REHEARSED, d=REHEARSED, m=min(REHEARSED, calibrated.facts.m))
    plan = method.plan(facts, options)
    oracle = _Rehearsal(plan, facts)
    try:
        method.solve(oracle, facts, options)
        if oracle.released != len(plan.releases):
            raise PlanError(f"{oracle.released} of {len(plan.releases)} planned releases were asked for")
    except (PlanError, ValueError, TypeError) as error:
        raise unsupported(
            f"The method {method.name} does not do what it has planned: {sentence(error)}",
            "Mend the method: what `solve` asks for must be what `plan` states. Nothing was charged.",
            method=method.name,
        ) from error
