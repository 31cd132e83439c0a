"""The life of a charge: it is asked for, written down, gives its records to one oracle, and is settled.

Trainings, private evaluations and the sites of a federation go this way (`charged`). The charge is the one step after
which the privacy is spent.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from threading import Lock
from typing import Any

from msgspec import structs

from dpfc_cli.errors import Note, UserError, missing, notes, parameter, printable, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.ledger import answers as kept
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.answers import Answers, Unfinished
from dpfc_cli.ledger.facts import EVALUATION, Charge, Fact, Outcome, Released, State, new_id, now
from dpfc_cli.ledger.file import append
from dpfc_cli.ledger.populations import known_set
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.privacy.curator import Curator, NonPrivate, Records
from dpfc_cli.privacy.directions import Shelf
from dpfc_cli.privacy.noise import SeededBits, SystemBits
from dpfc_cli.privacy.oracle import Oracle, Stages
from dpfc_cli.privacy.parts import Sum
from dpfc_cli.privacy.passes import BlockStream
from dpfc_cli.records.figures import Figures
from dpfc_cli.rounding import cost, rounded_up
from dpfc_cli.training.calibrate import Planned

Confirm = Callable[[str, UserError | None], bool]
"""Asked once before a charge, which the text describes. The error: the same was charged before."""


@dataclass(kw_only=True)
class Charged(Records):
    """Records that were charged for in their ledger. No other value gives a curator private records, and only `charged`
    makes one.

    planned: what was charged.
    features: the set of the records.
    charge: the ledger's fact.
    by: who runs it now.
    ledger: all facts, this one included, and at the end what became of it.
    after: the last outcome of the charge that this process knows of: its id, if it resumes one that was stopped.
    answers: where they are kept until there is a head; None if none are to be kept.
    path: the head's file; None: there is none.
    sha256: of the head's file, or of the figures of an evaluation; None: there are none yet.
    figures: what an evaluation has released.
    unsettled: why the ledger does not say what became of it; None: it does.
    """

    planned: Planned
    features: FeatureSet
    charge: Charge
    by: str
    ledger: Ledger
    after: str | None = None
    answers: Answers | None = None
    path: Path | None = None
    sha256: str | None = None
    figures: Figures | None = None
    unsettled: UserError | None = None
    _outcome: str = field(default_factory=new_id)
    _unused: Lock = field(default_factory=Lock)

    def opened(self) -> BlockStream:
        """The private records, block by block, for one curator: a second one would release the same sums with other
        noise. RuntimeError the second time.

        While they are read: UserError where another set has taken the place of the one that was charged.
        """
        if not self._unused.acquire(blocking=False):
            raise RuntimeError("one charge pays for one curator, and this one was used already")
        by_person = self.planned.facts.rows is not None
        return self.features.watched(self.features.stream(self.charge.split, groups=by_person))

    def oracle(
        self,
        progress: Stages | None = None,
        shelf: Shelf | None = None,
        stack: Shelf | None = None,
        together: Sum | None = None,
    ) -> Oracle:
        """The oracle: the curator, or the plain sums where no noise was asked for. Its arguments are as theirs."""
        planned, seed = self.planned, self.planned.privacy.seed
        if planned.mechanism is None:
            return NonPrivate(planned.facts, self, planned.plan, progress, shelf, together, stack)
        bits = SystemBits() if seed is None else SeededBits(seed)
        return Curator(planned.mechanism, self, bits, progress, shelf, self.answers, together, stack)

    @property
    def spent(self) -> Account:
        """What the ledger has of the population of these records, this charge included."""
        return self.ledger.account_of(self.charge.set)

    @property
    def written(self) -> bool:
        """Whether there are figures, or the head's file."""
        with suppress(OSError):
            return self.sha256 is not None and (self.path is None or sha256_of(self.path) == self.sha256)
        return False

    def settle(self) -> UserError | None:
        """Write down what became of the charge, and let go of its answers if there is a head. The second time nothing
        is written: it may be stopped after the first. Where the ledger cannot be written, or lacks the charge, the
        error is returned: it stays charged in any case.
        """
        state: State = "written" if self.written else "stopped"
        known: dict[str, Any] = {"id": self._outcome, "by": self.by, "charge": self.charge.id, "after": self.after}
        head = None if self.path is None or state == "stopped" else self.path.name
        sha256, answers = self.sha256 if state == "written" else None, self.answers
        answered = 0 if answers is None else answers.answered
        outcome = Outcome(**known, state=state, head=head, sha256=sha256, answers=answered)
        ended = answers if state == "written" else None

        made: list[Fact] = [outcome, *([] if self.figures is None else [Released(by=self.by, figures=self.figures)])]

        def unless_known(ledger: Ledger) -> list[Fact]:
            _check_there(ledger, self.charge)
            return [] if outcome.id in ledger.known else made

        try:
            delete = partial(kept.delete, charge=self.charge.id) if ended else lambda rows: None
            self.ledger = append(self.ledger.path, unless_known, "What became of the charge", delete)
        except UserError as error:
            # Without the ledger they are what says that there was a charge.
            return error
        if ended is not None:
            ended.remove()
        return None

    @property
    def stands(self) -> Note:
        """What is said of the charge if something stops whoever has it."""
        evaluation, spent = self.charge.method == EVALUATION, self.charge.epsilon
        what = "The training" if spent is None else f"ε = {rounded_up(spent, 6)}"
        if self.written:
            said = "" if self.path is None else f" The head was written: '{self.path}'."
        elif evaluation:
            said = " No figure was released."
        elif self.answers is not None and self.features.is_same():
            said = " No head was written. The same command resumes where it stopped, and charges nothing more."
        else:
            asks = ": it asks first" if self.charge.private else ""
            said = f" No head was written. The same command would make a new training, which is charged, too{asks}."
        what = "The evaluation" if evaluation else what
        return Note(printable(f"{what} was charged to '{self.ledger.path}' and stays charged.{said}"))


