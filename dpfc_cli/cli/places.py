"""Where things lie unless the user says otherwise: features in ./features or $DPFC_FEATURES, heads in ./heads."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.errors import UserError
from dpfc_cli.folders import features_folder as features_folder

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

HEADS = Path("heads")


def named(out: str) -> Path:
    """Where a feature set of that name is to lie: a path as given, or a bare name inside the features folder."""
    from dpfc_cli.features.lookup import placed
    from dpfc_cli.features.manifest import PARTIAL
    from dpfc_cli.training.ledger import SUFFIX

    if not out.strip():
        raise UserError("--out is empty.", "Give the feature set a name.")
    taken = next((suffix for suffix in (PARTIAL, SUFFIX) if Path(out).name.endswith(suffix)), None)
    if taken is not None:
        of = "unfinished sets" if taken == PARTIAL else "ledgers"
        raise UserError(
            f"'{out}' ends in {taken}, as the names of {of} do.", "Give the feature set another name: --out."
        )
    return placed(out)


def said(folder: Path) -> str:
    """How the user names a feature set in that folder on the command line."""
    return shlex.quote(folder.name if folder.parent == features_folder() else str(folder))


def set_folder(given: str) -> Path:
    """The folder of the feature set given by path or by name: the one that holds a set, or else has a ledger."""
    from dpfc_cli.features import lookup
    from dpfc_cli.training.ledger import ledger_path

    return lookup.set_folder(given, lambda folder: ledger_path(folder).exists())


def feature_set(given: str | None) -> tuple["FeatureSet", bool]:
    """The feature set given by path or name, or the newest one: (set, whether it was chosen for the user)."""
    from dpfc_cli.features.lookup import open_features

    return open_features(given), given is None


def set_of_training(name: str) -> "FeatureSet | None":
    """See `dpfc_cli.features.lookup`."""
    from dpfc_cli.features import lookup

    return lookup.set_of_training(name)


def free_name(folder: Path, stem: str, suffix: str) -> Path:
    """folder/stem+suffix, numbered if that is taken: a head is never overwritten, for it was paid for."""
    path, i = folder / (stem + suffix), 1
    while path.exists():
        i += 1
        path = folder / f"{stem}-{i}{suffix}"
    return path
