"""Writing a report to a file."""

from collections.abc import Callable
from pathlib import Path

from dpfc_cli import outputs
from dpfc_cli.errors import installing, sentence, unsupported
from dpfc_cli.extensions.publish.contents import document
from dpfc_cli.extensions.publish.html import html_of
from dpfc_cli.extensions.publish.request import Reporting
from dpfc_cli.heads import signature
from dpfc_cli.options import takes
from dpfc_cli.show.document import Document
from dpfc_cli.show.markdown import markdown
from dpfc_cli.verification import vouched


@takes(Reporting)
def write_report(wanted: Reporting) -> Path:
    """Write a report on a head: one file that somebody can read, print and file.

    Without `internal` it is for whoever gets the head, and says nothing of the records that the head does not say.

    Returns:
        The file.

    Raises:
        UserError: the head contradicts itself or its ledger; its signature is not good; a file cannot be read or
            written; there is no ledger; a package is missing; or there is another file of that name. Nothing is
            written then.

    Examples:
        >>> write_report("eps1", "report.html", internal=True)

    """
    head = vouched(wanted.head)
    path = Path(
        f"{head.file.stem}-{'internal' if wanted.internal else 'report'}.html" if wanted.out is None else wanted.out
    )
    outputs.check(path, _KINDS)
    made = _KINDS[path.suffix.lower()]
    if made is _pdf:
        _check_pdf()
    signed = signature.check(head.file, head.file, signature.Signer(public_key=wanted.public_key))
    report = document(
        head,
        signed=signed,
        sign_off=made is not markdown,
        internal=wanted.internal,
        features=wanted.features,
        ledger=wanted.ledger,
        evaluation=None if wanted.evaluation is None else Path(wanted.evaluation),
        progress=wanted.progress,
    )
    data = made(report)
    # Exact figures and the ledger are for their owner alone.
    outputs.write(path, data if isinstance(data, bytes) else data.encode(), 0o600 if wanted.internal else None)
    return path


def _check_pdf() -> None:
    """UserError where the package that writes PDF, or the library that it needs, is missing."""
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError) as error:
        raise unsupported(
            f"To write PDF, dpfc needs WeasyPrint and its library Pango: {sentence(error)}",
            f"Write .html and print it from a browser to a file. Or install both: {installing('pdf')}, and Pango from "
            "the system (Debian: apt-get install libpangoft2-1.0-0).",
            parameter="out",
            package="weasyprint",
            extra="pdf",
        ) from error


def _pdf(document: Document) -> bytes:
    import weasyprint

    return bytes(weasyprint.HTML(string=html_of(document)).write_pdf())


_KINDS: dict[str, Callable[[Document], str | bytes]] = {".html": html_of, ".md": markdown, ".pdf": _pdf}
"""How the document becomes bytes."""
