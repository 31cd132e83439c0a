"""Texts in Markdown that are only text, whatever is in them. Names come from files that others made."""

import re
from collections.abc import Iterable, Sequence

from dpfc_cli.errors import printable

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$@&^]")
"""What begins something in Markdown, in HTML inside it, or in what sites add (@names, $formulas$, links)."""
_LINKS = re.compile(r"(?<=:)//|(?<=\bwww)\.", re.IGNORECASE)
"""What makes a link of bare text."""
_BEGINS = re.compile(r"\d{1,9}(?=[.)](?:\s|$))|(?=\+(?:\s|$)|[-=])")
"""What may make a list, or a rule, of a line that begins with it."""


def escaped(text: str) -> str:
    """A text in a line of its own, or in a cell of a table. It is one line, and no mark in it has a meaning."""
    safe = _SPECIAL.sub(r"\\\g<0>", printable(text).strip())
    safe = _LINKS.sub(lambda match: "\\" + "\\".join(match[0]), safe)
    begins = _BEGINS.match(safe)
    return f"{begins[0]}\\{safe[begins.end() :]}" if begins else safe


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A table of texts, which are escaped here. The first `left` columns are text, the others numbers."""
    rules = ["---" if i < left else "---:" for i in range(len(columns))]
    lines = [map(escaped, columns), rules, *(map(escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
