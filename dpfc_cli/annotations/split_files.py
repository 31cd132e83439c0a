"""The files of a source that consists of many, the split that each file belongs to, and test splits that are held out.

A split is the first word of one in a file's name (`train-00000-of-00004.parquet`, `scans_test.csv`), or else in the
name of the nearest folder (`train/0000.parquet`). If nothing tells files apart, or some are of test splits, those
without such a word are for training. In tables a column `split` has the words.

If a part of a training split is held out, the hash of a record's name decides where it goes. So a record that is added
or removed does not move any other one, and the sizes of the two splits depend on the names alone. They are only about
in the proportion that was asked for. A smaller fraction holds out some of the records that a larger one does. If the
persons are known, the hash of the person decides. So all records of a person land in one split.
"""

import fnmatch
import glob
import hashlib
import itertools
import mimetypes
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.annotations.groups import Keys, sha256_of_key
from dpfc_cli.errors import GUARDED, UserError, bad_record, conflict, counted, missing, parameter, quoted, secret
from dpfc_cli.files import named_twice
from dpfc_cli.places import answered, entries_in, place_of, remote

MOST_FILES = 1_000_000
TRAIN_SPLITS = ("train", "training")
"""What sources call the split to train on."""
_TEST = ("test", "testing", "val", "valid", "validation")
TEST_SPLITS = (*_TEST, "eval", "evaluation", "dev", "holdout", "heldout", "external")
"""What sources call the split to evaluate on. The first one that is there is taken."""
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)")
_ALL = TRAIN_SPLITS + TEST_SPLITS
_WORDS = re.compile(f"(?<![a-z])({'|'.join(_ALL)})(?![a-z])")
SPLIT_COLUMN = "split"


def files_by_split(pattern: str, suffix: str) -> dict[str, list[Path]]:
    """Find the files of a source.

    Args:
        pattern: a file; a folder, which is searched with its sub-folders; or file names with braces, `{000..123}` or
            `{train,val}`, or with wildcards. Or the URL of such.
        suffix: how the files of a folder end, for instance '.tar'.

    Returns:
        The files of each split, in the order of their names. The key is "train", or the word of another split.

    Raises:
        UserError: no file fits the pattern, or a named file is missing (code "missing"); it is there twice, or some
            files are named as those for training, and others as those of no split (code "conflict").

    """
    found = files_in(pattern, suffix)
    top = place_of(pattern).expanduser()
    if not top.is_dir():
        above = (found[0].parent, *found[0].parent.parents)
        top = next((each for each in above if all(path.is_relative_to(each) for path in found)), above[0])
    words = [_word(path, top, _WORDS.search) for path in found]
    if len(set(words)) == 1:
        # Nothing tells them apart: a file 'blood-test.csv' may hold all records.
        words = [_word(path, top, _WORDS.match) for path in found]
    odd = [path for path, word in zip(found, words, strict=True) if word is None]
    if odd and "train" in words:
        raise conflict(
            f"{quoted(pattern)} has files for training, and {counted(len(odd), 'other')} of no split, such as "
            f"{quoted(odd[0])}.",
            f"Begin their names with train or test, or take them out. dpfc knows {', '.join(_ALL)}.",
        )
    splits: dict[str, list[Path]] = {}
    for path, word in zip(found, words, strict=True):
        splits.setdefault(word or "train", []).append(path)
    return splits


def rows_by_split(values: Iterable[object], source: Path | str) -> dict[str, NDArray[np.int64]]:
    """The rows of a table by split, as the keys of `files_by_split`. values: of the column `split`. UserError for a
    value that is no split's (code "bad-record").
    """
    words = [str(value or "").strip().casefold() for value in values]
    foreign = set(words).difference(_ALL)
    if foreign:
        raise bad_record(
            f"{quoted(source)} names a split {secret(min(foreign))}. {GUARDED}",
            f"Write {' or '.join(TRAIN_SPLITS)} or one of {', '.join(TEST_SPLITS)} into each line under "
            f"'{SPLIT_COLUMN}'. Or give the column another name: then all records are for training.",
        )
    known = np.array([plain(word) for word in words])
    return {word: np.flatnonzero(known == word) for word in dict.fromkeys(known.tolist())}


def split_column(columns: Iterable[str]) -> str | None:
    """The column that says which split a row is of; None if there is none."""
    return next((name for name in columns if name.casefold() == SPLIT_COLUMN), None)


def splits_left_out(splits: Iterable[str], used: Iterable[str]) -> tuple[str, ...]:
    """What is said of the splits of a source that are not used. Names of other folders may be those of persons."""
    left = set(splits).difference(used)
    named = [f"'{split}'" for split in sorted(left.intersection(_ALL))]
    named += [counted(len(left) - len(named), "other")] * (len(left) > len(named))
    return (f"Left out, because they have no labels, or dpfc takes another split: {', '.join(named)}.",) if left else ()


