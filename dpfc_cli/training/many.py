"""Several trainings of one set: each value of ε with each method and each seed.

Whatever can be refused is refused for all of them before the first charge. Then all are charged in one transaction of
the ledger, and trained one after the other. **Nothing is charged twice:** a training that was charged and has no head
is one that was stopped, whose answers are kept from the first on (`ledger.answers`). So here each resumes under its
part of the common charge, and the same command resumes those that a stop has left. One whose head is there is not made
again. Trainings without a guarantee spend nothing, and are charged when they begin.
"""

import inspect
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from dpfc_cli.errors import Faults, Note, UserError, conflict, counted, parameter, printable, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import sha256_of
from dpfc_cli.heads import head as heads
from dpfc_cli.ledger.answers import Answers, Unfinished
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.file import ledger_path, read
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.options import Option, refuse_unknown, with_hooks
from dpfc_cli.rounding import rounded_up
from dpfc_cli.training.calibrate import Calibrated
from dpfc_cli.training.card import charge_of_training, seeded_of
from dpfc_cli.training.charged import charged_again, charged_before, charged_together, check_charge, question
from dpfc_cli.training.check import Checked
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import VARIED, Request, added_hooks
from dpfc_cli.training.run import run
from dpfc_cli.training.summing import Alone, summing_on
from dpfc_cli.training.train import calibrated_for, ready, train


@dataclass(frozen=True)
class TrainedRow:
    """A training as a row of a table.

    Attributes:
        method: its name.
        claim: whether there is a guarantee.
        epsilon, delta, mu: what is guaranteed; None without a guarantee.
        sigma: the noise multiplier of each release, in order.
        seed: of noise that can be repeated; None if nobody can.
        seeded_epsilon, seeded_delta: what that noise would be worth.
        head: the file.
        sha256: of that file; None if it is not there yet.
        seconds: that the training took; None if the head was there before.

    """

    method: str
    claim: str
    epsilon: float | None
    delta: float | None
    mu: float | None
    sigma: tuple[float, ...]
    seed: int | None
    seeded_epsilon: float | None
    seeded_delta: float | None
    head: str
    sha256: str | None = None
    seconds: float | None = None


def row_of(of: Calibrated, head: Path, sha256: str | None = None, seconds: float | None = None) -> TrainedRow:
    said, seeded = of.stated, seeded_of(of)
    worth: tuple[Any, Any, Any] = (seeded.seed, seeded.epsilon, seeded.delta) if seeded else (None, None, None)
    sigma = tuple(each.sigma for each in said.plan for _ in range(each.times))
    known = of.method.name, said.claim, said.epsilon, said.delta, said.mu, sigma
    return TrainedRow(*known, *worth, str(head), sha256, seconds)


@dataclass(frozen=True, kw_only=True)
class Many:
    """Trainings that nothing stands against, each by itself and all together: what is left is to charge them and to run
    them. book: the ledger as it is. runs: in order, each with its head where that is there.
    """

    features: FeatureSet
    book: Ledger
    runs: Sequence[tuple[Calibrated, Checked | Path]]

    @cached_property
    def new(self) -> list[Checked]:
        """Those that are not charged yet."""
        return [each for _, each in self.runs if isinstance(each, Checked) and each.unfinished is None]

    @property
    def charges(self) -> list[Charge]:
        return [each.charge for each in self.new]

    @cached_property
    def after(self) -> Account:
        """What will be spent then."""
        return self.book.with_facts(*self.charges).account_of(self.features.manifest.id)

    @property
    def together(self) -> float | None:
        """ε of `charges` alone, all together; None without a guarantee."""
        return self.cost(self.charges)

    def cost(self, charges: Sequence[Charge]) -> float | None:
        """ε of these alone, all together; None without a guarantee."""
        delta = next((each.delta for each in charges), None)
        return None if delta is None else replace(self.after, charges=tuple(charges)).epsilon(delta)

    @property
    def question(self) -> str:
        """What all charges cost, as it is asked before."""
        total = structs.replace(self.charges[0], epsilon=self.together)
        return question(total, f"{self.features.name} by {counted(len(self.charges), 'training')}", self.after)

    @property
    def refused(self) -> UserError | None:
        """The refusal to charge the first of them that was charged before; None: all are new, may be made again, or
        cost no ε.
        """
        if any(each.request.again for each in self.new):
            return None
        paying = (each for each in self.charges if each.private)
        found = (charged_again(self.book, each, self.features.name, self.question) for each in paying)
        return next((each for each in found if each is not None), None)

    @property
    def rows(self) -> list[TrainedRow]:
        """As they stand."""
        return [
            row_of(made, each.path) if isinstance(each, Checked) else row_of(made, each, sha256_of(each))
            for made, each in self.runs
        ]


