"""The folders that dpfc uses unless the caller names another one. Environment variables can move them."""

import os
from pathlib import Path

from dpfc_cli.places import local, remote

PARTIAL = ".partial"
"""The end of a feature set's folder name while the set is being made."""
LEDGER = "ledger.sqlite"
"""The ledger of a folder of feature sets, in that folder."""
LEDGER_LOCKS = "ledger.locks"
"""The folder beside a ledger with a lock for each training that was charged and has no head yet."""
LEDGER_KEYS = "ledger.federation"
"""The folder beside a ledger with the invitations of a site and their private keys."""


def features_folder() -> Path:
    """The folder of the feature sets: $DPFC_FEATURES, or ./features."""
    return _from("DPFC_FEATURES") or Path("features")


def heads_folder() -> Path:
    """The folder of the heads: $DPFC_HEADS, or ./heads."""
    return _from("DPFC_HEADS") or Path("heads")


def cache_folder() -> Path:
    """The folder of downloaded data sets: $DPFC_CACHE, or $XDG_CACHE_HOME/dpfc, or ~/.cache/dpfc."""
    return _from("DPFC_CACHE") or (_from("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfc"


def beside(folder: Path) -> Path:
    """Where what belongs to a feature set lies: beside it. Of a set at a URL, in the folder of the feature sets: there
    are neither locks nor modes at a URL.
    """
    return folder.parent if remote(folder) is None else features_folder()


def moved_by(folder: Path) -> str | None:
    """The environment variable that names this folder as the one of feature sets, heads or downloads; or None."""
    return next((name for name in ("DPFC_FEATURES", "DPFC_HEADS", "DPFC_CACHE") if _from(name) == folder), None)


def _from(variable: str) -> Path | None:
    """The folder that an environment variable names; None if it is unset or empty."""
    value = os.environ.get(variable)
    why = "A ledger needs locks, and heads and downloads are renamed: a bucket has neither. Sets may lie at a URL each."
    return local(value, f"${variable}", why).expanduser() if value else None