@contextmanager
def charged(
    planned: Planned,
    features: FeatureSet,
    charge: Charge,
    book: Ledger,
    *,
    by: str,
    confirm: Confirm = lambda charge, refused: refused is None,
    again: bool = False,
    keep: bool = False,
    unfinished: Unfinished | None = None,
) -> Iterator[Charged]:
    """Charge a plan to the ledger of a feature set, durably, for as long as the block runs. From its first line on its
    privacy is spent, whatever happens.

    Whether it may be charged is looked at again, while nobody else can charge anything. It is dated then: a cap may
    have been set meanwhile. A training that was stopped resumes under its own charge. If something stops the block, or
    what comes before it, one note of the exception says what is charged. At the end the ledger says what became of it:
    the block says which head, or which figures, there are (`path`, `sha256`).

    planned: what is charged. charge: what it costs, as the ledger will have it. book: the ledger as it was checked. by:
    who runs it. again: whether the same may have been charged before. keep: whether its answers are kept, so that it
    can be resumed. unfinished: the training that is resumed. UserError: somebody said no, it may not be charged, or the
    ledger cannot be written. Then nothing is charged, unless the message says that it may be. RuntimeError: the charge
    is that of another plan.
    """
    if charge.n != planned.facts.n or charge.claimed != planned.stated:
        raise RuntimeError("the charge is for something else than what is planned")
    lacks = "o figure was released." if charge.method == EVALUATION else "o head was written."
    note, found, answers = f"Nothing was charged, and n{lacks}", None, list[Answers]()
    try:
        if unfinished is None:
            refused = None if again else charged_again(book, charge, features.name)
            after = book.with_facts(charge).account_of(charge.set)
            if not confirm(question(charge, features.name, after), refused):
                raise refused or UserError("Nothing was charged.", f"N{lacks}", code="declined")
            again = again or refused is not None
        note = f"It was stopped during the charge: 'dpfc budget' says whether it is charged. N{lacks}"
        if unfinished is None:
            ledger, [made], answers = charged_together(features, [charge], book.path, again, keep)
            known: dict[str, Any] = {"planned": planned, "features": features, "charge": made, "by": by}
            found = Charged(**known, ledger=ledger, answers=answers[0] if answers else None)
        else:
            found = _resumed(planned, features, unfinished.charge, book.path, by)
        yield found
        found.unsettled = found.settle()
    except BaseException as stop:
        if found is not None:
            found.settle()
            stop.add_note(found.stands)
        # What is refused, and the ledger, say themselves what is charged.
        elif not (isinstance(stop, UserError) or notes(stop)):
            stop.add_note(Note(printable(note)))
        raise
    finally:
        for each in answers if found is None or found.answers is None else [found.answers]:
            each.close()


