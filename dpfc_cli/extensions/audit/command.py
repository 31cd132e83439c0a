"""`dpfc audit`: attack every method, and print what the attacks reach beside what is claimed."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from dpfc_cli import rounding
from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.errors import UserError
from dpfc_cli.extensions.audit.request import MOST_RUNS, Auditing
from dpfc_cli.options import Value
from dpfc_cli.show.document import Document, Table, page
from dpfc_cli.version import __version__

if TYPE_CHECKING:
    from dpfc_cli.extensions.audit.audit import Audit


@command(
    "audit",
    Auditing,
    panel="Check the proofs",
    when_stopped="A method has no bound before all its runs are made. Nothing was changed.",
    computes=True,
)
def audit(**asked: Value) -> None:
    """Attack the trainings and bound their ε from below: an empirical check of the proofs and of the program.

    The records are made up, since what an audit prints is not private; your feature sets and ledgers are not touched.
    """
    from dpfc_cli.extensions.audit.audit import audits

    found: list[Audit] = []
    try:
        for each in audits(Auditing(**asked)):
            found.append(each)
    except KeyboardInterrupt:
        if found and not display.program:
            display.show(_document(found, asked["confidence"]))
        raise
    violated = [a.method for a in found if a.violated]
    _warn_of_few(found)
    told = ("confidence", "adjacency", "labels_per_record", "records_per_person")
    attacked = {name: asked[name] for name in told} | {"sampling_rate": asked["sampling_rate"] or 1.0}
    values = {"dpfc": __version__, **attacked, "violated": violated, "audits": [asdict(a) for a in found]}
    display.show(replace(_document(found, asked["confidence"]), values=values))
    if violated:
        raise UserError(
            f"{', '.join(violated)}: more is released than is claimed.",
            "This is a defect in dpfc. Trust no claim of this version, and report it.",
            code="defect",
        )


def _warn_of_few(found: Sequence["Audit"]) -> None:
    """Say where the pairs of trainings could refute nothing: then the head was not tried."""
    few = {a.method: a.least_trainings for a in found if a.whole_training.runs < a.least_trainings}
    if few:
        enough = max(few.values())
        more = f"Give --trainings {enough} or more." if enough <= MOST_RUNS else "Audit a smaller --epsilon."
        display.warn(
            f"{found[0].whole_training.runs} pairs of trainings are too few to show that a claim is false, even if "
            f"every guess were right. So this audit says nothing of the heads of {', '.join(few)}. {more}"
        )


def _verdict(audit: "Audit") -> str:
    """Whether the claim stands, and how much of what the attack could show it has shown."""
    if audit.violated:
        return "VIOLATED"
    reached = max(audit.release_level.epsilon, audit.whole_training.epsilon)
    if reached > audit.claim.epsilon or any(part.reached > part.claimed for part in audit.parts):
        return "consistent (above the claim by chance: run it again with more pairs)"
    shown = rounding.at_least(audit.release_level.epsilon, 2)
    return f"consistent ({shown} of {audit.attainable:.2f} shown)"


def _document(found: Sequence["Audit"], confidence: float) -> Document:
    columns = ("method", "verdict", "best attack", "claimed", "runs", "trainings")
    rows = [
        (
            *(a.method, _verdict(a), (*a.by, a.release_level.statistic)[0]),
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
    return page(title, *tables)
