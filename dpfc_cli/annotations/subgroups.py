"""Subgroups: public columns of a source, such as sex or site, by whose values figures are shown.

Which values a column may have is a public fact that the user asserts, as the classes are. A record with another value,
or with none, is in no subgroup.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from dpfc_cli.annotations.classes import text_of
from dpfc_cli.errors import UserError, parameter

Named = Mapping[str, tuple[str, ...]]
"""The values of each column."""


def subgroups_of(text: str | None) -> dict[str, tuple[str, ...]]:
    """What 'sex=f,m;site=a,b' says. UserError where it is of another form."""
    found = dict[str, tuple[str, ...]]()
    for part in filter(None, (text or "").split(";")):
        name, _, values = (each.strip() for each in part.partition("="))
        named = tuple(each.strip() for each in values.split(","))
        if not name or name in found or not all(named) or len(set(named)) < len(named):
            raise UserError(
                f"{parameter('subgroups')} '{text}' does not name columns and their values.",
                "Write COLUMN=VALUE,VALUE, and a semicolon between two columns.",
                parameter="subgroups",
            )
        found[name] = named
    return found


def codes_of(columns: Mapping[str, Iterable[object]], known: Named) -> np.ndarray:
    """The number of the value of each record, −1 for none of them; n × columns, int32."""
    codes = []
    for name, values in columns.items():
        places = {value: i for i, value in enumerate(known[name])}
        codes.append([places.get(text_of(value).strip(), -1) for value in values])
    return np.array(codes, np.int32).T
