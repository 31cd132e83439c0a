"""Labels: which column of a table holds them, what its classes are called, and that there are enough."""

import json
from collections.abc import Mapping

from dpfc_cli.errors import GUARDED, UserError

LABELS = ("label", "labels", "fine_label", "class", "target")
"""Usual names of the column."""


def label_column(candidates: list[str], source: str) -> str:
    """Which of the columns of integers is the label: the one of a usual name, or the only one."""
    found = [name for name in LABELS if name in candidates] or candidates
    if not found or (len(found) > 1 and found[0] not in LABELS):
        problem = f"columns of integers {found}: which is the label?" if found else "no column of labels."
        raise UserError(
            f"'{source}' has {problem}",
            f"Name the column of class numbers one of {', '.join(LABELS)}.",
        )
    return found[0]


def class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """The names of the label's classes, as the Hugging Face hub writes them into a parquet schema, if it does."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (TypeError, KeyError, ValueError):
        return None
    known = isinstance(names, list) and all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    return tuple(names) if known and names else None


def check_classes(classes: tuple[str, ...], inferred: bool) -> None:
    """UserError for fewer than two classes: nothing could be told apart. inferred: it is the records that say so."""
    if len(classes) < 2:
        raise UserError(
            f"There is one class only, '{classes[0]}': nothing to tell apart.{f' {GUARDED}' if inferred else ''}",
            "Classes without records count if you say that there are such: --classes." if inferred else "Add another.",
        )
