"""`dpfc report`: one file on a head that can be read, printed and filed."""

from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.help import HEAD
from dpfc_cli.options import Option

Released = Annotated[
    Path | None,
    Option(
        "What 'dpfc evaluate HEAD --epsilon E --json' wrote: noisy figures, which may be shown to anyone.",
        metavar="FILE",
    ),
]


@command("report", when_stopped="No report was written.")
def report(
    head: Annotated[Path, Option(HEAD, argument=True)],
    out: Annotated[Path, Option("The file to write: .html, .md (a model card) or .pdf.", metavar="FILE")],
    internal: Annotated[
        bool,
        Option(
            "Add what is for the holder of the records only: the ledger with all trainings, who did them and why, "
            "the cap, and exact figures on the test split. Default: what may be shown to whoever gets the head."
        ),
    ] = False,
    features: Annotated[
        str | None,
        Option(
            "With --internal: the feature set, by path or name. Default: the one that the head was trained on.",
            metavar="SET",
        ),
    ] = None,
    evaluation: Released = None,
    as_json: Annotated[bool, Option("Print one JSON object: which report was written.", flags=("--json",))] = False,
) -> None:
    """Write a report on a head: what was trained on what, the guarantee in words and as a curve, what is not covered.

    To read it takes no network and no script. It prints on A4. The same files give the same report, to the last byte.
    With --internal it also has the ledger and exact figures, and says that it is not to be published.
    """
    from dpfc_cli.files import sha256_of
    from dpfc_cli.report.write import write_report

    with display.stages("Evaluating", "records") as progress:
        path = write_report(
            str(head), out, internal=internal, features=features, evaluation=evaluation, progress=progress
        )
    if as_json:
        display.as_json({"report": str(path), "internal": internal, "sha256": sha256_of(path)})
        return
    whom = "internal: for the holder of the records only" if internal else "for whoever gets the head"
    display.facts(f"Report {path}", [("kind", whom), ("SHA-256 of the file", sha256_of(path))])
