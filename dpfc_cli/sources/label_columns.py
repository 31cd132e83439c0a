"""Labels in a table: what their column is usually called, and what the hub says of their classes."""

from collections.abc import Mapping

from dpfc_cli.files import json_of

USUAL_NAMES = ("label", "labels", "fine_label", "class", "target")
"""Usual names of the label's column. The first one that is there is taken."""


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
