"""Finding a feature set: by path, by name in the features folder, or the newest one."""

import os
from pathlib import Path

from dpfc_cli.errors import UserError, check_new_name, missing, near, parameter, quoted
from dpfc_cli.features.manifest import MANIFEST, SETTINGS
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.files import written_at
from dpfc_cli.folders import LEDGER, LEDGER_LOCKS, PARTIAL, features_folder
from dpfc_cli.places import exists, place_of, remote

GO_ON = "Run the command that began it again: it resumes, or says why not. Or delete it."
"""What to do about a set that is not complete."""


def open_features(given: str | Path | None = None) -> FeatureSet:
    """Open a feature set.

        features = open_features("digits-scattering")

    Args:
        given: the path or URL of a feature set, or its name in the features folder ($DPFC_FEATURES, or ./features).
            None: the newest set in the features folder.

    Returns:
        The set. Its shards are not checked yet: see `FeatureSet.verify`.

    Raises:
        UserError: there is no such set, or its manifest is damaged.

    """
    if given is None:
        return newest(features_folder())
    folders = (place_of(given), placed(given))
    for folder in folders:
        if _there(folder / MANIFEST):
            return FeatureSet(folder)
    named = [folder for folder in folders if folder.name]
    partly = next((folder for folder in named if _there(unfinished(folder))), None)
    if partly is not None:
        raise missing(f"The feature set {quoted(partly)} is not complete.", GO_ON)
    there = next(filter(_there, folders), None)
    raise missing(
        f"There is no feature set {quoted(given)}."
        if there is None
        else f"{quoted(there)} is no feature set: it has no '{MANIFEST}'.",
        near(folders[0].name, [each.name for each in finished(features_folder())])
        + f"Name a folder or a URL, or a set in '{features_folder()}': 'dpfc list' shows those.",
    )


def set_at(given: str | Path) -> FeatureSet | None:
    """The set at a path or of that name; None if there is none. What lies at the path comes before the name."""
    path = place_of(given).expanduser()
    folder = path if exists(path) else placed(given)
    return FeatureSet(folder) if exists(folder / MANIFEST) else None


def placed(name: str | Path) -> Path:
    """The folder of that name. A bare word lies in the features folder. With a slash it is a path, such as './mine'."""
    return place_of(name) if "/" in str(name) else features_folder() / name


def unfinished(folder: Path) -> Path:
    """What is there of a set that is being made: a folder of another name; at a URL the settings of its making."""
    return folder.with_name(folder.name + PARTIAL) if remote(folder) is None else folder / SETTINGS


def new_folder(name: str | Path) -> Path:
    """The folder of a set that is to be made: as `placed`, if the name can be that of a set. UserError: the name is
    empty or not printable, or dpfc uses it itself.
    """
    if not str(name).strip():
        raise UserError(f"{parameter('out')} is empty.", "Give the feature set a name.")
    place = placed(name)
    check_new_name(end := place.name)
    if not end:
        raise UserError(f"{quoted(name)} has no name for the feature set.", f"Write {place}NAME.")
    if end in (LEDGER, LEDGER_LOCKS) or end.endswith(PARTIAL):
        raise UserError(
            f"{quoted(name)} is a name that dpfc uses itself.",
            f"Give the feature set another name: {parameter('out')}.",
        )
    return place


def newest(folder: Path) -> FeatureSet:
    """The newest feature set in `folder`, by the date of the manifest. Raises UserError if there is none."""
    found = finished(folder)
    if not found:
        partly = "".join(f"'{each.name}' is not complete: {GO_ON} " for each in begun(folder))
        raise missing(
            f"No feature set found in {quoted(folder)}.",
            f"{partly}Make one with 'dpfc extract digits' or 'dpfc import PATH', or name one that lies elsewhere: "
            f"{parameter('features')}.",
        )
    return FeatureSet(max(found, key=lambda folder: written_at(folder / MANIFEST)))


def begun(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{PARTIAL}"))


def finished(folder: Path) -> list[Path]:
    """The folders of all finished feature sets in `folder`, without those that are closed to us."""
    # `Path.glob` would end at a link into a closed folder, and say nothing.
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    return [folder / name for name in names if not name.endswith(PARTIAL) and os.path.exists(folder / name / MANIFEST)]


def set_of_training(name: str, folder: Path | None = None) -> FeatureSet | None:
    """The set in a folder (None: the features folder) that has this name; None if there is none.

    The name is that of the real folder, as in the card of a head. If links make several sets of that name, the newest.
    """
    found = [path for path in finished(folder or features_folder()) if path.resolve().name == name]
    return FeatureSet(max(found, key=lambda folder: written_at(folder / MANIFEST))) if found else None


def _there(path: Path) -> bool:
    """Whether there is a file of that name. One that we may not look at counts: reading it will say why."""
    try:
        path.stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError | NotADirectoryError)
    return True
