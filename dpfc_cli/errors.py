"""What the user can mend: one message that says what, why and what to do.

Every room raises these; only `dpfc_cli.cli` turns them into text and an exit code. A message may name files, options
and public facts. It never carries a record's values.
"""

GUARDED = "This message speaks of a private record: do not publish it."
"""What a message says that depends on the records: whoever holds them may read it, nobody else."""


class UserError(Exception):
    """Something the user can mend (exit code 2).

    what: what went wrong and why, one sentence or two. remedy: what to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}\n{remedy}")
        self.what = what
        self.remedy = remedy


def unknown(kind: str, name: str, known: tuple[str, ...] | list[str]) -> UserError:
    """The error for a name that is not in a table, with the nearest known one suggested."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return UserError(f"Unknown {kind} '{name}'.", f"{hint}Known: {', '.join(known)}.")


def counted(n: int, noun: str) -> str:
    """'1 image', '2 images', '1,000 classes'."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}{'' if n == 1 else plural}"


def sentence(error: Exception) -> str:
    """An error's text as a sentence."""
    text = str(error)
    return text[:1].upper() + text[1:] + "."
