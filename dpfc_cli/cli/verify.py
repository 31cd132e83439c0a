"""`dpfc verify`: whether a head can be what its card says, for whoever receives it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import Full
from dpfc_cli.cli.typed import JSON, NEWEST, head_or_newest
from dpfc_cli.errors import UserError, parameter
from dpfc_cli.options import Option

SHOWN = {"ok": "ok", "contradicts": "CONTRADICTS", "unknown": "cannot be known"}


@command("verify")
def verify(
    head: Annotated[Path | None, NEWEST] = None,
    ledger: Annotated[
        Path | None,
        Option(
            "The ledger that its training was charged to. Default: that of the head's feature set, if it is here.",
            metavar="FILE",
        ),
    ] = None,
    signature: Annotated[
        Path | None,
        Option("The signature that 'model_signing sign' made. Default: HEAD.sig.", metavar="FILE"),
    ] = None,
    public_key: Annotated[
        Path | None, Option("The holder of its private key must have signed.", metavar="FILE")
    ] = None,
    certificate_chain: Annotated[
        Path | None,
        Option("The holder of a certificate under one of these must have signed.", metavar="FILE"),
    ] = None,
    identity: Annotated[
        str | None, Option("Who must have signed through Sigstore: a mail address.", metavar="NAME")
    ] = None,
    identity_provider: Annotated[str | None, Option("The https address of who knows this name.", metavar="URL")] = None,
    strict: Annotated[bool, Option("End with an exit code above 0 if something could not be checked, too.")] = False,
    full: Full = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check whether a head can be what its card says.

    It computes epsilon again, and compares the releases with those of the method, and the file with the ledger. It ends
    with exit code 5 if anything contradicts, or if the signature is not good.
    """
    from dpfc_cli.heads.head import shown
    from dpfc_cli.trust.card import refused
    from dpfc_cli.verification import verify as checked

    found = checked(
        head_or_newest(head),
        ledger=ledger,
        signature=signature,
        public_key=public_key,
        certificate_chain=certificate_chain,
        identity=identity,
        identity_provider=identity_provider,
    )
    wrong = found.contradictions
    unknown = [each.what for each in found.findings if each.result == "unknown"]
    if as_json:
        display.as_json(
            {
                **{"head": shown(found.path), "sha256": found.sha256, "ledger": found.ledger and str(found.ledger)},
                "signature": found.signature and {**asdict(found.signature), "path": str(found.signature.path)},
                **{"contradictions": wrong, "not checked": unknown, "unproved": found.unproved},
                "checks": [asdict(finding) for finding in found.findings],
            }
        )
    else:
        rows = [(each.what, f"{SHOWN[each.result]}: {each.why}") for each in found.findings]
        # Who signed is what a signature is asked for.
        good = [each for each in found.findings if each.result == "ok" and each.what != "signature"]
        short = [row for row, each in zip(rows, found.findings, strict=True) if each not in good]
        short += [("ok", ", ".join(each.what for each in good))] if good else []
        outcome = "Something contradicts" if wrong else "Nothing contradicts"
        digest, limits = ("SHA-256 of the file", found.sha256), ("cannot be proved", "; ".join(found.unproved))
        left = f" (not checked: {', '.join(unknown)})" if unknown else ""
        display.facts(f"{outcome}{left}: head {shown(found.path)}", [*(rows if full else short), digest, limits])
    if wrong:
        raise refused(found.path, wrong, "Do not rely on it: ask whoever made it for the head and its ledger again.")
    if strict and unknown:
        raise UserError(
            f"Not checked: {', '.join(unknown)}.",
            f"Give what it takes, such as {parameter('ledger')}, or leave out {parameter('strict')}.",
            code="missing",
        )
