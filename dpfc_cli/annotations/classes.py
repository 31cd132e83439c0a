"""The classes of a source, and who states them.

The list of classes is a public fact, because every head has it. A public data set that dpfc knows defines it, or the
operator asserts it. It never follows from the records: a class may be there because of one person, or be called as one.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.annotations.split_files import splits_by_role
from dpfc_cli.errors import (
    GUARDED,
    Faults,
    UserError,
    bad_record,
    conflict,
    counted,
    missing,
    parameter,
    quoted,
    secret,
)
from dpfc_cli.files import json_of
from dpfc_cli.places import Remote, place_of
from dpfc_cli.reading import lines_in

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


def check_names(found: Iterable[str], classes: tuple[str, ...]) -> None:
    """UserError if a name that a source itself has for classes (of folders, of a ClassLabel) is none of the classes
    (code "conflict").
    """
    unknown = sorted({composed(name) for name in found}.difference(classes))
    if unknown:
        raise conflict(
            f"{counted(len(unknown), 'label')} {'is' if len(unknown) == 1 else 'are'} not among the "
            f"{counted(len(classes), 'class')} of {parameter('classes')}: {secret(*unknown)}. {GUARDED}",
            f"The labels are names. {_ALL}",
        )


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
    elif isinstance(given, str | Path | Remote):
        names = tuple(line for line in lines_in(place_of(given), "classes", _NAMES) if line.strip())
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


# What labels mean
#
# Each label is a text: a number is the text that Python writes for it. What it means depends on it and on the classes,
# and on nothing else: not on the format, and not on the labels of other records.

_NUMBER = re.compile(r"(0|-?[1-9][0-9]{0,17})(\.0)?")
"""A number as a program writes it: 1, or 1.0 where a column has gaps."""
_BOOLEANS = ("false", "true")
_ALL = (
    "Give the names of all classes: there may be more classes than labels. If these are no classes, but persons: take "
    f"other labels ({parameter('label_column')}), or folders CLASS/PERSON."
)
Given = Sequence[object] | NDArray[np.int64]
"""Labels as a source gives them: texts, integers, floats, booleans, or None."""


class Labels(NamedTuple):
    """The labels of a split. texts: the different ones, as `text_of` has them. codes: for each record the place of its
    label there, (n,), or of its labels, (n, k).
    """

    texts: list[str]
    codes: NDArray[np.int64]


def text_of(label: object) -> str:
    """A label as a text; an empty one for none, which is also what NaN and the number −1 mean."""
    return "" if label is None or label != label or label == -1 else composed(str(label))


def coded(given: Given, called: tuple[str, ...] | None = None) -> Labels:
    """Labels by their texts. called: what numbers stand for, if the source says so (`hub_class_names`)."""
    name = text_of if called is None else partial(_called, names=called)
    if isinstance(given, np.ndarray):
        values, codes = np.unique(given, return_inverse=True)
        return Labels([name(value) for value in values.tolist()], codes.reshape(given.shape))
    place: dict[str, int] = {}
    codes = np.array([place.setdefault(name(label), len(place)) for label in given], np.int64)
    return Labels(list(place), codes)


def _called(label: object, names: tuple[str, ...]) -> str:
    text = text_of(label)
    if not text or (isinstance(label, str) and text in names):
        return text
    number = _NUMBER.fullmatch(text)
    at = -1 if number is None else int(number[1])
    return names[at] if 0 <= at < len(names) else f"{text}, for which the ClassLabel has no name"


def numbers_of(
    labels: Mapping[str, Labels], classes: tuple[str, ...], faults: Faults | None = None
) -> dict[str, NDArray[np.int64]]:
    """The numbers of the classes that the labels of each split mean, −1 for no label. faults: what is wrong is added to
    them, and −1 is also for a label that means no class; None: it is raised.

    A label that is the name of a class means it. 1.0 is also 1. True and False also go by such names in other capitals,
    and are also 1 and 0. An integer is the place of a class, from 0, if no name is a number. Otherwise it could be
    meant as a name: it would mean another class than it says.

    Raises:
        UserError: labels mean no class, or some are names and others places (code "bad-record").

    """
    named = {name: i for i, name in enumerate(classes)}
    placed = not any(map(_is_number, classes))
    means = {text: _meaning(text, named, placed) for own in labels.values() for text in own.texts}
    count = Counter[str]()
    for own in labels.values():
        for text, n in zip(own.texts, np.bincount(own.codes.ravel(), minlength=len(own.texts)).tolist(), strict=True):
            count[text] += n
    unknown = [text for text in sorted(count) if text and means[text][1] < 0]
    ways = {way for text, (way, _) in means.items() if text}
    with nullcontext() if faults is None else faults.gathered():
        if unknown or len(ways) > 1:
            wrong = unknown or [text for text in sorted(count) if means[text][0] == "place"]
            n = sum(count[text] for text in wrong)
            what = f"not among the {counted(len(classes), 'class')} of" if unknown else "no names, as others are, in"
            raise bad_record(
                f"{counted(n, 'label')} {'is' if n == 1 else 'are'} {what} {parameter('classes')}: "
                f"{secret(*(f'{text} ({count[text]:,} times)' for text in wrong))}. {GUARDED}",
                f"A label is the name of a class{f', or for all its place, 0 to {len(classes) - 1}' if placed else ''}."
                f" {_ALL}",
            )
    return {
        split: np.array([means[text][1] if text else -1 for text in own.texts], np.int64)[own.codes]
        for split, own in labels.items()
    }


def _meaning(text: str, named: Mapping[str, int], placed: bool) -> tuple[str, int]:
    """Whether a label is a "name" or a "place", and the number of its class, −1 for none."""
    forms = [text]
    if text.casefold() in _BOOLEANS:
        same = [name for name in named if name.casefold() == text.casefold()]
        forms += [*(same if len(same) == 1 else []), str(_BOOLEANS.index(text.casefold()))]
    number = _NUMBER.fullmatch(forms[-1])
    if number is not None:
        forms.append(number[1])
    for form in forms:
        if form in named:
            return "name", named[form]
    at = int(forms[-1]) if placed and number is not None else -1
    return ("place", at) if 0 <= at < len(named) else ("", -1)


def _is_number(name: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(name))
    return name.casefold() in _BOOLEANS


def labelled(
    labels: Mapping[str, Labels],
    classes: tuple[str, ...],
    names: Iterable[str] = (),
    faults: Faults | None = None,
) -> dict[str, tuple[str, NDArray[np.int64]]]:
    """What the labels of pictures mean: for the splits 'train' and, if there is one, 'test' the source's name of the
    split, and the numbers of the classes; −1 for a picture without a label, where others have one.

    Args:
        labels: of each split, by the source's name of the split. A split without any label is ignored: published test
            sets have none.
        classes: their names.
        names: of classes that the source has even where no picture is of them.
        faults: as for `numbers_of`.

    Raises:
        UserError: no training picture has a label (code "missing"), one means no class (code "bad-record"), or a name
            is none of a class (code "conflict").

    """
    known = {split: own for split, own in labels.items() if any(own.texts)}
    used = splits_by_role(known)
    if "train" not in used:
        raise missing(
            f"There are no labelled training images.{f' {GUARDED}' if 'train' in labels else ''}",
            "Give their files or their folder names that begin with 'train'.",
        )
    check_names(names, classes)
    found = numbers_of({split: known[split] for split in used.values()}, classes, faults)
    return {role: (split, found[split]) for role, split in used.items()}


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
    if isinstance(names, dict):
        # As the cards of the hub have them: {"0": "flu", "1": "cold"}.
        names = [names.get(str(i)) for i in range(len(names))]
    known = isinstance(names, list) and all(isinstance(n, str) for n in names)
    found = tuple(map(composed, names)) if known else ()
    return found if found and len(set(found)) == len(found) else None
