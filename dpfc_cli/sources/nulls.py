"""Records that cannot be read or used: how many may become null records, and where they are named.

Which records are broken is a fact about records, and their names may be those of patients. Where no set is made, they
stand in a file for the owner alone (mode 0600). Where some become null records, standard error has their number, and no
file does: that there is one, or how long it is, would tell others.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dpfc_cli import files
from dpfc_cli.errors import UserError, printable, quoted, spelled

MOST_NULL = 0.05
"""The share of a split's records that may become null records, unless the user says otherwise."""
LISTED = ".broken.txt"
"""How the name of a list of broken records ends. It lies beside the set that could not be made."""


def most_allowed(n: int, share: float | None) -> int:
    """How many of n records may become null records: this share of them, and never all. None: `MOST_NULL`."""
    # 0.29 · 100 is 28.999999999999996.
    return min(int((MOST_NULL if share is None else share) * n + 1e-9), n - 1)


@contextmanager
def naming(folder: Path) -> Iterator[Path]:
    """While the feature set in this folder is made: the file beside it that names broken records. It is of this attempt
    alone: that of an earlier one is removed first. What is secret in a UserError is written there, and the error says
    where.
    """
    file = folder.with_name(f"{folder.name}{LISTED}")
    with suppress(OSError):
        file.unlink()
    try:
        yield file
    except UserError as error:
        if error.full is not None:
            said = listed([printable(spelled(error.full, str))], file, "What is meant")
            error.what = UserError(f"{error.what} {said}", error.remedy).what
        raise


def listed(lines: Sequence[str], file: Path, which: str = "Which they are") -> str:
    """Write the lines about broken records into the file, and say so in a sentence, where `which` is their name."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
    except OSError as error:
        return f"The list could not be written: {quoted(file)}: {error.strerror or error}."
    return f"{which} stands in {quoted(file)}. Only you can read that file."
