"""Records that cannot be read: how many of them may become null records, and where the list of them goes.

Which records are broken is a fact about records. Their names and their number go to standard error and into a file for
the owner alone (mode 0600). They never go into a feature set. So only whoever makes the set learns them.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dpfc_cli import files
from dpfc_cli.errors import printable

MOST_NULL = 0.05
"""The share of a split's records that may become null records, unless the user says otherwise."""
LISTED = ".broken.txt"
"""How the name of a list of broken records ends. It lies beside the set that could not be made."""
MOST_SHOWN = 20
"""The most records that a message names."""


def most_allowed(n: int, share: float | None) -> int:
    """How many of n records may become null records: this share of them, and never all. None: `MOST_NULL`."""
    # 0.29 · 100 is 28.999999999999996.
    return min(int((MOST_NULL if share is None else share) * n + 1e-9), n - 1)


def listed(lines: Sequence[str], file: Path, which: str = "All of them") -> list[str]:
    """What is shown of the lines about broken records. All of a long list go into the file, which only its owner can
    read; which: what they are called there. A file that an earlier run left is removed.
    """
    shown = [f"  {line}" for line in lines[:MOST_SHOWN]]
    with suppress(OSError):
        file.unlink(missing_ok=True)
    if len(lines) <= MOST_SHOWN:
        return shown
    shown.append(f"  and {len(lines) - MOST_SHOWN:,} more.")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.replace(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o600)
    except OSError as error:
        return [*shown, f"The list could not be written: '{printable(str(file))}': {error.strerror or error}."]
    return [*shown, f"{which}: '{printable(str(file))}'. Only you can read that file."]
