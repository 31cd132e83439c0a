"""Where things lie unless the user says otherwise: features in ./features or $DPFC_FEATURES, heads in ./heads."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.errors import UserError

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

HEADS = Path("heads")


def features_folder() -> Path:
    return Path(os.environ.get("DPFC_FEATURES") or "features")


def named(out: str) -> Path:
    """A path as given, or a bare name inside the features folder."""
    path = Path(out)
    return path if path.parent != Path() or path.is_absolute() else features_folder() / out


def feature_set(given: str | None) -> tuple["FeatureSet", bool]:
    """The feature set given by path or name, or the newest one: (set, whether it was chosen for the user)."""
    from dpfc_cli.features.manifest import MANIFEST
    from dpfc_cli.features.reader import FeatureSet, newest

    if given is None:
        return newest(features_folder()), True
    path = next((p for p in (Path(given), named(given)) if (p / MANIFEST).exists()), Path(given))
    if not path.exists():
        raise UserError(f"There is no feature set '{given}'.", f"Name a folder, or a set in '{features_folder()}'.")
    return FeatureSet(path), False


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """folder/stem+suffix, numbered if that is taken: a head is never overwritten, for it was paid for."""
    path, i = folder / (stem + suffix), 1
    while path.exists():
        i += 1
        path = folder / f"{stem}-{i}{suffix}"
    return path