class _Told(Observer):
    """Tells an observer of several trainings, and nothing twice. Of all of them it was asked before. which: of them is
    at work.
    """

    def __init__(self, to: Observer, again: bool = False) -> None:
        self._to, self.again, self.place, self.which = to, again, "", ""
        self._warnings: dict[str, dict[str, None]] = {}
        self.say = cache(to.say)  # type: ignore[method-assign]

    def warn(self, text: str) -> None:
        self._warnings.setdefault(text, {})[self.which] = None

    def warned(self, of: int) -> None:
        """Warn now, and say of which, unless it is of all."""
        for text, which in self._warnings.items():
            self._to.warn(text if len(which) == of else f"{', '.join(which)}: {text}")
        self._warnings.clear()

    def progress(self, stage: str, done: int, total: int | None) -> None:
        self._to.progress(f"{self.place}{stage}", done, total)

    def confirm(self, charge: str, refused: UserError | None) -> bool:
        return refused is None or self.again


def plan_many(
    features: FeatureSet, values: Mapping[str, Iterable[Any]], asked: Mapping[str, Any], observer: Observer
) -> Many:
    """Everything of several trainings that costs no privacy.

    values: those of each option of `VARIED`; none: its default. asked: the other fields of a `Request`; `out` is a
    folder. UserError: whatever can be refused, of all trainings at once; or a cap does not allow all of them.
    """
    varied = {name: given for name in VARIED if (given := tuple(dict.fromkeys(values.get(name, ()))))}
    settings = [dict(zip(varied, each, strict=True)) for each in itertools.product(*varied.values())]
    # They need one check of their records.
    asked = {"summing": Alone(), **asked}
    if (out := asked.pop("out", None)) is not None:
        asked["folder"] = Path(out)
        if heads.ending(Path(out).name) or Path(out).is_file():
            raise conflict(f"There are several heads: {parameter('out')} {quoted(out)} is no folder.", "Name a folder.")
    told, book = _Told(observer), read(ledger_path(features.folder))
    runs: dict[str, tuple[Calibrated, Checked | Path]] = {}
    wrong: dict[str, tuple[UserError, list[str]]] = {}
    names = set[str]()
    for number, setting in enumerate(settings, 1):
        told.place = f"{number} of {len(settings)}: "
        told.which = _said({name: value for name, value in setting.items() if name != "seed"})
        names.add(told.which)
        try:
            request = Request(features, **asked, **setting)
            made = calibrated_for(request, told)
            charge = charge_of_training(made, features, "head", request.whose, request.purpose)
            # 'auto' and what it stands for are one training.
            if charge.digest not in runs:
                there = None if request.again else _head_of(charge, book, request.folder)
                runs[charge.digest] = made, there or ready(request, made, told)
        except UserError as error:
            wrong.setdefault(str(error), (error, []))[1].append(_said(setting))
    faults = Faults()
    for fault, which in wrong.values():
        # What is wrong with all is said of none.
        fault.what = fault.what if len(which) == len(settings) else f"{', '.join(which)}: {fault.what}"
        faults.found.append(fault)
    faults.refuse()
    found = Many(features=features, book=book, runs=tuple(runs.values()))
    if any(each.calibrated.claimed and not each.keeps for each in found.new):
        what = "An answer of one of these trainings is too large to be kept, and a stop would lose what all have spent."
        raise conflict(what, "Train one by one.")
    check_charge(book, features, *found.charges)
    told.warned(len(names))
    written = sum(isinstance(each, Path) for _, each in found.runs)
    if others := len(found.runs) - len(found.new) - written:
        observer.say(f"{others} of {len(found.runs)} trainings resume, and nothing more is charged for them.")
    return found


def _said(setting: Mapping[str, Any]) -> str:
    return " ".join(f"{parameter(name)} {value}" for name, value in setting.items())


