"""`dpfc statement`: what is claimed of a head, for whoever must defend it."""

from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import NEWEST, head_or_newest
from dpfc_cli.options import Option


@command("statement", panel="Pictures and heads")
def statement(
    head: Annotated[Path | None, NEWEST] = None,
    records_per_person: Annotated[
        int | None, Option("Say which ε the head has for a person with so many records.", low=1, high=10_000)
    ] = None,
) -> None:
    """Show what is claimed of a head, from its card, with the SHA-256 of its file."""
    from dpfc_cli.errors import conflict, parameter
    from dpfc_cli.files import sha256_of
    from dpfc_cli.heads.head import shown
    from dpfc_cli.records import statement as statements
    from dpfc_cli.verification import vouched

    found = vouched(head_or_newest(head))
    path = found.file
    if records_per_person is not None and found.card.unit == "person":
        raise conflict(
            f"{parameter('records_per_person')} has no effect: this head protects persons with all their records.",
            "Leave it out.",
        )
    groups = statements.GROUPS if records_per_person is None else (records_per_person,)
    display.show(statements.document(found.card, sha256_of(path), groups, shown(path)))
    display.say("This is what the card of the head says. 'dpfc verify' checks it.")
