"""A document as Markdown. One with a header is a model card as the Hugging Face hub reads it.

Names come from files that others made. They have no effect as Markdown or HTML, and values in the header none as YAML.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from dpfc_cli.errors import printable
from dpfc_cli.show.document import Block, Code, Curve, Document, Points, Rows, Section, Table, Words
from dpfc_cli.structs import Json, Values

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$@&^]")
"""What begins something in Markdown, in HTML inside it, or in what sites add (@names, $formulas$, links)."""
_LINKS = re.compile(r"(?<=:)//|(?<=\bwww)\.", re.IGNORECASE)
"""What makes a link of bare text."""
_BEGINS = re.compile(r"\d{1,9}(?=[.)](?:\s|$))|(?=\+(?:\s|$)|[-=])")
"""What may make a list, or a rule, of a line that begins with it."""


def markdown(document: Document) -> str:
    header = f"---\n{_yaml(document.header)}---\n\n" if document.header else ""
    notice = [f"> {escaped(document.notice)}"] if document.notice else []
    title = f"{header}# {escaped(document.title)}{_tag(document)}"
    return "\n\n".join([title, *notice, *map(_section, document.sections)]) + "\n"


def escaped(text: str) -> str:
    """A text in a line of its own, or in a cell of a table. It is one line, and no mark in it has a meaning."""
    safe = _SPECIAL.sub(r"\\\g<0>", printable(text).strip())
    safe = _LINKS.sub(lambda match: "\\" + "\\".join(match[0]), safe)
    begins = _BEGINS.match(safe)
    return f"{begins[0]}\\{safe[begins.end() :]}" if begins else safe


def _tag(part: Section | Document) -> str:
    return " (confidential)" if part.internal else ""


def _section(section: Section) -> str:
    title = [f"## {escaped(section.title)}{_tag(section)}"] if section.title else []
    return "\n\n".join([*title, *map(_block, section.blocks)])


def _block(block: Block) -> str:
    match block:
        case Words():
            return f"**{escaped(block.text)}**" if block.strong else escaped(block.text)
        case Points():
            return "\n".join(f"- {escaped(each)}" for each in block.texts)
        case Rows():
            return _titled(block.title, _table(("", ""), block.rows, 2))
        case Table():
            return _titled(block.title, _table(block.columns, block.rows, block.left))
        case Code():
            return f"```python\n{block.text}\n```"
        case Curve():
            return escaped(block.said)
    raise TypeError(block)


def _titled(title: str, text: str) -> str:
    return f"**{escaped(title)}**\n\n{text}" if title else text


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    rules = ["---" if i < left else "---:" for i in range(len(columns))]
    lines = [map(escaped, columns), rules, *(map(escaped, row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _yaml(values: Values) -> str:
    """A mapping as YAML. Its keys are ours. JSON is YAML, if no character in it is written as a pair of escapes."""
    lines = (f"{key}: {json.dumps(_plain(value), ensure_ascii=False)}\n" for key, value in values.items())
    return "".join(lines)


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return printable(value) if isinstance(value, str) else value
