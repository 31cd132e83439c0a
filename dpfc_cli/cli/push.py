"""`dpfc push`: a head on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command
from dpfc_cli.cli.report import Released
from dpfc_cli.options import Option


@command("push", when_stopped="The page of the repository shows whether the head was sent: all files or none.")
def push(
    head: Annotated[Path, Option("The head's file.", argument=True)],
    repository: Annotated[str, Option("The repository: hf:OWNER/NAME. A new one is made private.", argument=True)],
    license: Annotated[
        str | None,
        Option("The licence for the model card, as the hub calls it: apache-2.0.", metavar="NAME"),
    ] = None,
    evaluation: Released = None,
    public_key: Annotated[
        Path | None,
        Option("Whose signature HEAD.sig is. It is checked.", metavar="FILE"),
    ] = None,
    dry_run: Annotated[bool, Option("Show what would be sent, and send nothing.")] = False,
    as_json: Annotated[bool, Option("Print one JSON object: files and revision.", flags=("--json",))] = False,
) -> None:
    """Send a head to the Hugging Face hub, with a model card.

    It sends the head, its signature HEAD.sig if there is one, and README.md: the report for whoever gets the head
    ('dpfc report --out FILE.md'), as a model card. Nothing else leaves this machine. Log in before: hf auth login.
    A signature is checked before anything is sent: a head that is signed needs --public-key.

    The head can then be named hf:OWNER/NAME wherever a head is named, or hf:OWNER/NAME@REVISION.
    """
    from dpfc_cli.heads.head import Head
    from dpfc_cli.report.push import push as send

    if Head.load(str(head)).card["claim"] != "private":
        display.warn("this head has no guarantee: it may tell about the records that it was trained on.")
    found = send(str(head), repository, license=license, evaluation=evaluation, public_key=public_key, dry_run=dry_run)
    sizes = {name: len(data) for name, data in found.files.items()}
    if as_json:
        display.as_json(
            {
                **{"repository": found.repository, "head": found.name, "commit": found.commit},
                **{"files": sizes, "removed": found.replaced, "sent": found.commit is not None},
            }
        )
        return
    rows = [(name, f"{size:,} bytes") for name, size in sizes.items()]
    rows += [(name, "removed: it belonged to an earlier head") for name in found.replaced]
    sent = "nothing was sent (--dry-run)" if found.commit is None else f"sent as commit {found.commit}"
    display.facts(f"Repository {found.repository}", [*rows, ("in all", sent), ("the head is", found.name)])