def charged_together(
    features: FeatureSet, charges: Sequence[Charge], path: Path, again: bool, keep: bool
) -> tuple[Ledger, list[Charge], list[Answers]]:
    """Charge a set in one transaction: all of the charges, or none. Whether they may be made is decided in it, each
    beside those before it.

    again: whether the same may have been charged before. keep: whether the answers are kept. Returns the ledger, the
    charges with their dates, and the answers of each, if they are kept. UserError: see `charged`.
    """
    made, answers = list[Charge](), list[Answers]()

    def allowed(ledger: Ledger) -> list[Charge]:
        # The charge is for the records that were checked.
        features.check_same()
        check_charge(ledger, features, *charges)
        for charge in charges:
            if not again and (refused := charged_again(ledger, charge, features.name)) is not None:
                raise refused
            made.append(structs.replace(charge, at=now()))
        return made

    def begin(rows: Connection) -> None:
        for each in answers:
            kept.begin(rows, each.charge)

    try:
        if keep:
            kept.sweep(path)
            for charge in charges:
                answers.append(Answers(path, charge.id, new=True))
        return append(path, allowed, "The charge", begin), made, answers
    except BaseException:
        for each in answers:
            each.close()
        if answers:
            with suppress(UserError):
                # Unless it was charged all the same.
                kept.sweep(path)
        raise


def _resumed(planned: Planned, features: FeatureSet, charge: Charge, path: Path, by: str) -> Charged:
    made, answers = list[Outcome](), Answers(path, charge.id)

    def goes_on(ledger: Ledger) -> list[Outcome]:
        _check_there(ledger, charge)
        last = ledger.outcome(charge.id)
        if last is not None and last.state == "written":
            raise UserError("This training has its head.", "Look for it: 'dpfc list'.", code="busy")
        after = None if last is None else last.id
        made.append(Outcome(by=by, charge=charge.id, state="resumed", answers=answers.answered, after=after))
        return made

    try:
        ledger = append(path, goes_on, "That the training resumes")
        known: dict[str, Any] = {"planned": planned, "features": features, "charge": charge, "by": by}
        return Charged(**known, ledger=ledger, after=made[0].id, answers=answers)
    except BaseException:
        answers.close()
        raise


def check_charge(ledger: Ledger, features: FeatureSet, *charges: Charge) -> None:
    """Refuse what may not be charged, of several each beside those before it. UserError: the ledger lacks the set, or a
    cap does not allow a charge.
    """
    known_set(ledger, features)
    for number, charge in enumerate(charges):
        try:
            caps.check(ledger, charge)
        except UserError as refused:
            if len(charges) > 1:
                refused.what = f"Of {len(charges)} trainings together the first {number} would fit. {refused.what}"
            raise
        ledger = ledger.with_facts(charge)


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

    def asked(of: Charge) -> tuple[object, ...]:
        return of.set, of.split, of.digest, of.epsilon, of.delta, of.releases

    return [each for each in ledger.charges if asked(each) == asked(charge)]


def charged_again(ledger: Ledger, charge: Charge, name: str, cost: str = "") -> UserError | None:
    """The refusal to charge the same training or private evaluation once more; None if it was not charged before.

    Without a guarantee it matters what became of it, because only a head is lost. charge: what would be charged. name:
    of the set. cost: what all of several charges would cost, as `question` says it; none: of this one alone.
    """
    same = charged_before(ledger, charge)
    ends = [end for each in same if (end := ledger.outcome(each.id)) is not None and end.state == "written"]
    if not (ends or (same and charge.private)):
        return None
    training = charge.method != EVALUATION
    runs = not ends and (not training or any(kept.is_held(ledger.path, each.id) for each in same))
    became = "has not ended" if not ends else f"its head is '{ends[0].head}'" if ends[0].head else "has ended"
    cost = cost or question(charge, name, ledger.with_facts(charge).account_of(charge.set))
    cost += "" if charge.private else ", for the same head to the bit"
    had = "" if training or not ends else " What it released is kept: 'dpfc evaluate --released' costs nothing."
    wait = "Wait for its end. Or give" if runs else "Give"
    return UserError(
        f"The same {'training' if training else EVALUATION} was charged before, and {became}.",
        f"{wait} the option '{parameter('again')}' to charge {cost} again.{had}",
        code="busy" if runs else "exists",
    )


def _check_there(ledger: Ledger, charge: Charge) -> None:
    if charge.id not in ledger.known:
        raise missing(
            f"The ledger {quoted(ledger.path)} does not have the charge any more: it is gone, or too old a copy.",
            "Put the newer ledger back, or unite the two: 'dpfc merge'.",
        )