def _head_of(charge: Charge, book: Ledger, folder: Path) -> Path | None:
    """The head that the same training has written, if it lies in a folder."""
    for each in charged_before(book, charge):
        end = book.outcome(each.id)
        path = folder / ((end and end.head) or "")
        if end is not None and path.is_file() and sha256_of(path) == end.sha256:
            return path
    return None


def run_many(many: Many, observer: Observer) -> list[TrainedRow]:
    """Charge all trainings if the observer says yes, and run them one after the other.

    UserError: the observer said no, the charge was refused, or a training failed as `run` says. KeyboardInterrupt,
    Exception: it was stopped. A note of the exception says how many have their heads.
    """
    rows, charges = many.rows, many.charges
    paid, again, began = dict[str, Answers](), any(each.request.again for each in many.new), not charges
    if charges:
        refused = many.refused
        if not observer.confirm(many.question, refused):
            raise refused or UserError("Nothing was charged.", "No head was written.", code="declined")
        again = again or refused is not None
    told = _Told(observer, again)
    try:
        if charges and charges[0].private:
            _, charges, answers = charged_together(many.features, charges, many.book.path, again, keep=True)
            # Until it begins, no other process resumes one of them.
            paid = {each.charge: each for each in answers}
        dated, began = {each.id: each for each in charges}, True
        for number, (_, each) in enumerate(many.runs):
            if isinstance(each, Path):
                continue
            if (held := paid.pop(each.charge.id, None)) is not None:
                held.close()
                charge = dated[held.charge]
                each = replace(each, charge=charge, unfinished=Unfinished(charge=charge, answered=0, size=0))
            told.place, start = f"{number + 1} of {len(rows)}: ", time.monotonic()
            told.which, told.again = each.path.name, again or not each.charge.private
            trained = run(each, told)
            told.warned(0)
            known: dict[str, Any] = {"head": str(trained.path), "sha256": trained.sha256}
            rows[number] = replace(rows[number], **known, seconds=time.monotonic() - start)
    except BaseException as stop:
        if began or not isinstance(stop, UserError):
            there, how = sum(each.sha256 is not None for each in rows), " without 'again'" if again else ""
            said = f"The same command{how} goes on with the others, and charges nothing twice."
            all_of = [each.charge for _, each in many.runs if isinstance(each, Checked)]
            if began and (spent := many.cost(all_of)) is not None:
                # What stopped within one training says what that one cost.
                stop.__notes__ = [each for each in getattr(stop, "__notes__", []) if not isinstance(each, Note)]
                cost = f"ε = {rounded_up(spent, 6)} was charged for {counted(len(all_of), 'training')} together"
                stop.add_note(Note(printable(f"{cost} to '{many.book.path}', and stays charged.")))
            stop.add_note(Note(f"{there} of {len(rows)} trainings are done. {said}"))
        raise
    finally:
        for held in paid.values():
            held.close()
    return rows


def train_many(
    features: FeatureSet,
    *,
    epsilon: float | Sequence[float] = (),
    method: str | Sequence[str] = (),
    seed: int | Sequence[int] = (),
    **options: Any,
) -> list[TrainedRow]:
    """Train a head for each ε with each method and each seed, and charge them together: all of them or none.

    The same call again goes on with those that have no head.

    Args:
        features: the private records, see `dpfc_cli.open_features`.
        epsilon: one or several, see `dpfc_cli.train`.
        method: one or several names.
        seed: one or several.
        options: the others of `dpfc_cli.train`. `out` is a folder.

    Returns:
        A row for each head. `pandas.DataFrame` takes them.

    Raises:
        UserError: as for `dpfc_cli.train`, of all trainings at once. Nothing was charged, unless a note says so.

    Examples:
        rows = dpfc.train_many(dpfc.open_features("digits-scattering"), epsilon=[0.5, 1, 8], method=["dp-ls", "dp-fc"])
        found = dpfc.compare([dpfc.Head.load(row.head) for row in rows], features)

    """
    Option("", kind="set").taken("features", features)
    refuse_unknown("train_many", options, inspect.signature(train).parameters)
    observer = options.pop("observer", None) or Observer()
    values = {"epsilon": epsilon, "method": method, "seed": seed}
    several = {name: np.atleast_1d(np.asarray(each)).tolist() for name, each in values.items()}
    asked = with_hooks(options, added_hooks())
    with summing_on(options.get("on"), observer.say) as summing:
        return run_many(plan_many(features, several, asked | {"summing": summing}, observer), observer)
