"""The table of data sets, and the functions that open one by its name.

Each is an entry point of the group `dpfc.sources`, those of dpfc itself too. Its name is what a user types: `digits`,
or before a path `imagefolder:`. Nothing is imported before it is asked for.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dpfc_cli import points
from dpfc_cli.annotations.classes import stated
from dpfc_cli.annotations.groups import RULES
from dpfc_cli.downloads import Remote, fetch
from dpfc_cli.errors import Faults, UserError, conflict, missing, parameter, unknown
from dpfc_cli.folders import cache_folder
from dpfc_cli.images.sets import DataSet, ImageSet, Request
from dpfc_cli.places import check as check_url
from dpfc_cli.places import place_of

GROUP = "dpfc.sources"


def usages() -> list[str]:
    """What a user may type as a data set. PATH stands for a path."""
    return [f"{name}PATH" if name.endswith(":") else name for name in points.added(GROUP)]


def formats() -> Iterator[DataSet]:
    """Those before a path."""
    return (points.load(GROUP, name, DataSet) for name in points.added(GROUP) if name.endswith(":"))


def check(dataset: str, data_dir: Path | None = None, asked: Request | None = None) -> None:
    """Refuse what can be refused before any file is opened. For the arguments see `open_images`. UserError: the name is
    unknown (code "unknown-name"), its path or its folder is not given (code "missing"), the data set does not take one
    of the others, or nobody states the classes (code "conflict"), or the window is none (code "bad-value").
    """
    asked = asked or Request()
    window, rule = asked.preparation.window, asked.group_by
    entry, path = _entry(dataset)
    if entry.location == "path" and not path:
        raise missing(f"'{entry.name}' needs the path of its files.", f"Write {entry.name}:PATH.", parameter="source")
    if entry.location == "data_dir" and data_dir is None and not entry.remotes:
        raise missing(
            f"dpfc cannot download '{entry.name}'.",
            f"Name the folder that holds it: {parameter('data_dir')}.",
        )
    known = [form for form in RULES if form.partition(":")[0] in entry.groups]
    for name, given, taken, why in (
        ("data_dir", data_dir, entry.location == "data_dir", "its name says where its files are"),
        ("classes", asked.classes, entry.asserted, "it names its classes itself"),
        ("label_column", asked.label_column, entry.location == "path", "it has labels of its own"),
        ("table", asked.table, entry.tabled, "its labels stand elsewhere"),
        ("file_column", asked.file_column, entry.tabled, "its labels stand elsewhere"),
        ("group_by", rule, known, "it does not say which pictures are of one person"),
        ("subgroups", asked.subgroups or None, "column" in entry.groups, "it has no columns"),
        ("window", window, not entry.pixels, "its pictures are pixels of 8 bits already"),
        ("exif", asked.preparation.exif or None, not entry.pixels, "its pictures are pixels of 8 bits already"),
    ):
        if given is not None and not taken:
            raise conflict(f"'{entry.name}' takes no {parameter(name)}: {why}.", f"Leave out {parameter(name)}.")
    if rule is not None and rule.by not in entry.groups:
        raise conflict(
            f"'{entry.name}' does not find persons by '{rule.by}'.",
            f"Write {parameter('group_by')} {' or '.join(known)}.",
        )
    if window is not None and not (len(window) == 2 and all(map(math.isfinite, window)) and window[0] < window[1]):
        raise UserError(
            f"{parameter('window')} '{','.join(f'{value:g}' for value in window)}' is not LOW,HIGH, the lower first.",
            "Give the grey values that are black and white, such as 0,4095 for values of 12 bits.",
        )
    if entry.asserted:
        stated(asked.classes)


def catalogued(dataset: str, data_dir: Path | None) -> str | None:
    """The name of a public data set whose bytes dpfc verifies; None for all others."""
    entry, _ = _entry(dataset)
    return entry.name if data_dir is None and entry.location != "path" else None


def files_of(dataset: str, data_dir: Path | None) -> tuple[Path | None, tuple[Remote, ...]]:
    """Where the files of a data set are; None if dpfc has them in itself. And those that are fetched if they are not
    there.
    """
    entry, path = _entry(dataset)
    if entry.location == "included":
        return None, ()
    if data_dir is not None or entry.location == "path":
        # The shell replaces '~' at the start of a word only, and here it may follow a colon.
        return place_of(path if data_dir is None else data_dir).expanduser(), ()
    return cache_folder() / entry.name, entry.remotes


def open_images(
    dataset: str, data_dir: Path | None = None, asked: Request | None = None, faults: Faults | None = None
) -> ImageSet:
    """Open a data set. Pictures are decoded later, when they are asked for: `splits["train"].pixels(0, 10)`.

    dataset: one of `usages`, with a path in the place of PATH. data_dir: the folder that holds the data set's files,
    or that folder's parent. None: they are in the cache, and are downloaded into it first. asked: how it is read. Its
    place is found here. faults: what is wrong with records is added to them, and the rest can be looked through; None:
    it is raised. UserError: as `check`; or the files are missing, damaged, or not those of this data set.
    """
    asked = asked or Request()
    check(dataset, data_dir, asked)
    place, remotes = files_of(dataset, data_dir)
    fetch(remotes, asked.progress)
    gathered, found = faults or Faults(), None
    with gathered.gathered():
        found = _entry(dataset)[0].open(replace(asked, place=place or Path(), faults=gathered))
    if faults is None or found is None:
        gathered.refuse()
    assert found is not None, "what is not opened is refused"
    return found


def _entry(dataset: str) -> tuple[DataSet, str]:
    """The entry of a data set, and the path in its name ('' if there is none)."""
    check_url(dataset)
    name, colon, path = dataset.partition(":")
    added = points.added(GROUP)
    # Of a format without a path it is said later that the path is missing.
    known = next((each for each in (name + colon, f"{name}:") if each in added), None)
    if known is None:
        error = unknown("data set", dataset, usages())
        error.remedy += " The format of the files at a path stands before it, as in imagefolder:photos."
        raise error
    return points.load(GROUP, known, DataSet), path
