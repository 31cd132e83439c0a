"""How feature sets are named on the command line."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.folders import features_folder

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet


def said(folder: Path) -> str:
    """How the user names a feature set in that folder on the command line."""
    return shlex.quote(folder.name if folder.parent == features_folder() else str(folder))


def quoted(path: Path) -> str:
    """A file as the user types it."""
    return shlex.quote(str(path))


def feature_set(given: str | None) -> tuple["FeatureSet", int]:
    """The feature set given by path or name, or the newest one: (set, how many others there were to choose from)."""
    from dpfc_cli.features.lookup import finished, open_features

    others = 0 if given is not None else len(finished(features_folder())) - 1
    return open_features(given), others


def ledger(features: str | None) -> tuple[Path, Path | None]:
    """The ledger of the feature set given by path or name, or the newest one in the features folder.

    Returns:
        The ledger, and the path by which its set was named, if it was.

    """
    from dpfc_cli.features.lookup import set_folder
    from dpfc_cli.training.ledger import ledger_path
    from dpfc_cli.training.other_ledgers import newest_ledger

    if features is None:
        return newest_ledger(features_folder()), None
    folder = set_folder(features, lambda folder: ledger_path(folder).exists())
    return ledger_path(folder), folder
