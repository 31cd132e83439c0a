"""`dpfc audit`: attack every method, and print what the attacks reach beside what is claimed."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import JSON
from dpfc_cli.options import Option
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.show.document import Table, page

if TYPE_CHECKING:
    from dpfc_cli.audit.audit import Audit
    from dpfc_cli.methods import AnyMethod
    from dpfc_cli.methods.method import Given
    from dpfc_cli.privacy.facts import Facts

STEPS = 3
"""Of methods that iterate: enough to tell steps apart. All steps run the same code."""
MOST_RUNS = 10_000_000
MOST_LABELS = 32


@command("audit")
def audit(
    method: Annotated[str, Option("The method to attack, or all.")] = "all",
    epsilon: Annotated[float, Option("ε that is claimed.")] = 1.0,
    delta: Annotated[float, Option("δ that is claimed.")] = 1e-5,
    runs: Annotated[
        int, Option("Pairs of runs of the releases, for each attack on them.", low=1, high=MOST_RUNS)
    ] = 10_000,
    trainings: Annotated[int, Option("Pairs of whole trainings.", low=1, high=MOST_RUNS)] = 2_000,
    confidence: Annotated[float, Option("Of each lower bound.", low=0.5, high=1, open=True)] = 0.95,
    adjacency: Annotated[
        Adjacency,
        Option(
            "What the guarantee hides. zero-out: whether one record (or person) was used or counted as null. "
            "replace-one: which of two was used."
        ),
    ] = "zero-out",
    sampling_rate: Annotated[
        float | None,
        Option("Attack trainings on Poisson samples with this rate, of the methods that can sample."),
    ] = None,
    labels_per_record: Annotated[
        int, Option("Attack the guarantee for records with so many labels.", low=1, high=MOST_LABELS)
    ] = 1,
    records_per_person: Annotated[
        int | None, Option("Attack the guarantee for persons with so many records.", low=1)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Attack the trainings and bound their ε from below: an empirical check of the proofs and of the program.

    The records are made up, since what an audit prints is not private; your feature sets and ledgers are not touched.
    """
    from dpfc_cli.audit.canary import facts_of
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.methods import METHODS, method_named
    from dpfc_cli.privacy.persons import MOST

    if records_per_person is not None and records_per_person > MOST:
        raise UserError(
            f"{parameter('records_per_person')} {records_per_person:,} is too many: of one person {MOST:,} count.",
            f"Give {MOST} or fewer.",
            parameter="records_per_person",
        )
    facts = facts_of(records_per_person, labels_per_record, adjacency)
    given = {} if sampling_rate is None else {"sampling_rate": sampling_rate}
    able = [each for each in METHODS.values() if given.keys() <= each.declared.keys()]
    chosen = able if method == "all" else [method_named(method, facts)]
    found = [_audited(each, facts, given, epsilon, delta, runs, trainings, confidence) for each in chosen]
    violated = [a.method for a in found if a.violated]
    _warn_of_few(found)
    if as_json:
        attacked = {
            "adjacency": facts.adjacency,
            "sampling_rate": sampling_rate or 1.0,
            "labels_per_record": labels_per_record,
            "records_per_person": records_per_person,
        }
        audits = [asdict(a) for a in found]
        display.as_json({"confidence": confidence, **attacked, "violated": violated, "audits": audits})
    else:
        _show(found, confidence)
    if violated:
        display.fail(
            f"{', '.join(violated)}: more is released than is claimed.",
            "This is a defect in dpfc. Trust no claim of this version, and report it.",
        )
        raise typer.Exit(1)


def _audited(
    method: "AnyMethod",
    facts: "Facts",
    given: "Given",
    epsilon: float,
    delta: float,
    runs: int,
    trainings: int,
    confidence: float,
) -> "Audit":
    from dpfc_cli.audit.audit import audit as attacked
    from dpfc_cli.audit.game import least_runs
    from dpfc_cli.audit.signals import Signals
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.privacy.noise import SystemBits
    from dpfc_cli.training.calibrate import calibrate
    from dpfc_cli.training.request import Privacy

    given = {**given, **({"steps": STEPS} if "steps" in method.declared else {})}
    c = calibrate(method, facts, given, Privacy(epsilon=epsilon, delta=delta, allow_large_delta=True))
    assert c.guarantee is not None
    assert c.mechanism is not None
    least = least_runs(Signals.of(c.mechanism))
    if runs < least:
        raise UserError(
            f"{parameter('runs')} {runs} is too few to show that a claim of epsilon = {epsilon:g} at delta = {delta:g} "
            "is false, even if every guess were right.",
            f"Give {parameter('runs')} {least} or more."
            if least <= MOST_RUNS
            else f"Audit a smaller {parameter('epsilon')}.",
        )
    with display.meter(f"Attacking {method.name}", "pairs") as progress:
        return attacked(
            method, c.options, c.mechanism, c.guarantee, runs, trainings, confidence, SystemBits(), progress
        )


def _warn_of_few(found: list["Audit"]) -> None:
    """Say where the pairs of trainings could refute nothing: then the head was not tried."""
    few = {a.method: a.least_trainings for a in found if a.whole_training.runs < a.least_trainings}
    if few:
        enough = max(few.values())
        more = f"Give --trainings {enough} or more." if enough <= MOST_RUNS else "Audit a smaller --epsilon."
        display.warn(
            f"{found[0].whole_training.runs} pairs of trainings are too few to show that a claim is false, even if "
            f"every guess were right. So this audit says nothing of the heads of {', '.join(few)}. {more}"
        )


def _show(found: list["Audit"], confidence: float) -> None:
    columns = ("method", "verdict", "best attack", "claimed", "runs", "trainings")
    rows = [
        (
            *(a.method, "VIOLATED" if a.violated else "consistent", (*a.by, a.release_level.statistic)[0]),
            *(rounding.epsilon(a.claim.epsilon), f"{a.release_level.runs:,}", f"{a.whole_training.runs:,}"),
            *(
                rounding.epsilon(a.attainable),
                rounding.at_least(a.release_level.epsilon, 4),
                rounding.at_least(a.whole_training.epsilon, 4),
            ),
        )
        for a in found
    ]
    title = (
        f"Epsilon at delta = {found[0].claim.delta:g}: what is claimed, what the attack on all releases can reach, and "
        f"what all releases and the head alone lose at least ({confidence:.4g} confidence, pairs of runs and of "
        "trainings)"
    )
    tables = [Table((*columns, "attainable", "all releases", "the head"), rows, left=6)]
    parts = [
        (
            a.method,
            p.kind,
            f"{p.runs:,}",
            rounding.epsilon(p.claimed),
            rounding.epsilon(p.attainable),
            rounding.at_least(p.reached, 4),
        )
        for a in found
        for p in a.parts
    ]
    if parts:
        each = (
            "Each kind of releases by itself: what its noise claims, what the attack on it can reach, and what it loses"
        )
        tables.append(Table(("method", "releases", "runs", "claimed", "attainable", "lost"), parts, left=3, title=each))
    display.show(page(title, *tables))
    for a in found:
        seen = a.release_level.epsilon > a.claim.epsilon or any(p.reached > p.claimed for p in a.parts)
        if (seen or a.whole_training.epsilon > a.claim.epsilon) and not a.violated:
            display.say(
                f"{a.method}: the bound is above the claim, which happens by chance in up to {1 - confidence:.2g} of "
                f"audits of a true claim. Run it again with more {'--runs' if seen else '--trainings'}."
            )
