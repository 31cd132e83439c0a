"""Labels in a table: which column holds them, and what their classes are called."""

from collections.abc import Mapping

from dpfc_cli.errors import UserError
from dpfc_cli.files import json_of

USUAL_NAMES = ("label", "labels", "fine_label", "class", "target")
"""Usual names of the label's column. The first one that is there is taken."""


def label_column(candidates: list[str], source: str) -> str:
    """Find the column of labels: the one with a usual name, or the only candidate.

    Args:
        candidates: the names of the columns that hold integers.
        source: what the user calls the source, for messages.

    Returns:
        The name of the column.

    Raises:
        UserError: there is no candidate (code "missing"), or several, none with a usual name (code "conflict").

    """
    found = [name for name in USUAL_NAMES if name in candidates] or candidates
    remedy = f"Give the column of class numbers one of these names: {', '.join(USUAL_NAMES)}."
    if not found:
        raise UserError(f"'{source}' has no column of labels.", remedy, code="missing", source=source)
    if len(found) > 1 and found[0] not in USUAL_NAMES:
        raise UserError(
            f"'{source}' has columns of integers {found}: which is the label?",
            remedy,
            code="conflict",
            source=source,
            known=found,
        )
    return found[0]


def hub_class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Read the class names that the Hugging Face hub writes into a parquet schema.

    Args:
        metadata: the schema's metadata.
        label: the name of the label's column.

    Returns:
        The names in the order in which labels count them, or None if the schema has no usable names.

    """
    try:
        names = json_of((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (TypeError, KeyError, ValueError):
        return None
    known = isinstance(names, list) and all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    return tuple(names) if known and names else None
