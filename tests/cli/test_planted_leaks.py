"""Leaks past the curator, planted one by one: `test_non_interference` shows each, where it was planted."""

import os
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.cli import display
from dpfc_cli.cli import train as command
from dpfc_cli.errors import UserError
from dpfc_cli.evaluation import evaluate as evaluation
from dpfc_cli.evaluation import private as private_evaluation
from dpfc_cli.features.lookup import finished
from dpfc_cli.features.manifest import Manifest
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads import head as heads
from dpfc_cli.heads.head import Head
from dpfc_cli.ledger import caps
from dpfc_cli.ledger.facts import Charge
from dpfc_cli.ledger.totals import Account, Ledger
from dpfc_cli.privacy import curator, sums
from dpfc_cli.records.card import Card
from dpfc_cli.training import card, check, request, run
from dpfc_cli.training import train as training
from dpfc_cli.training.check import Checked
from tests.cli.worlds import LINE, PRIVATE, Clock, Fault, M, N, both, differences
from tests.support import replace


def labels() -> np.ndarray:
    return FeatureSet("features/private").arrays("train")[1]


def nulls() -> int:
    """The number of null records: it depends on the records, and is no public fact."""
    return int((labels() < 0).all(axis=1).sum())


def fault(place: Any, name: str, make: Callable[[Any], Any]) -> Fault:
    """A fault that makes something else of a function."""
    return lambda patch: patch.setattr(place, name, make(getattr(place, name)))


def after(place: Any, name: str, change: Callable[[Any], Any]) -> Fault:
    """A fault that changes what a function gives."""
    return fault(place, name, lambda real: lambda *given, **named: change(real(*given, **named)))


def before(place: Any, name: str, do: Callable[[], object]) -> Fault:
    """A fault that does something more before a function."""
    return fault(place, name, lambda real: lambda *given, **named: (do(), real(*given, **named))[1])


def computed(owner: type, name: str, change: Callable[[Any, Any], Any]) -> Fault:
    """A fault in a property."""
    return fault(owner, name, lambda real: property(lambda self: change(self, real.fget(self))))


def counts() -> list[int]:
    return [int((labels() == label).sum()) for label in range(M)]


def counted(card: Card) -> Card:
    return replace(card, parts={"counts": {"of": counts()}})


def heaviest_first(card: Card) -> Card:
    sizes = counts()
    return replace(card, classes=tuple(card.classes[i] for i in sorted(range(M), key=lambda i: -sizes[i])))


def scaled(head: Head) -> Head:
    x = FeatureSet("features/private").arrays("train")[0]
    return replace(head, weight=head.weight * (1 + np.tanh(np.nanmean(np.clip(x, -1, 1)))))


def clipped_by_the_records(asked: request.Request) -> request.Request:
    x = np.clip(FeatureSet("features/private").arrays("train")[0], -9, 9)
    return replace(asked, feature_clip=float(np.nanmax(np.linalg.norm(x, axis=1))))


def early_stopping(real: Callable[..., Any]) -> Callable[..., Any]:
    def shortened(checked: Checked, observer: Any) -> Any:
        fewer, method = int(nulls() > 0), checked.calibrated.method
        solve = lambda oracle, facts, made: method.solve(oracle, facts, replace(made, steps=made.steps - fewer))  # noqa: E731
        return real(
            replace(checked, calibrated=replace(checked.calibrated, method=replace(method, solve=solve))), observer
        )

    return shortened


def common(folder: Path, *sets: str) -> bool:
    """Whether two sets of a folder have a record in common."""
    known = {each.manifest.id: each for each in map(FeatureSet, finished(folder))}
    one, other = ({row.tobytes() for row in known[of].arrays("train")[0]} for of in sets)
    return bool(one & other)


def of_the_same_records(real: Callable[..., Account]) -> Callable[..., Account]:
    """The total of a set, without the sets that have no record in common with it."""

    def account_of(ledger: Ledger, of: str) -> Account:
        found = real(ledger, of)
        kept = [each for each in found.charges if each.set == of or common(ledger.path.parent, each.set, of)]
        return replace(found, charges=tuple(kept))

    return account_of


def room_of_other_records(real: Callable[..., None]) -> Callable[..., None]:
    """A cap passes over the sets that have no record in common with the one that is charged."""

    def check(ledger: Ledger, charged: Charge) -> None:
        same = of_the_same_records(Ledger.account_of)(ledger, charged.set).charges
        others = {each.id for each in ledger.all(Charge)} - {each.id for each in same}
        real(replace(ledger, facts=tuple(fact for fact in ledger.facts if fact.id not in others)), charged)

    return check


def refuse() -> None:
    if nulls():
        raise UserError("There are records without a label.", "Label them.", code="bad-record")


def said_to_a_library() -> None:
    os.write(2, f"{nulls()} records are empty\n".encode())


def noted(path: str) -> Callable[[], object]:
    return lambda: Path(path).write_text(str(counts()))


def warned() -> None:
    if max(counts()) > 2 * min(counts()):
        display.warn("the classes are of unequal size")


