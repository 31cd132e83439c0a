"""Names of files that sources have: what systems leave behind, and what lies in a folder."""

import os
from pathlib import Path

_CLUTTER = frozenset(("__macosx", ".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"))
"""What macOS, Windows and network drives write beside pictures, in small letters."""


def is_clutter(name: str) -> bool:
    """Whether a part of a path is none of the user's: systems write such files and folders beside pictures."""
    return name.startswith("._") or name.casefold() in _CLUTTER


def inside(folder: Path, name: str) -> Path | None:
    """The file that a table in `folder` names; None if that lies elsewhere.

    A table may come from somebody else. It names files of its own folder, and no other ones.

    Args:
        folder: where the table lies.
        name: a path relative to the folder, or an absolute one.

    """
    top = os.path.abspath(folder)
    found = os.path.normpath(os.path.join(top, name))
    return Path(found) if "\0" not in name and os.path.commonpath([top, found]) == top and found != top else None
