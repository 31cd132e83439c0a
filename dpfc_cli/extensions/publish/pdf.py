"""A document as PDF: its HTML page, printed."""

from dpfc_cli.errors import installing, sentence, unsupported
from dpfc_cli.extensions.publish.html import html_of
from dpfc_cli.show.document import Document

try:
    import weasyprint
except (ImportError, OSError) as error:
    raise unsupported(
        f"To write PDF, dpfc needs WeasyPrint and its library Pango: {sentence(error)}",
        f"Write .html and print it from a browser to a file. Or install both: {installing('pdf')}, and Pango from "
        "the system (Debian: apt-get install libpangoft2-1.0-0).",
        parameter="out",
        package="weasyprint",
        extra="pdf",
    ) from error


def pdf(document: Document) -> bytes:
    return bytes(weasyprint.HTML(string=html_of(document)).write_pdf())
