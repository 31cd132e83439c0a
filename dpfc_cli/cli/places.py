"""How feature sets are named on the command line."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.folders import features_folder, heads_folder

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet


def said(folder: Path) -> str:
    """How the user names a feature set in that folder on the command line."""
    return shlex.quote(folder.name if folder.parent == features_folder() else str(folder))


def head(path: Path) -> str:
    """How the user names the file of a head."""
    return shlex.quote(path.name.removesuffix(".safetensors") if path.parent == heads_folder() else str(path))


def quoted(path: Path) -> str:
    """A file as the user types it."""
    return shlex.quote(str(path))


def feature_set(given: str | None) -> tuple["FeatureSet", int]:
    """The feature set given by path or name, or the newest one: (set, how many others there were to choose from)."""
    from dpfc_cli.features.lookup import finished, open_features

    others = 0 if given is not None else len(finished(features_folder())) - 1
    return open_features(given), others
