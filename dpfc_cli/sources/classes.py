"""The classes of a source: who states them, and what they are if nobody does.

The list of classes is a public fact. The data set defines it, or the operator asserts it. If neither does, it is
inferred from the labels. Inferred classes depend on the records, so every card says that they were inferred.
"""

from typing import Literal

from dpfc_cli.errors import GUARDED, UserError, parameter

Origin = Literal["data set", "asserted", "inferred"]
"""Who states the classes: the data set's own definition, the operator, or nobody (then the labels imply them)."""

MOST_INFERRED = 100_000
"""The most classes that are inferred. Otherwise one damaged label could make dpfc allocate any amount of memory."""


def inferred_classes(largest_label: int) -> tuple[str, ...]:
    """The classes that the labels imply when nobody states them: '0', '1' and so on, up to the largest label.

    Args:
        largest_label: the largest label of all splits. There is at least one label, so it is 0 or more.

    Returns:
        The names of the classes, in the order in which labels count them.

    Raises:
        UserError: there would be more than `MOST_INFERRED` classes (code "bad-record").

    """
    count = largest_label + 1
    if count > MOST_INFERRED:
        raise UserError(
            f"The labels seem to name {count:,} classes. {GUARDED}",
            f"Say how many classes there are: {parameter('classes')}.",
            code="bad-record",
            parameter="classes",
        )
    return tuple(str(label) for label in range(count))


def check_classes(classes: tuple[str, ...], inferred: bool) -> None:
    """Refuse fewer than two classes, because a classifier could not tell anything apart.

    Args:
        classes: the names of the classes, at least one.
        inferred: the classes were inferred from the records, so the message says something about the records.

    Raises:
        UserError: there is one class only (code "bad-value").

    """
    if len(classes) < 2:
        raise UserError(
            f"There is one class only, '{classes[0]}': nothing to tell apart.{f' {GUARDED}' if inferred else ''}",
            f"If there are classes without records, name all classes: {parameter('classes')}."
            if inferred
            else "Add another class.",
            code="bad-value",
            parameter="classes",
        )
