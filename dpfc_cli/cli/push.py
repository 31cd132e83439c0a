"""`dpfc push`: a head on the Hugging Face hub."""

from pathlib import Path
from typing import Annotated

import typer

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command


@command("push", "The page of the repository shows whether the head was sent: all files or none.")
def push(
    head: Annotated[Path, typer.Argument(help="The head's file.")],
    repository: Annotated[str, typer.Argument(help="The repository: hf:OWNER/NAME. A new one is made private.")],
    license: Annotated[
        str | None,
        typer.Option(help="The licence for the model card, as the hub calls it: apache-2.0.", metavar="NAME"),
    ] = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Noisy figures for the model card: a file with the output of 'dpfc evaluate HEAD --epsilon E --json'."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: files and revision.")] = False,
) -> None:
    """Send a head to the Hugging Face hub, with a model card.

    It sends the head, its signature HEAD.minisig if there is one, and README.md: the model card with the statement.
    Nothing else leaves this machine. Log in before: hf auth login.

    The head can then be named hf:OWNER/NAME wherever a head is named, or hf:OWNER/NAME@REVISION.
    """
    from dpfc_cli.heads.head import Head
    from dpfc_cli.heads.push import push as send

    figures = None if evaluation is None else _read(evaluation)
    if Head.load(str(head)).card["claim"] != "private":
        display.warn("this head has no guarantee: it may tell about the records that it was trained on.")
    found = send(str(head), repository, license=license, evaluation=figures, dry_run=dry_run)
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


def _read(path: Path) -> dict[str, object]:
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.files import json_in

    try:
        found = json_in(path)
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        raise UserError(
            f"There is no file '{path}'." if missing else f"'{path}' cannot be read as JSON: {error}.",
            f"Give the output of 'dpfc evaluate --epsilon E --json': {parameter('evaluation')}.",
            code="missing" if missing else "damaged",
            parameter="evaluation",
            path=str(path),
        ) from error
    return found
