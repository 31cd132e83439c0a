"""The classes of a source, and who states them.

The list of classes is a public fact, because every head has it. A public data set that dpfc knows defines it, or the
operator asserts it. It never follows from the records: a class may be there because of one person, or be called as one.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, bad_record, conflict, counted, missing, parameter, quoted, secret
from dpfc_cli.files import json_of
from dpfc_cli.reading import lines_in
from dpfc_cli.sources.split_files import splits_by_role

Origin = Literal["data set", "asserted"]
"""Who states the classes: the data set's own definition, or the operator."""
MOST_ASSERTED = 9_999_999
"""The most classes. It keeps a mistyped number from taking all memory."""
_NAMES = (
    f"Give {parameter('classes')} a number, two or more names between commas, or a UTF-8 file with a name on each line."
)


def stated(classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes. UserError if nobody states them (code "conflict"), if there are fewer than two, because a classifier
    could not tell anything apart, and for names that are no text.

    The names of arguments are bytes to the system. Those that are not UTF-8 reach Python as surrogates, which no
    manifest and no head can hold.
    """
    if classes is None:
        raise conflict(
            "Nobody says which classes there are. Each head names them, so they are public. They do not follow from "
            "folders or labels: one may be there because of one person, or be called as one.",
            _NAMES,
            parameter="classes",
        )
    foreign = next((name for name in classes if name.encode("utf-8", "replace").decode() != name), None)
    if foreign is not None:
        raise UserError(
            f"The name of the class {foreign!a} is not UTF-8.",
            "Rename it. If it is a folder, rename the folder (convmv converts whole trees of names).",
            parameter="classes",
        )
    if len(classes) < 2:
        raise UserError("There is one class only: nothing to tell apart.", "Add another class.")
    return classes


def numbers_of_names(found: Sequence[str], classes: tuple[str, ...]) -> dict[str, int]:
    """The numbers of the classes by name, where labels are names.

    Args:
        found: the names that occur as labels, sorted. UserError if one is not among the classes (code "conflict").
        classes: the classes, in their order.

    """
    number = {name: i for i, name in enumerate(classes)}
    unknown = [name for name in found if name not in number]
    if unknown:
        raise conflict(
            f"{counted(len(unknown), 'label')} {'is' if len(unknown) == 1 else 'are'} not among the "
            f"{counted(len(number), 'class')} of {parameter('classes')}: {secret(*unknown)}. {GUARDED}",
            "The labels are names. Give the names of all classes: there may be more classes than labels. If these are "
            f"no classes, but persons: take other labels ({parameter('label_column')}), or folders CLASS/PERSON.",
        )
    return number


def class_names(given: int | Sequence[str] | Path | None) -> tuple[str, ...] | None:
    """Two or more different names of classes. UserError if they are fewer, or the file cannot be read.

    Args:
        given: how many classes there are (they are then called "0", "1" and so on), their names, or the path of a UTF-8
            file with a name on each line. None: nothing is asserted, and the result is None.

    """
    if given is None:
        return None
    if isinstance(given, int | np.integer):
        if given > MOST_ASSERTED:
            raise _refused(f"{given} classes are more than dpfc takes.")
        names = tuple(map(str, range(given)))
    elif isinstance(given, str | Path):
        names = tuple(line for line in lines_in(Path(given), "classes", _NAMES) if line.strip())
    else:
        try:
            names = tuple(given)
        except TypeError:
            names = ()
    texts = all(isinstance(name, str) and name.strip() for name in names)
    if len(names) < 2 or not texts or len(set(map(composed, names))) < len(names):
        raise _refused(f"{parameter('classes')} must give two or more different names.")
    return tuple(map(composed, names))


def composed(name: str) -> str:
    """A name in Unicode's composed form, without blanks at its ends. The same name on a Mac's disk and in a table may
    differ in its bytes.
    """
    return unicodedata.normalize("NFC", name).strip()


def plain(name: str) -> str:
    """A name without what does not count when names are compared: capitals, spaces, `_` and `-`."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").replace("-", " ").split())


