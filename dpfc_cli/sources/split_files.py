"""The files of a source that consists of many, and the split that each file belongs to.

A split is the word that a file's name begins with (`train-00000-of-00004.parquet`), or else the name of the file's
folder (`train/0000.parquet`). A file without such a word is for training.
"""

import glob
import os
import re
import unicodedata
from collections.abc import Collection, Iterable
from itertools import product
from pathlib import Path

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.files import named_twice

MOST_FILES = 1_000_000
TRAIN_SPLITS = ("train", "training")
"""What sources call the split to train on."""
TEST_SPLITS = ("test", "testing", "val", "valid", "validation")
"""What sources call the split to evaluate on. The first one that is there is taken."""
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
_WORDS = re.compile(f"({'|'.join(TRAIN_SPLITS + TEST_SPLITS)})(?![A-Za-z])")


def files_by_split(pattern: str, suffix: str) -> dict[str, list[Path]]:
    """Find the files of a source.

    Args:
        pattern: a file; a folder, which is searched with its sub-folders; or file names with braces, `{000..123}` or
            `{train,val}`, or with wildcards.
        suffix: how the files of a folder end, for instance '.tar'.

    Returns:
        The files of each split, sorted by name. The key is "train", or the word that names another split.

    Raises:
        UserError: no file fits the pattern, or a named file is missing (code "missing"). Or a file would be read twice
            (code "conflict"): each of its records would then count twice, and the guarantee is for one.

    Examples:
        files_by_split("photos/{train,val}.tar", ".tar")
        → {"train": [Path("photos/train.tar")], "val": [Path("photos/val.tar")]}

    """
    place = Path(pattern).expanduser()
    if place.is_dir():
        found = sorted(p for p in place.rglob(f"*{suffix}") if p.is_file() and not p.name.startswith("."))
    else:
        found = [path for name in expanded(str(place)) for path in _matching(name)]
    if not found:
        raise UserError(
            f"No {suffix} files in '{pattern}'.",
            f"Name a {suffix} file, a folder of them, or a pattern such as 'train-{{0000..0099}}{suffix}' in quotes.",
            code="missing",
            path=pattern,
        )
    refuse_twice(found)
    splits: dict[str, list[Path]] = {}
    for path in found:
        splits.setdefault(_split(path), []).append(path)
    return splits


def refuse_twice(files: Iterable[Path]) -> None:
    """UserError if a file is there twice: each of its records would count twice, and the guarantee is for one."""
    twice = named_twice(files)
    if twice is not None:
        raise UserError(
            f"'{twice}' is there twice: it is named twice, or is a link or a second name. Its records would count "
            f"twice, and the guarantee is for one. {GUARDED}",
            "Leave one of them.",
            code="conflict",
            path=str(twice),
        )


def splits_by_role(splits: Collection[str]) -> dict[str, str]:
    """Which split of a source to train on, and which to evaluate on.

    Args:
        splits: what the source calls its splits, as in the keys of `files_by_split`.

    Returns:
        The source's name of 'train' and of 'test', as far as the source has them.

    """
    test = next((split for split in TEST_SPLITS if split in splits), None)
    return ({"train": "train"} if "train" in splits else {}) | ({} if test is None else {"test": test})


def expanded(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, as a shell expands them.

    Raises:
        UserError: the braces hold no range of numbers, or stand for too many files (code "bad-value").

    """
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_FILES:
        raise UserError(
            f"'{pattern}' names {count:,} files.", "Check the numbers in its braces.", code="bad-value", path=pattern
        )
    return ["".join(combination) for combination in product(*choices)]


def _choices(inside: str) -> list[str]:
    if match := _NUMBERS.fullmatch(inside):
        first, last, width = int(match[1]), int(match[2]), len(match[1])
        if not first <= last < first + MOST_FILES:
            raise UserError(
                f"'{{{inside}}}' is not a range of numbers.",
                "Write for instance {0000..0099}.",
                code="bad-value",
                value=f"{{{inside}}}",
            )
        return [f"{i:0{width}d}" for i in range(first, last + 1)]
    return inside.split(",")


def _matching(name: str) -> list[Path]:
    if Path(name).is_file():
        return [Path(name)]
    found = [Path(p) for p in sorted(glob.glob(name)) if Path(p).is_file()] if glob.has_magic(name) else []
    if not found:
        raise UserError(
            f"There is no file '{name}'.",
            "Check the pattern. Put it in quotes if it has braces.",
            code="missing",
            path=name,
        )
    return found


def _split(path: Path) -> str:
    match = _WORDS.match(path.name) or _WORDS.fullmatch(path.parent.name)
    return "train" if match is None or match[1] in TRAIN_SPLITS else match[1]


_CLUTTER = frozenset(("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"))
"""What macOS, Windows and network drives write beside pictures, in small letters."""


def is_clutter(name: str) -> bool:
    """Whether a part of a path is none of the user's: it is hidden, or systems write such files beside pictures."""
    return (name.startswith(".") and name not in (".", "..")) or name.casefold() in _CLUTTER


def inside(folder: Path, name: str) -> Path | None:
    """The file that a table in `folder` names, relative to it or absolute; None if that lies elsewhere.

    A table may come from somebody else. It names files of its own folder, and no other ones. A name that is on the disk
    in another form of Unicode is the one on the disk.
    """
    top = os.path.abspath(folder)
    found = os.path.normpath(os.path.join(top, name))
    if "\0" in name or os.path.commonpath([top, found]) != top or found == top:
        return None
    forms = (found, *(top + unicodedata.normalize(form, found[len(top) :]) for form in ("NFC", "NFD")))
    return Path(next((form for form in forms if os.path.lexists(form)), found))
