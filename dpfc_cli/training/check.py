"""Everything that can be refused is refused here, before anything is charged.

The features are verified, the head's place is tried, memory and devices are checked, the plan is rehearsed. No record
is summed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from msgspec import structs

from dpfc_cli.errors import UserError, parameter, sentence, unsupported
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.answers import LARGEST, Unfinished, begun, sizes, unfinished
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.public import SPLIT
from dpfc_cli.ledger.standing import loses, standing_of, without_charge
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.methods.method import Solution
from dpfc_cli.privacy.curator import lattice_of
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.forms import check as check_query
from dpfc_cli.privacy.lattice import Reals
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan, PlanError
from dpfc_cli.privacy.queries import Grid, Query
from dpfc_cli.records.card import Standing
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import card_of, charge_of_training, path_of, with_ending
from dpfc_cli.training.machine import check_devices, check_memory, stack_for, training_bytes
from dpfc_cli.training.observer import CHECKING, Observer
from dpfc_cli.training.request import Request

REHEARSED = 3
"""Records, dimensions and (at most) classes and steps of a rehearsal."""
_DATE = "1970-01-01T00:00:00+00:00"
"""Of a card that is tried and not kept."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A training that nothing stands against: what is left is to charge it and to run it.

    path: where the head will be, unless that name is taken meanwhile.
    charge: what it will charge.
    book: the ledger as it is.
    grid: on which its sums are made.
    keeps: whether its answers are kept, so that it can go on.
    beside: bytes that its answers will take beside what is there.
    unfinished: a training of the same command that was charged and stopped. This one resumes it, and charges
        nothing.
    """

    request: Request
    calibrated: Calibrated
    path: Path
    charge: Charge
    book: Ledger
    grid: Grid
    keeps: bool
    beside: int
    unfinished: Unfinished | None = None

    @property
    def features(self) -> FeatureSet:
        return self.request.features

    @cached_property
    def account(self) -> Account:
        """What was spent before."""
        return self.book.account_of(self.charge.set)

    @cached_property
    def after(self) -> Account:
        """What will be spent then."""
        return self.account if self.unfinished else self.book.with_facts(self.charge).account_of(self.charge.set)


def check(request: Request, calibrated: Calibrated, observer: Observer) -> Checked:
    """Refuse whatever can be refused. UserError: features that are damaged, a place that cannot be written, a ledger
    that cannot be read, a cap that does not allow it, too little memory, or devices that do not compute exactly.
    """
    features = request.features
    if calibrated.facts != request.facts:
        raise ValueError("the training was calibrated for other records than these")
    book = read(ledger_path(features.folder))
    known_set(book, features)
    path, charge, found = _place(request, calibrated, book, observer)
    method, plan, facts = calibrated.method, calibrated.plan, calibrated.facts
    keeps = calibrated.claim == "private" and request.keep and max(sizes(plan)) <= LARGEST
    beside = sum(sizes(plan)) - (0 if found is None else found.size) if keeps else 0
    grid: Grid = Reals() if calibrated.mechanism is None else _lattice(calibrated.mechanism)
    checked = Checked(
        request=request,
        calibrated=calibrated,
        path=path,
        charge=charge,
        book=book,
        grid=grid,
        keeps=keeps,
        beside=beside,
        unfinished=found,
    )
    if found is None:
        caps.check(book, charge)
    if (lost := without_charge(heads.cards(request.folder), book)) is not None:
        observer.warn(lost)
    if found is None and (said := loses(checked.account, charge)) is not None:
        observer.warn(said)
    if request.keep and calibrated.claim == "private" and not keeps:
        observer.warn(
            f"an answer of this training takes {max(sizes(plan)) / 1e9:.1f} GB, and the ledger keeps none above "
            f"{LARGEST / 1e9:.1f} GB. If it is stopped, it cannot go on, and stays charged all the same."
        )
    check_memory(method, plan, facts, request.memory)
    stack_for(plan, training_bytes(method, plan, facts), request.memory, features.scratch, beside)
    check_devices()
    rehearse(calibrated, features, standing_of(checked.after, charge))
    request.summing.verify(features, SPLIT, facts, partial(observer.progress, CHECKING))
    heads.try_place(path, facts.d, facts.m)
    return checked


def check_early(request: Request, calibrated: Calibrated) -> None:
    """Refuse what takes seconds to find out, before a hook that takes hours: the cap, the head's place, memory and
    devices. UserError: as `check`.

    The hook decides the options, and so which training it is. Where one was stopped, this may be that one: then it has
    its place and its charge. The rest is for `check`. Damaged features are one example: whoever mends them loses no
    hours, if the hook keeps what it has found.
    """
    features, facts = request.features, calibrated.facts
    book = read(ledger_path(features.folder))
    known_set(book, features)
    if not begun(book.path):
        caps.check(book, charge_of_training(calibrated, features, "head", request.whose, request.purpose))
        heads.try_place(path_of(calibrated, features, _out(request, calibrated), request.folder), facts.d, facts.m)
    check_memory(calibrated.method, calibrated.plan, facts, request.memory)
    check_devices()


def _lattice(mechanism: Mechanism) -> Grid:
    try:
        return lattice_of(mechanism)
    except ValueError as error:
        raise UserError(
            f"The noise is too strong to be added exactly: {error}.",
            f"Choose a larger {parameter('epsilon')}, a smaller {parameter('noise_multiplier')} or fewer "
            f"{parameter('steps')}.",
        ) from error


def _out(request: Request, calibrated: Calibrated) -> Path | None:
    return None if request.out is None else with_ending(Path(request.out), calibrated.claim)


def _place(
    request: Request, calibrated: Calibrated, book: Ledger, observer: Observer
) -> tuple[Path, Charge, Unfinished | None]:
    """Where the head will be, what is charged for it, and the training that is resumed, if one is."""
    out = _out(request, calibrated)
    folder = request.folder if out is None else out.parent
    wanted = charge_of_training(calibrated, request.features, "head", request.whose, request.purpose)
    if calibrated.claim == "private":
        named = None if out is None else out.name
        found = unfinished(book, wanted, named, calibrated.plan, observer.say, observer.warn)
        if found is not None:
            return folder / found.charge.head, found.charge, found
    path = path_of(calibrated, request.features, out, request.folder)
    return path, structs.replace(wanted, head=path.name), None


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
    try:
        plan = method.plan(facts, options)
        oracle = _Rehearsal(plan, facts)
        method.solve(oracle, facts, options)
        if oracle.released != len(plan.releases):
            raise PlanError(f"{oracle.released} of {len(plan.releases)} planned releases were asked for")
    except Exception as error:
        known = isinstance(error, PlanError | ValueError | TypeError)
        if not known and method.source is None:
            raise
        fails = f"fails: {type(error).__name__}: {error}."
        raise unsupported(
            f"The method {method.name} {f'does not do what it has planned: {sentence(error)}' if known else fails}",
            "Mend the method: what `solve` asks for must be what `plan` states. Nothing was charged.",
            method=method.name,
        ) from error