def by_name(classes: Iterable[str], named: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """For each class the numbers of the things that have exactly its name, in order. If there are none: of those that
    have it but for what `plain` removes. named: names, each with the number of the thing that has it.
    """
    exact: dict[str, list[int]] = {}
    loose: dict[str, list[int]] = {}
    for name, number in named:
        exact.setdefault(name, []).append(number)
        loose.setdefault(plain(name), []).append(number)
    return {name: sorted(set(exact.get(name) or loose.get(plain(name), []))) for name in classes}


def _refused(what: str) -> UserError:
    return UserError(what, _NAMES)


# The labels of pictures

Given = Sequence[int | str | None] | NDArray[np.int64]
"""Labels as a source gives them: numbers of classes, or names of classes. −1 or None: no label."""


class Labelled(NamedTuple):
    """What labels mean."""

    used: dict[str, str]  # the source's name of the splits 'train' and, if there is one, 'test'
    labels: dict[str, NDArray[np.int64]]  # the numbers of the classes, by the source's name of the split


def labelled(
    labels: Mapping[str, Given],
    classes: tuple[str, ...],
    names: Iterable[str] = (),
    called: Callable[[str, int], str] = lambda split, i: f"{split} {i}",
) -> Labelled:
    """What the labels mean in a format that has no list of classes.

    Args:
        labels: the labels of each split, by the source's name of the split. A split without any label is ignored:
            published test sets have none.
        classes: their names.
        names: of classes that the source has even where no picture is of them.
        called: called(split, i) is what the source calls picture i.

    Raises:
        UserError: no training picture has a label (code "missing"), a label is out of range (code "bad-record"), or it
            is not among the names (code "conflict").

    """
    known = {split: given for split, given in labels.items() if _has_labels(given)}
    used = splits_by_role(known)
    if "train" not in used:
        raise missing(
            f"There are no labelled training images.{f' {GUARDED}' if 'train' in labels else ''}",
            "Give their files or their folder names that begin with 'train'.",
        )
    given = {split: known[split] for split in used.values()}
    if any(isinstance(label, str) for y in given.values() if not isinstance(y, np.ndarray) for label in y):
        for split, own in given.items():
            lacking = [i for i, label in enumerate(own) if not (isinstance(label, str) and label.strip())]
            _refuse(split, lacking, "no name of a class as label, and others have one", called)
        texts = {split: [composed(str(label)) for label in own] for split, own in given.items()}
        number = numbers_of_names(sorted({*chain(*texts.values()), *map(composed, names)}), classes)
        return Labelled(used, {split: np.array([number[label] for label in own]) for split, own in texts.items()})
    numbers = {split: _numbers(y) for split, y in given.items()}
    for split, y in numbers.items():
        wrong = np.flatnonzero((y < 0) | (y >= len(classes))).tolist()
        _refuse(split, wrong, f"no label in 0..{len(classes) - 1}", called)
    return Labelled(used, numbers)


def _refuse(split: str, records: list[int], what: str, called: Callable[[str, int], str]) -> None:
    """UserError if there are such records. called: as in `labelled`."""
    if records:
        these = f"{counted(len(records), f'{split} image')} {'has' if len(records) == 1 else 'have'}"
        raise bad_record(
            f"{these} {what}: {secret(*(called(split, i) for i in records))}. {GUARDED}",
            "Give each image a label: names everywhere, or numbers everywhere. Or check the number of classes: "
            f"{parameter('classes')}.",
        )


def _has_labels(given: Given) -> bool:
    if isinstance(given, np.ndarray):
        return bool((given >= 0).any())
    return any(bool(label.strip()) if isinstance(label, str) else label is not None and label >= 0 for label in given)


def _numbers(given: Given) -> NDArray[np.int64]:
    if isinstance(given, np.ndarray):
        return given
    # Numbers beyond int64 are beyond all classes.
    return np.array([-1 if y is None else max(-1, min(y, 2**62)) for y in given], np.int64)


# What is known of them elsewhere

USUAL_NAMES = ("label", "labels", "class", "classes", "target", "targets", "fine_label", "y")
"""Usual names of the labels, in any capitals: of a column, an array or a key."""


def usual_label(names: Iterable[str], source: str | Path) -> str | None:
    """The one of these names that is usual for labels; None if there is none. UserError if there are several."""
    found = [name for name in names if name.casefold() in USUAL_NAMES]
    if len(found) > 1:
        raise conflict(
            f"{quoted(source)} has several usual names of labels: {', '.join(found)}.",
            f"Say which of them has the labels: {parameter('label_column')}.",
        )
    return found[0] if found else None


def hub_class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """What the numbers in a column of labels mean, as the Hugging Face hub writes it into a parquet schema; None if it
    has no usable names. They are labels: who made them of folders made classes of whatever folders there were.

    metadata: of the schema. label: the name of the column.
    """
    try:
        names = json_of((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (TypeError, KeyError, ValueError):
        return None
    known = isinstance(names, list) and all(isinstance(n, str) for n in names)
    found = tuple(map(composed, names)) if known else ()
    return found if found and len(set(found)) == len(found) else None
