"""`dpfc sign`: vouch for the bytes of a head, and make the key for it."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpfc_cli.cli import display
from dpfc_cli.cli.app import command


@command("sign")
def sign(
    head: Annotated[Path | None, typer.Argument(help="The head's file.")] = None,
    key: Annotated[
        Path | None, typer.Option(help="The secret key, made with --new-key or by minisign.", metavar="FILE")
    ] = None,
    comment: Annotated[
        str | None, typer.Option(help="What the signature says besides. Default: the time and the file's name.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            help="Make a key, and sign nothing: the secret key in FILE, the public one beside it, ending in .pub.",
            metavar="FILE",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object: files, key and comment.")] = False,
) -> None:
    """Sign a head, so that others can check who vouches for its bytes.

    The signature is the file HEAD.minisig. 'dpfc verify HEAD --public-key KEY' checks it, and so does minisign. The
    password of a key is asked for, or is the first line of the standard input.
    """
    from dpfc_cli.errors import UserError, parameter
    from dpfc_cli.heads import signature

    if new_key is not None:
        if head is not None or key is not None or comment is not None:
            raise UserError(
                f"{parameter('new_key')} makes a key and signs nothing.",
                f"Make the key first. Then sign with it: dpfc sign HEAD {parameter('key')} {new_key}.",
                code="conflict",
                parameter="new_key",
            )
        password = _new_password()
        made = signature.new_key(new_key, password=password)
        if as_json:
            display.as_json({name: str(value) for name, value in asdict(made).items()})
            return
        kept = "a password, and mode 0600" if password else "mode 0600 alone: it has no password"
        display.facts(
            f"Key {made.key}",
            [
                *[("secret key", str(made.secret)), ("protected by", kept), ("public key", str(made.public))],
                ("in one line", made.line),
                ("next", "give the public key to those who are to check heads, in a way that they trust"),
            ],
        )
        return
    if head is None or key is None:
        raise UserError(
            f"{parameter('head') if head is None else parameter('key')} is missing.",
            f"To sign: dpfc sign HEAD {parameter('key')} FILE. To make a key: dpfc sign {parameter('new_key')} FILE.",
            code="missing",
            parameter="head" if head is None else "key",
        )
    signed = signature.sign(str(head), key=key, comment=comment, password=lambda: _typed("Password of the key: "))
    if as_json:
        display.as_json({name: str(value) for name, value in asdict(signed).items()})
        return
    display.facts(
        f"Signature {signed.path}",
        [
            *[("key", signed.key), ("comment", signed.comment)],
            ("says", "the holder of the key vouches for the bytes of the head, and for no more"),
        ],
    )


def _new_password() -> str:
    """The password of a new key, typed twice. "": none."""
    from dpfc_cli.errors import UserError

    password = _typed("Password for the new key (empty: none): ")
    if password and sys.stdin.isatty() and _typed("Again: ") != password:
        raise UserError("The two passwords differ.", "Try again.", code="declined")
    return password


def _typed(asked: str) -> str:
    """A password: unseen from a terminal, or the first line of what comes in."""
    import getpass

    if sys.stdin is None:
        return ""
    return getpass.getpass(asked) if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
