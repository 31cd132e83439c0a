"""Writing a report to a file."""

from pathlib import Path

from dpfc_cli import outputs
from dpfc_cli.extensions.publish.contents import document
from dpfc_cli.extensions.publish.request import Reporting
from dpfc_cli.heads import signature
from dpfc_cli.options import takes
from dpfc_cli.verification import vouched


@takes(Reporting)
def write_report(wanted: Reporting) -> Path:
    """Write a report on a head: one file that somebody can read, print and file.

    A shared one is for whoever gets the head, and says nothing of the records that the head does not say.

    Returns:
        The file.

    Raises:
        UserError: the head contradicts itself or its ledger; its signature is not good; a file cannot be read or
            written; there is no ledger; a package is missing; or there is another file of that name. Nothing is
            written then.

    Examples:
        >>> write_report("eps1", "report.html", kind="internal")

    """
    head = vouched(wanted.head)
    path = Path(wanted.out or f"{head.file.stem}-{wanted.kind}.html")
    made = outputs.writer("document", path)
    signed = signature.check(head.file, head.file, signature.Signer(public_key=wanted.public_key))
    # Exact figures and the ledger are for their owner alone.
    outputs.write(path, made(document(head, wanted, signed)), None if wanted.kind == "shared" else 0o600)
    return path
