"""Data sets in shards: which file belongs to which split, and what splits are called.

A file's split is the word its name begins with, `train-00000-of-00004.parquet`, or else the name of its folder,
`train/0000.parquet`; files that say neither are for training.
"""

import glob
import re
from itertools import product
from pathlib import Path

from dpfc_cli.errors import UserError

_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
MOST_SHARDS = 1_000_000
TRAIN_SPLITS = ("train", "training")
TEST_SPLITS = ("test", "testing", "val", "valid", "validation")
"""What sources call the split to train on, and the one to evaluate on, of which the first there is is taken."""
_WORDS = re.compile(f"({'|'.join(TRAIN_SPLITS + TEST_SPLITS)})(?![A-Za-z])")


def shards(pattern: str, suffix: str) -> dict[str, list[Path]]:
    """The files of each split, sorted by name: "train", and others by the word that names them.

    pattern: a file, a folder (searched with its sub-folders), or names with braces, `{000..123}` or `{train,val}`, or
    wildcards. Raises UserError when it fits no file, or when a named one is missing.
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
        )
    splits: dict[str, list[Path]] = {}
    for path in found:
        splits.setdefault(_split(path), []).append(path)
    return splits


def expanded(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, as a shell expands them."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_SHARDS:
        raise UserError(f"'{pattern}' names {count:,} files.", "Check the numbers in its braces.")
    return ["".join(combination) for combination in product(*choices)]


def _choices(inside: str) -> list[str]:
    if match := _NUMBERS.fullmatch(inside):
        first, last, width = int(match[1]), int(match[2]), len(match[1])
        if not first <= last < first + MOST_SHARDS:
            raise UserError(f"'{{{inside}}}' is no range of numbers.", "Write for instance {0000..0099}.")
        return [f"{i:0{width}d}" for i in range(first, last + 1)]
    return inside.split(",")


def _matching(name: str) -> list[Path]:
    if Path(name).is_file():
        return [Path(name)]
    found = [Path(p) for p in sorted(glob.glob(name)) if Path(p).is_file()] if glob.has_magic(name) else []
    if not found:
        raise UserError(f"There is no file '{name}'.", "Check the pattern; put it in quotes if it has braces.")
    return found


def _split(path: Path) -> str:
    match = _WORDS.match(path.name) or _WORDS.fullmatch(path.parent.name)
    return "train" if match is None or match[1] in TRAIN_SPLITS else match[1]
