"""Who asks for a training or a cap, and why: words for the ledger, which go nowhere else."""

import os
import pwd

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.training.ledger import MOST_NAME, MOST_NOTE, is_note

_MOST = {"by": MOST_NAME, "purpose": MOST_NOTE, "note": MOST_NOTE}


def account_name() -> str:
    """The name of the account that runs this process, or its number where it has none. It proves nothing."""
    number = os.getuid()
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = ""
    return name if is_note(name, MOST_NAME) else f"account {number}"


def noted(name: str, value: str | None) -> str | None:
    """The value of a parameter that goes into the ledger. UserError where a ledger would not keep it."""
    if value is not None and not is_note(value, _MOST[name]):
        raise UserError(
            f"{parameter(name)} must be a text of 1 to {_MOST[name]} characters.",
            "Give another one, or leave it out.",
            parameter=name,
        )
    return value