def files_in(pattern: str, suffix: str) -> list[Path]:
    """The files of a source: those of a folder, or that fit one name, sorted. Arguments as in `files_by_split`."""
    place = place_of(pattern).expanduser()
    with answered(place):
        if place.is_dir():
            listed = [(pattern, sorted(each for each in all_below(place) if each.name.endswith(suffix)))]
        elif remote(place) is None:
            listed = [(name, _matching(name)) for name in expanded(str(place))]
        elif place.is_file():
            listed = [(pattern, [place])]
        else:
            urls = cache(sizes_in)
            listed = [(name, _matching_at(urls, name)) for name in expanded(str(place))]
    lacking = next((name for name, paths in listed if not paths), None)
    if lacking is not None:
        raise missing(
            f"There is no file {quoted(lacking)}, and no folder of that name with {suffix} files.",
            f"Name a {suffix} file, a folder of them, or a pattern such as 'train-{{0000..0099}}{suffix}' in quotes.",
        )
    found = [path for _, paths in listed for path in paths]
    refuse_twice(found, quoted)
    return found


def refuse_twice(files: Iterable[Path], named: Callable[[Path], str] = secret) -> None:
    """UserError if a file is there twice: each of its records would count twice, and the guarantee is for one."""
    twice = named_twice(files)
    if twice is not None:
        raise conflict(
            f"{named(twice)} is there twice: it is named twice, or is a link or a second name. Its records would "
            f"count twice, and the guarantee is for one. {GUARDED}",
            "Leave one of them.",
        )


def splits_by_role(splits: Collection[str]) -> dict[str, str]:
    """The source's name of 'train' and of 'test', as far as the source has such splits. splits: what it calls its own,
    as in the keys of `files_by_split`.
    """
    test = next((split for split in TEST_SPLITS if split in splits), None)
    return ({"train": "train"} if "train" in splits else {}) | ({} if test is None else {"test": test})


