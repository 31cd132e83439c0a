"""`dpfc report`: one file on a head that can be read, printed and filed."""

from pathlib import Path
from typing import Annotated, Any

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.typed import JSON, NEWEST, head_or_newest
from dpfc_cli.extensions.publish.request import Reporting


@command("report", Reporting, panel="For others", when_stopped="No report was written.")
def report(head: Annotated[Path | None, NEWEST] = None, as_json: Annotated[bool, JSON] = False, **asked: Any) -> None:
    """Write a report on a head: what was trained on what, the guarantee in words and as a curve, what is not covered.

    To read it takes no network and no script. It prints on A4. The same files give the same report, to the last byte.
    With --internal it also has the ledger and exact figures, and says that it is not to be published.
    """
    from dpfc_cli.extensions.publish.write import write_report
    from dpfc_cli.files import sha256_of

    found = head_or_newest(head)
    path = write_report(found, **asked)
    if as_json:
        display.as_json({"report": str(path), "internal": asked["internal"], "sha256": sha256_of(path)})
        return
    whom = "internal: for the holder of the records only" if asked["internal"] else "for whoever gets the head"
    display.facts(f"Report {path}", [("kind", whom), ("SHA-256 of the file", sha256_of(path))])
