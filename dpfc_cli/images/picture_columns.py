"""Which columns of a table of pictures hold what, as the Hugging Face hub lays them out.

A column is a struct of `bytes` and `path`. Another one has the labels: integers, or names of classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpfc_cli.errors import UserError, parameter
from dpfc_cli.sources.groups import Rule
from dpfc_cli.sources.key_columns import is_key, seeming
from dpfc_cli.sources.label_columns import USUAL_NAMES, hub_class_names, label_column

AGAIN = "Fetch the file again, or leave it out."


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a file holds what. classes: the names that the file gives to the classes, or None. person: the column that
    names persons, or None. seeming: the columns that seem to name persons.
    """

    image: str
    label: str
    classes: tuple[str, ...] | None
    person: str | None = None
    seeming: tuple[str, ...] = ()


def columns_of(schema: Any, source: str, given: str | None = None, group_by: Rule | None = None) -> Columns:
    """Which columns of a table hold pictures and labels.

    Args:
        schema: of the table.
        source: what the user calls the files, for messages.
        given: the column of labels, if the user names it.
        group_by: how persons are found, or None.

    Raises:
        UserError: the table has no such columns, or more than one of them.

    """
    person = None if group_by is None else group_by.column
    if person is not None:
        check_person(schema, person, source)
    image, label = image_column(schema, source), _label_column(schema, source, given, person)
    names = hub_class_names(schema.metadata, label)
    return Columns(image=image, label=label, classes=names, person=person, seeming=seeming(schema, image, label))


def check_person(schema: Any, name: str, source: str) -> None:
    """Raise UserError if no column of that name can name persons."""
    known = [field.name for field in schema if is_key(field.type)]
    if name not in known:
        raise UserError(
            f"'{source}' has no column '{name}' of integers or texts in each file.",
            f"A person is named by an integer or a text. It has: {', '.join(known) or 'none'}.",
            code="missing",
            parameter="group_by",
            path=source,
            known=known,
        )


def _label_column(schema: Any, source: str, given: str | None, person: str | None) -> str:
    """The column of labels: the one that the user names, or one of integers or texts with a usual name, or the only one
    of integers beside the one that names persons.
    """
    integers = [field.name for field in schema if pa.types.is_integer(field.type) and field.name != person]
    texts = [field.name for field in schema if is_text(field.type)]
    if given is not None:
        if given not in integers + texts:
            raise UserError(
                f"'{source}' has no column '{given}' of integers or texts.",
                f"It has: {', '.join(integers + texts) or 'none'}.",
                code="missing",
                parameter="label_column",
                known=integers + texts,
            )
        return given
    text = next((name for name in USUAL_NAMES if name in texts), None)
    if text is None or set(integers) & set(USUAL_NAMES):
        return label_column(integers, source)
    if integers:
        raise UserError(
            f"'{source}' has the texts '{text}' and the integers {integers}: which is the label?",
            f"Name its column: {parameter('label_column')}.",
            code="conflict",
            parameter="label_column",
            source=source,
            known=[text, *integers],
        )
    return text


def is_text(kind: Any) -> bool:
    """Whether a column of this type holds texts."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def image_column(schema: Any, source: str) -> str:
    """The column of pictures. UserError if there is none, or more than one."""
    found = [field.name for field in schema if _holds_bytes(field.type)]
    if len(found) != 1:
        raise UserError(
            f"'{source}' has {'no column' if not found else f'several columns {found}'} of pictures.",
            "One column must be a struct of 'bytes' and 'path', as the Hugging Face hub writes images. "
            "If the files hold features and not pictures, use 'dpfc import'.",
            code="conflict" if found else "missing",
            path=source,
            known=found,
        )
    return str(found[0])


def _holds_bytes(kind: Any) -> bool:
    if not pa.types.is_struct(kind):
        return False
    at = kind.get_field_index("bytes")
    return at >= 0 and bool(pa.types.is_binary(kind[at].type) or pa.types.is_large_binary(kind[at].type))


def has_paths(schema: Any, column: str) -> bool:
    """Whether pictures have paths beside their bytes."""
    return bool(schema.field(column).type.get_field_index("path") >= 0)


def check_image(schema: Any, image: str, path: Path) -> None:
    """Raise UserError if a file does not have the column of pictures."""
    if image not in schema.names or not _holds_bytes(schema.field(image).type):
        raise UserError(
            f"'{path}' has no pictures in column '{image}', but other files of the data set do.",
            AGAIN,
            code="conflict",
            path=str(path),
            column=image,
        )