def expanded(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for, as a shell expands them. UserError if the braces hold no range
    of numbers, or stand for too many files (code "bad-value").
    """
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_FILES:
        raise UserError(f"{quoted(pattern)} names {count:,} files.", "Check the numbers in its braces.")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    if match := _NUMBERS.fullmatch(inside):
        first, last, width = int(match[1]), int(match[2]), len(match[1])
        if not first <= last < first + MOST_FILES:
            raise UserError(f"'{{{inside}}}' is not a range of numbers.", "Write for instance {0000..0099}.")
        return [f"{i:0{width}d}" for i in range(first, last + 1)]
    return inside.split(",")


def _matching(name: str) -> list[Path]:
    names = [name] if os.path.isfile(name) or not glob.has_magic(name) else sorted(glob.glob(name))
    return [Path(each) for each in names if os.path.isfile(each)]


def _matching_at(urls: Callable[[Path, bool], Collection[str]], name: str) -> list[Path]:
    """The files at a URL that fit one name. urls: `sizes_in`, so that each folder is listed once."""
    if not glob.has_magic(name):
        return [path] if str(path := place_of(name)) in urls(path.parent, False) else []
    wanted = name.split("/")
    folder = place_of("/".join(itertools.takewhile(lambda part: not glob.has_magic(part), wanted)))

    def fits(found: str) -> bool:
        # As `glob` does: a * ends at a slash, and does not begin with a dot.
        parts = list(zip(found.split("/"), wanted, strict=False))
        return found.count("/") == name.count("/") and all(
            fnmatch.fnmatchcase(part, form) and (form[:1] == "." or part[:1] != ".") for part, form in parts
        )

    found = sorted(filter(fits, urls(folder, glob.has_magic(name.rpartition("/")[0]))))
    return [folder / url.removeprefix(f"{folder}".rstrip("/") + "/") for url in found]


def all_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and below it whose own names are no clutter."""
    if (far := remote(folder)) is not None:
        found = (folder / entry.name for entry in far.entries(below=True))
    else:
        found = (path for path in folder.rglob("*") if path.is_file())
    return (path for path in found if not is_clutter(path.name))


def _word(path: Path, top: Path, find: Callable[[str], re.Match[str] | None]) -> str | None:
    """The split that a file or its nearest folder is named as, if one is."""
    below = path.parent.relative_to(top).parts if path.parent.is_relative_to(top) else ()
    found = (find(name.casefold()) for name in (path.name, *below[::-1]))
    # People keep all kinds of things in a folder 'dev' or 'external'.
    word = next((match[1] for match in found if match), top.name if top.name in _TEST + TRAIN_SPLITS else None)
    return None if word is None else plain(word)


def plain(word: str) -> str:
    """The word of a split, where all of those for training are one."""
    return "train" if word in TRAIN_SPLITS else word


_CLUTTER = frozenset(("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"))
"""What macOS, Windows and network drives write beside pictures, in small letters."""


def is_clutter(name: str) -> bool:
    """Whether a part of a path is none of the user's: it is hidden, or systems write such files beside pictures."""
    return (name.startswith(".") and name not in (".", "..")) or name.casefold() in _CLUTTER


def folders_in(folder: Path) -> list[str]:
    with entries_in(folder) as entries:
        return [entry.name for entry in entries if not is_clutter(entry.name) and entry.is_dir()]


def files_below(
    folder: Path, unreadable: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """What lies in a folder and below it and is the user's: files, each with its name from the folder on, and links to
    folders, which are not followed. unreadable: is told of a folder that cannot be read; None: OSError.
    """
    if (far := remote(folder)) is not None:
        named = ((entry.name, entry) for entry in far.entries(below=True))
        yield from (each for each in named if not any(map(is_clutter, each[0].split("/"))))
        return
    left = [""]
    while left:
        within = left.pop()
        try:
            with os.scandir(folder / within) as entries:
                found = [entry for entry in entries if not is_clutter(entry.name)]
        except OSError as error:
            if unreadable is None:
                raise
            unreadable(error)
            continue
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                left.append(f"{within}{entry.name}/")
            else:
                yield f"{within}{entry.name}", entry


_FORMATS = frozenset(
    (
        *(".arrow", ".cls", ".h5", ".hdf5", ".heic", ".json", ".jsonl"),
        *(".mrxs", ".ndpi", ".nii", ".npy", ".npz", ".parquet", ".svs"),
    )
)
"""Endings that `mimetypes` may not know."""


def files_by_ending(endings: Counter[str]) -> str:
    """'3 files (2 .txt, 1 without an ending)'. endings: how many files have each. One that no format has is not named:
    what stands behind the last dot of a name may be a part of a person's, or of a number.
    """
    kinds = Counter[str]()
    for ending, count in endings.items():
        known = ending.lower() in mimetypes.types_map or ending.lower() in _FORMATS
        kinds[ending if known else "of other endings" if ending else "without an ending"] += count
    listed = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(10))
    return f"{counted(endings.total(), 'file')} ({listed})"


def left_out(skipped: Counter[str], why: str = "their names do not end as those of pictures") -> tuple[str, ...]:
    """What is said of files that are left out. skipped: how many there are of each ending."""
    return (f"Left out, because {why}: {files_by_ending(skipped)}.",) if skipped else ()


There = Callable[[str], bool]
"""Whether there is a file of that path, or of that URL."""


def sizes_in(folder: Path, below: bool = True) -> dict[str, int]:
    """The size of each file in a folder at a URL, and below it, by its URL: one listing, and not a request for each.
    Empty for a folder of this machine.
    """
    found = () if (far := remote(folder)) is None else far.entries(below=below)
    return {entry.path: entry.stat().st_size for entry in found if not entry.is_dir()}


def inside(folder: Path, name: str, there: There = os.path.lexists) -> Path | None:
    r"""The file that a table in `folder` names, relative to it or absolute; None if that lies elsewhere.

    A table may come from somebody else. It names files of its own folder, and no other ones. A name that is there in
    another form of Unicode, or with / for \, is the one that is there.
    """
    top, root = str(folder), ""
    if remote(folder) is None:
        top = os.path.abspath(folder)
    else:
        # A URL is a path behind its scheme.
        root, top = top[: (at := top.index("/") + 1)], top[at:]
        name = name.removeprefix(root)
    name = name if there(root + os.path.join(top, name)) else name.replace("\\", "/")
    found = os.path.normpath(os.path.join(top, name))
    if "\0" in name or os.path.commonpath([top, found]) != top or found == top:
        return None
    forms = (found, *(top + unicodedata.normalize(form, found[len(top) :]) for form in ("NFC", "NFD")))
    found = next((form for form in forms if there(root + form)), found)
    return folder / found[len(top) + 1 :] if root else Path(found)


def held_out(
    source: str,
    splits: dict[str, int],
    fraction: float,
    noun: str,
    name: Callable[[int], str] = str,
    keys: Keys | None = None,
) -> dict[str, NDArray[np.int64]]:
    """The records of 'train' that stay there, and those that become 'test': their numbers, ascending.

    Args:
        source: what the user calls the source.
        splits: how many records each split has.
        fraction: about this part of them becomes the test split, between 0 and 1.
        noun: what a record is called, for messages.
        name: name(i) is what the source calls record i; its number if it has no name.
        keys: the person of each record, if the source says so.

    Raises:
        UserError: there is a test split already (code "conflict"), or one of the two would be empty (code "bad-value").

    """
    if "test" in splits:
        raise conflict(
            f"'{source}' has a test split already, of {counted(splits['test'], noun)}.",
            f"Leave out {parameter('hold_out')}.",
        )
    n = splits["train"]
    if keys is None:
        out = np.fromiter((_hashed(name(i)) < fraction for i in range(n)), bool, n)
    else:
        out = np.array([_fraction(sha256_of_key(person)) < fraction for person in keys.names])[keys.codes]
    if out.all() or not out.any():
        raise UserError(
            f"{parameter('hold_out')} {fraction:g} of {counted(n, noun)} leaves one of the two splits empty.",
            "Give another fraction, or a test split of your own.",
        )
    return {"train": np.flatnonzero(~out), "test": np.flatnonzero(out)}


def _hashed(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return _fraction(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())


def _fraction(digest: bytes) -> float:
    # A float holds 53 bits exactly.
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53
