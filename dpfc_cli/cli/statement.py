"""`dpfc statement`: what is claimed of a head, for whoever must defend it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command


@command("statement")
def statement(
    head: Annotated[Path, typer.Argument(help="The head's file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout: the card and more.")] = False,
) -> None:
    """Say again what is claimed of a head, from its card, with the SHA-256 of the file."""
    from dpfc_cli.heads.head import digest, load
    from dpfc_cli.trust import statement as statements

    card = load(head).card
    if as_json:
        means = statements.meaning(card)
        print(json.dumps({"head": str(head), "sha256": digest(head), "card": card, "means": means}))  # noqa: T201
        return
    display.facts(f"Head {head}", rows(head, card))


def rows(head: Path, card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a head was made and what is claimed of it, as (what, said) pairs."""
    from dpfc_cli.heads.head import digest
    from dpfc_cli.methods import METHODS
    from dpfc_cli.trust import statement as statements

    name = card["method"]
    title = f"{name} ({METHODS[name].title})" if name in METHODS else name
    options = ", ".join(f"{_named(option)} = {_text(value)}" for option, value in card["options"].items())
    return [("method", title), ("options", options), *statements.rows(card, digest(head))]


def _named(option: str) -> str:
    return {"lam": "lambda", "split": "budget split"}.get(option, option.replace("_", " "))


def _text(value: object) -> str:
    if value is None:
        return "until converged"
    if isinstance(value, list | tuple):
        return ":".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