FAULTS: dict[str, tuple[str, Fault]] = {
    "exact class counts in the card": ("heads/", after(run, "card_of", counted)),
    "the card's classes by their sizes": ("heads/", after(run, "card_of", heaviest_first)),
    "a digest of the records in the fingerprint": (
        "heads/",
        computed(Manifest, "fingerprint", lambda self, found: self.identity.listing["train"]),
    ),
    "weights in proportion to a mean of the records": ("heads/", after(run, "Head", scaled)),
    "a default read off the records": (
        "heads/",
        fault(training, "plan", lambda real: lambda asked, observer: real(clipped_by_the_records(asked), observer)),
    ),
    "steps until the records are learned": ("heads/", fault(run, "run", early_stopping)),
    "more noise for null records": ("heads/", after(curator, "draw_noise", lambda drawn: drawn << min(nulls(), 1))),
    "a file as long as the labelled records": ("heads/", after(heads, "encoded", lambda data: data + bytes(nulls()))),
    "a file name with a count": ("heads/", after(check, "path_of", lambda p: p.with_name(f"{nulls()}-{p.name}"))),
    "a temporary name with a count": (
        "meanwhile",
        before(run, "run", lambda: Path(f"features/.{nulls()}.tmp").touch()),
    ),
    "a file of statistics beside the heads": (".counts", before(heads, "make", noted("heads/.counts"))),
    "a figure of the records in the charge": (
        "ledger.sqlite",
        after(card, "charge_of", lambda made: replace(made, purpose=str(nulls()))),
    ),
    "a clock that is asked once for every null record": (
        "ledger.sqlite",
        before(run, "spending", lambda: [Clock.now(UTC) for _ in range(nulls())]),
    ),
    "a warning of unequal classes": ("stderr", before(training, "check", warned)),
    "a warning of NumPy about huge numbers": (
        "stderr",
        before(sums, "exact_sum", lambda: FeatureSet("features/private").arrays("train")[0].astype(np.float16)),
    ),
    "a line of a log with the number of null records": (
        "stderr",
        before(run, "run", lambda: print(nulls(), file=sys.stderr)),  # noqa: T201
    ),
    "a line of a library with that number": ("stderr", before(run, "run", said_to_a_library)),
    "progress of the labelled records alone": (
        "stderr",
        fault(curator._Passes, "_read", lambda real: lambda self, done, n: real(self, done, n - nulls())),
    ),
    "a result with the number of null records": ("stdout", before(run, "run", lambda: print(nulls()))),  # noqa: T201
    "an exit code": ("code", after(command, "_show_head", lambda shown: sys.exit(3 if nulls() else 0))),
    "a refusal": ("code", before(check, "check_memory", refuse)),
    "an evaluation that looks at the training split": (
        "evaluate --json: stdout",
        before(evaluation, "_fitted", lambda: display.warn(f"{nulls()} records were empty")),
    ),
    "a list of the labelled records": (
        "list --json: stdout",
        computed(FeatureSet, "splits", lambda self, rows: {name: n - nulls() for name, n in rows.items()}),
    ),
}


WARD = "train --features ward --method dp-ls --epsilon 1 --out heads/w.safetensors"
LATER, SECOND = WARD.replace("ward", "later").replace("w.", "l."), "evaluate w --features later --epsilon 1 --json"
OF_TWO_SETS: dict[str, tuple[tuple[str, ...], str, Fault]] = {
    "a total of the sets with common records, in a card": (
        (WARD, LATER),
        "heads/l.safetensors",
        fault(Ledger, "account_of", of_the_same_records),
    ),
    "such a total in figures": (
        (WARD, SECOND),
        f"{SECOND}: stdout",
        fault(Ledger, "account_of", of_the_same_records),
    ),
    "a cap that looks for common records": (
        ("cap 1.2 --features ward", WARD, LATER),
        f"{LATER}: code",
        fault(caps, "check", room_of_other_records),
    ),
}
IN_EVALUATIONS: dict[str, tuple[str, Fault]] = {
    "the exact number of labelled records": (
        "stdout",
        after(private_evaluation, "_figures", lambda found: replace(found, n=N - nulls())),
    ),
    "a warning of unequal classes": ("stderr", before(private_evaluation, "_figures", warned)),
    "a refusal": ("code", before(private_evaluation, "_answers", refuse)),
}
EVALUATED = (f"{PRIVATE} --method dp-ls --out heads/h.safetensors", "evaluate h --split train --epsilon 1")


@pytest.mark.parametrize("fault", IN_EVALUATIONS)
def test_leaks_planted_in_a_private_evaluation_are_seen(worlds: dict[str, Path], here: Path, fault: str) -> None:
    where, plant = IN_EVALUATIONS[fault]
    found = differences(*both(worlds, here, EVALUATED, plant))
    assert any(name == f"{EVALUATED[1]}: {where}" for name in found), found


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_leaks_are_seen(worlds: dict[str, Path], here: Path, fault: str) -> None:
    where, plant = FAULTS[fault]
    more = [where.partition(":")[0]] if where.startswith(("evaluate", "list")) else []
    found = differences(*both(worlds, here, (LINE, *more), plant))
    assert any(where in name for name in found), found


@pytest.mark.parametrize("fault", OF_TWO_SETS)
def test_leaks_of_which_sets_have_common_records_are_seen(worlds: dict[str, Path], here: Path, fault: str) -> None:
    lines, where, plant = OF_TWO_SETS[fault]
    assert where in differences(*both(worlds, here, lines, plant))
