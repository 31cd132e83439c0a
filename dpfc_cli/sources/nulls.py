"""Records that cannot be read: how many of them may become null records, and where the list of them goes.

Which records are broken is a fact about records, and their names may be those of patients. Their number goes to
standard error, their names into a file for the owner alone (mode 0600), and neither into a feature set.
"""

from collections.abc import Sequence
from pathlib import Path

from dpfc_cli import files
from dpfc_cli.errors import printable

MOST_NULL = 0.05
"""The share of a split's records that may become null records, unless the user says otherwise."""
LISTED = ".broken.txt"
"""How the name of a list of broken records ends. It lies beside the set."""


def most_allowed(n: int, share: float | None) -> int:
    """How many of n records may become null records: this share of them, and never all. None: `MOST_NULL`."""
    # 0.29 · 100 is 28.999999999999996.
    return min(int((MOST_NULL if share is None else share) * n + 1e-9), n - 1)


def listed(lines: Sequence[str], file: Path, which: str = "Which they are") -> str:
    """Write the lines about broken records into the file, and say so in a sentence, where `which` is their name. A file
    that an earlier run left is removed.
    """
    try:
        file.unlink(missing_ok=True)
        if lines:
            file.parent.mkdir(parents=True, exist_ok=True)
            files.replace(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
    except OSError as error:
        return f"The list could not be written: '{printable(str(file))}': {error.strerror or error}."
    return f"{which} stands in '{printable(str(file))}'. Only you can read that file." if lines else ""
