"""Where things lie unless the user says otherwise: features in ./features or $DPFC_FEATURES, heads in ./heads."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli.errors import UserError
from dpfc_cli.folders import features_folder as features_folder
from dpfc_cli.folders import heads_folder as heads_folder

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

HEADS = Path("heads")


def named(out: str) -> Path:
    """Where a feature set of that name is to lie: a path as given, or a bare name inside the features folder."""
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
    return _placed(out)


def _placed(name: str) -> Path:
    path = Path(name)
    return path if path.parent != Path() or path.is_absolute() else features_folder() / name


def said(folder: Path) -> str:
    """How the user names a feature set in that folder on the command line."""
    return shlex.quote(folder.name if folder.parent == features_folder() else str(folder))


def set_folder(given: str) -> Path:
    """The folder of the feature set given by path or by name: the one that holds a set, or else has a ledger."""
    from dpfc_cli.features.manifest import MANIFEST
    from dpfc_cli.training.ledger import ledger_path

    folders = (Path(given), _placed(given))
    for holds in (lambda f: _there(f / MANIFEST), lambda f: ledger_path(f).exists()):
        found = next(filter(holds, folders), None)
        if found:
            return found
    raise UserError(f"There is no feature set '{given}'.", f"Name a folder, or a set in '{features_folder()}'.")


def _there(path: Path) -> bool:
    """Whether there is something of that name, be it something that we may not read: then reading it says why."""
    try:
        path.stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True


def feature_set(given: str | None) -> tuple["FeatureSet", int]:
    """The feature set given by path or name, or the newest one: (set, how many others there were to choose from)."""
    from dpfc_cli.features.manifest import MANIFEST, PARTIAL
    from dpfc_cli.features.reader import FeatureSet, newest

    if given is not None:
        return FeatureSet(set_folder(given)), 0
    found = [path for path in features_folder().glob(f"*/{MANIFEST}") if not path.parent.name.endswith(PARTIAL)]
    return newest(features_folder()), max(len(found) - 1, 0)


def ledger(features: str | None) -> Path:
    """The ledger of the feature set given by path or name, or the newest one in the features folder."""
    from dpfc_cli.training.account import newest_ledger
    from dpfc_cli.training.ledger import ledger_path

    return newest_ledger(features_folder()) if features is None else ledger_path(set_folder(features))


def set_of_training(name: str) -> "FeatureSet | None":
    """The feature set of that name in the features folder, by the name of its real folder, as cards have it; the newest
    if links make several.
    """
    from dpfc_cli.features.manifest import MANIFEST
    from dpfc_cli.features.reader import FeatureSet

    found = [path for path in features_folder().glob(f"*/{MANIFEST}") if path.parent.resolve().name == name]
    return FeatureSet(max(found, key=lambda path: path.stat().st_mtime_ns).parent) if found else None
