"""`dpfc statement`: what is claimed of a head. `dpfc verify`: whether it can be so, for whoever receives it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import NEWEST, head_or_newest
from dpfc_cli.errors import conflict, counted, missing, parameter
from dpfc_cli.heads.signature import Checking
from dpfc_cli.options import Option, Value
from dpfc_cli.show.document import Points, Rows, Words, page


@command("statement", panel="Pictures and heads")
def statement(
    head: Annotated[Path | None, NEWEST] = None,
    records_per_person: Annotated[
        int | None, Option("Say which ε the head has for a person with so many records.", low=1, high=10_000)
    ] = None,
) -> None:
    """Show what is claimed of a head, from its card, with the SHA-256 of its file."""
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


@command("verify", Checking, panel="Pictures and heads")
def verify(head: Annotated[Path | None, NEWEST] = None, full: Full = False, **asked: Value) -> None:
    """Check whether a head can be what its card says.

    It computes epsilon again, and compares the releases with those of the method, and the file with the ledger. It ends
    with exit code 5 if anything contradicts, or if the signature is not good; with 2 if no ledger has its charge and no
    signature was checked.
    """
    from dpfc_cli.heads.head import shown
    from dpfc_cli.ledger.file import read
    from dpfc_cli.privacy.accounting import default_delta
    from dpfc_cli.records.findings import UNPROVED, refused
    from dpfc_cli.records.statement import brief
    from dpfc_cli.report import account as accounts
    from dpfc_cli.report.evaluated import cost_of
    from dpfc_cli.verification import verify as checked

    found = checked(head_or_newest(head), **asked)
    wrong = found.contradictions
    unknown = [each.what for each in found.findings if each.result == "unknown"]
    account, delta = found.account, found.card.delta or default_delta(found.card.facts.n)
    book = None if account is None else read(account.ledger)
    values = {
        "schema": "dpfc/verify/1",
        **{"head": shown(found.path), "sha256": found.sha256, "ledger": found.ledger and str(found.ledger)},
        **{"state": found.state, "verdict": found.verdict, "as_of": book and book.newest, **cost_of(found.card)},
        "signature": found.signature and {**asdict(found.signature), "path": str(found.signature.path)},
        **{"contradictions": wrong, "not checked": unknown, "unproved": found.unproved},
        "checks": [asdict(finding) for finding in found.findings],
        "spent": account and book and accounts.values(account, book, (delta,)),
    }
    rows = [(each.what, f"{each.shown}: {each.why}") for each in found.findings]
    # Who signed is what a signature is asked for. The error has what contradicts.
    plain = [(each.result != "unknown") != (each.what == "signature") for each in found.findings]
    short = [row for row, left_out in zip(rows, plain, strict=True) if not left_out]
    good = sum(each.result == "ok" for each in found.findings)
    left = f"; not checked: {', '.join(unknown)}" if unknown else ""
    short.append(("ok", f"{good} of {counted(len(rows), 'check')}: --full shows them{left}"))
    claimed = ("claimed", "; ".join(said for _, said in brief(found.card)))
    first = [("head", shown(found.path)), ("SHA-256 of this head", found.sha256), claimed]
    told = [Rows([*first, *(rows if full else short)]), Words(UNPROVED), Points(found.unproved)]
    now = accounts.brief(account, book, delta) if account and book else []
    display.show(page(found.verdict[0].upper() + found.verdict[1:], *told, *now, values=values))
    if wrong:
        raise refused(found.path, wrong, "Do not rely on it: ask whoever made it for the head and its ledger again.")
    if found.account is None and found.signature is None:
        why = next(each.why for each in found.findings if each.what == "ledger")
        raise missing(
            f"Nothing but the head itself says so. No signature was checked, and {why}.",
            f"Give {parameter('ledger')} or {parameter('public_key')}.",
        )
