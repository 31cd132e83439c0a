"""Persons that a source seems to know, though nobody said how they are found.

A column called `patient_id`, folders below the classes, a PatientID in DICOM: if a value of these comes twice, some
records seem to be of one person. A guarantee for single records would then protect less than a person. So the user is
asked first. What is looked at are names and whether values come twice. A message names the column or the level, and no
value. If in doubt it asks: the question costs one option, and a wrong unit cannot be taken back.

A column in which all values differ names no persons, and neither does one that says the same of all records.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpfc_cli.annotations.groups import key_of, names_persons
from dpfc_cli.errors import GUARDED, UserError, conflict, parameter

DEEPEST = 64
"""The deepest level of folders that is looked at."""


class PersonsNoticedError(UserError):
    """Some records seem to be of one person, and nobody said which, or that it does not matter."""


def repeat(values: Iterable[object]) -> bool:
    """Whether a value comes twice, and another one beside it. Values that are missing or empty do not count."""
    seen, twice = set[int](), False
    for text in (key_of(str(value)) for value in values if value is not None):
        if text and text != "nan":
            # Numbers take less memory than texts.
            twice |= hash(text) in seen
            seen.add(hash(text))
            if twice and len(seen) > 1:
                return True
    return False


def column_of(columns: Mapping[str, Iterable[object]]) -> str | None:
    """The first column with a name of persons in which values come twice; None if there is none. columns: the values of
    each. Those of columns with other names are not looked at.
    """
    for name, values in columns.items():
        if names_persons(name) and repeat(_uncounted(values) if name.casefold() == "id" else values):
            return name
    return None


def _uncounted(values: Iterable[object]) -> Iterator[object]:
    """The values but those that are one more than the one before: an id may count the records of each file anew."""
    before = None
    for value in values:
        text = str(value).strip()
        number = int(text) if text.isdecimal() and len(text) < 20 else None
        if before is None or number != before + 1:
            yield value
        before = number


def level_of(names: Sequence[str], labels: Sequence[object] | None = None) -> int | None:
    """The first level of folders that seems to name persons: it has several, and one of them holds several pictures.

    Args:
        names: the pictures' names. The first folder in them has level 1.
        labels: the class of each picture, if its folder may be among these levels. A level with one folder for
            each class names the classes.

    """
    split = [name.split("/")[:-1] for name in names]
    for level in range(1, min(max(map(len, split), default=0), DEEPEST) + 1):
        deep = [i for i, folders in enumerate(split) if len(folders) >= level]
        found = ["/".join(split[i][:level]) for i in deep]
        different = set(found)
        if labels is not None:
            pairs = {(labels[i], folder) for i, folder in zip(deep, found, strict=True)}
            if len(pairs) == len(different) == len({label for label, _ in pairs}):
                continue
        if 1 < len(different) < len(found):
            return level
    return None


def persons_noticed(source: str, option: str, found: str) -> PersonsNoticedError:
    """The error. option: the parameter that would bring the records of a person together. found: its value."""
    kind, _, what = found.partition(":") if option == "group_by" else ("", "", found)
    typed = shlex.quote(found)
    typed = typed if typed != found else f"'{found}'"
    by = "the names of their folders" if kind == "folder" else f"'{what}'"
    return PersonsNoticedError(
        f"Some records of '{source}' seem to be of one person, by {by}. Only single records would be protected, which "
        f"is less than a person. {GUARDED}",
        f"To protect persons: {parameter(option)} {typed}. If each record shall count as a person of its "
        f"own: {parameter('each_record_is_a_person')}.",
        code="conflict",
        parameter="each_record_is_a_person",
        path=source,
        found=found,
    )


def refuse_both(each_record_is_a_person: bool, persons: bool, by: str) -> None:
    """Raise UserError if persons are known, and each record shall be one. by: the parameter that says who they are."""
    if each_record_is_a_person and persons:
        raise conflict(
            f"Persons are known here, and with {parameter('each_record_is_a_person')} each record would be one.",
            f"Leave it out, or {parameter(by)}.",
        )
