"""The classes of a source and the labels of its pictures, from numbers or from names."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfc_cli.errors import GUARDED, UserError, parameter
from dpfc_cli.images.sets import Given
from dpfc_cli.sources.classes import Origin, inferred_classes, numbers_of_names
from dpfc_cli.sources.split_files import splits_by_role


class Labelled(NamedTuple):
    """What labels mean. classes, origin, renumbered: as in `ImageSet`. used: the source's name of the splits 'train'
    and, if there is one, 'test'. labels: the numbers of the classes, by the source's name of the split.
    """

    classes: tuple[str, ...]
    origin: Origin
    used: dict[str, str]
    labels: dict[str, NDArray[np.int64]]
    renumbered: bool = False


def labelled(labels: Mapping[str, Given], classes: tuple[str, ...] | None) -> Labelled:
    """What the labels mean in a format that has no list of classes.

    Args:
        labels: the labels of each split, by the source's name of the split. A split without any label is ignored:
            published test sets have none.
        classes: the classes that the operator asserts, or None.

    Raises:
        UserError: no training picture has a label (code "missing"), a label is out of range (code "bad-record"), or it
            is not among the asserted names (code "conflict").

    """
    known = {split: given for split, given in labels.items() if _has_labels(given)}
    used = splits_by_role(known)
    if "train" not in used:
        raise UserError(
            f"There are no labelled training images.{f' {GUARDED}' if 'train' in labels else ''}",
            "Give their files or their folder names that begin with 'train'.",
            code="missing",
            split="train",
        )
    given = {split: known[split] for split in used.values()}
    origin: Origin = "asserted" if classes else "inferred"
    if any(isinstance(label, str) for y in given.values() if not isinstance(y, np.ndarray) for label in y):
        return _labelled_by_names(given, classes, origin, used)
    numbers = {split: _numbers(y) for split, y in given.items()}
    names = classes or inferred_classes(max(int(y.max()) for y in numbers.values()))
    for split, y in numbers.items():
        if y.min() < 0 or y.max() >= len(names):
            raise UserError(
                f"The {split} images have labels outside 0..{len(names) - 1}. {GUARDED}",
                f"Check the labels, and the number of classes: {parameter('classes')}.",
                code="bad-record",
                parameter="classes",
                split=split,
            )
    return Labelled(names, origin, used, numbers)


def _has_labels(given: Given) -> bool:
    if isinstance(given, np.ndarray):
        return bool((given >= 0).any())
    return any(bool(label) if isinstance(label, str) else label is not None and label >= 0 for label in given)


def _numbers(given: Given) -> NDArray[np.int64]:
    if isinstance(given, np.ndarray):
        return given
    # Numbers beyond int64 are beyond all classes.
    return np.array([-1 if y is None else max(-1, min(y, 2**62)) for y in given], np.int64)


def _labelled_by_names(
    labels: dict[str, Given], classes: tuple[str, ...] | None, origin: Origin, used: dict[str, str]
) -> Labelled:
    """`labelled`, for labels that are names. Inferred classes are the names, sorted."""
    for split, given in labels.items():
        if not all(isinstance(label, str) and label for label in given):
            raise UserError(
                f"Some {split} images have the name of a class as label, and others do not. {GUARDED}",
                "Give each image a label. Take names everywhere, or numbers everywhere.",
                code="bad-record",
                split=split,
            )
    found = sorted({str(label) for given in labels.values() for label in given})
    number = numbers_of_names(found, classes)
    numbers = {split: np.array([number[str(label)] for label in given], np.int64) for split, given in labels.items()}
    renumbered = [number[name] for name in found] != list(range(len(found)))
    return Labelled(tuple(number), origin, used, numbers, renumbered)
