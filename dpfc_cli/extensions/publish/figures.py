"""Figures of a private evaluation in a file: exact ones are refused, for no noise protects them."""

from pathlib import Path

from dpfc_cli.errors import UserError, conflict, damaged, parameter, quoted
from dpfc_cli.files import json_in
from dpfc_cli.ledger.totals import Ledger
from dpfc_cli.reading import readable
from dpfc_cli.records.figures import Figures, Output, digest_of
from dpfc_cli.structs import Fault, decoded


def released_in(path: Path, digest: str) -> Figures:
    """The released figures in a file. Whoever changes them can compute their digest again: `check_charged` compares it
    with a ledger.

    UserError: the file is missing or no such output, or its figures were changed, are exact, or not of the head with
    this SHA-256.
    """
    kind = f"the output of 'dpfc evaluate --json' ({parameter('evaluation')})"
    with readable(path, kind, "Write it again.", plain=False):
        found = json_in(path)
    if isinstance(found, dict) and "figures" not in found and "top1" in found:
        raise UserError(
            f"The figures in {quoted(path)} are exact: they protect no record of the split.",
            "Release figures with noise: 'dpfc evaluate --epsilon'. With a large epsilon, for public records, the "
            f"noise is a fraction of a record. Or leave out {parameter('evaluation')} and write an internal report "
            f"({parameter('internal')}): it has exact figures.",
            code="private-records",
        )
    try:
        output = decoded(found, Output)
        if digest_of(found["figures"]) != output.sha256:
            raise Fault("sha256")
    except Fault as fault:
        raise damaged(
            f"{quoted(path)} is not what 'dpfc evaluate --epsilon E --json' wrote: '{fault.place[:80]}' is missing, or "
            "was changed, or makes no sense.",
            "Give what the command wrote.",
            parameter="evaluation",
        ) from None
    figures = output.figures
    if figures.head_sha256 != digest:
        raise conflict(
            f"The figures in {quoted(path)} are of another head: its SHA-256 begins with {figures.head_sha256[:12]}, "
            f"and that of this one with {digest[:12]}.",
            "Give the figures of this head.",
            parameter="evaluation",
        )
    return figures


def check_charged(figures: Figures, book: Ledger) -> None:
    """Compare figures that were loaded with what the ledger says of their charge. UserError: it has other ones."""
    outcome = book.outcome(figures.charge)
    if outcome is None or outcome.sha256 != figures.sha256:
        raise damaged(
            f"The ledger of the training has no such figures as those of {parameter('evaluation')}: they were changed, "
            "or charged to another ledger.",
            f"Give them as 'dpfc evaluate' wrote them. Without {parameter('internal')} they are not compared, and the "
            "report says so.",
            parameter="evaluation",
        )
