"""The folders that dpfc uses unless the caller names another one. Environment variables can move them."""

import os
from pathlib import Path

PARTIAL = ".partial"
"""The end of a feature set's folder name while the set is being made."""
LEDGER = ".ledger.sqlite"
"""The end of the name of the ledger that lies beside a feature set."""


def features_folder() -> Path:
    """The folder of the feature sets: $DPFC_FEATURES, or ./features."""
    return _from("DPFC_FEATURES") or Path("features")


def heads_folder() -> Path:
    """The folder of the heads: $DPFC_HEADS, or ./heads."""
    return _from("DPFC_HEADS") or Path("heads")


def cache_folder() -> Path:
    """The folder of downloaded data sets: $DPFC_CACHE, or $XDG_CACHE_HOME/dpfc, or ~/.cache/dpfc."""
    return _from("DPFC_CACHE") or (_from("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfc"


def _from(variable: str) -> Path | None:
    """The folder that an environment variable names; None if it is unset or empty."""
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None
