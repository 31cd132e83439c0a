"""A report as Markdown. One for whoever gets the head is a model card as the Hugging Face hub reads it.

Texts that come from files have no effect as Markdown or HTML, and values in the header none as YAML.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from dpfc_cli.errors import printable
from dpfc_cli.markdown import escaped, table
from dpfc_cli.report.document import Code, Document, Facts, Figure, Grid, Points, Section, SignOff, Words


def markdown(document: Document) -> str:
    """The text. A shared report begins with a header in YAML, and has no places to sign."""
    header = f"---\n{_yaml(document.header)}---\n\n" if document.header else ""
    tag = " (internal)" if document.internal else ""
    card = bool(document.header)
    sections = [_section(each) for each in document.sections if not (card and _only_to_sign(each))]
    return "\n\n".join([f"{header}# {escaped(document.title)}{tag}", f"> {escaped(document.notice)}", *sections]) + "\n"


def _only_to_sign(section: Section) -> bool:
    return all(isinstance(block, SignOff) for block in section.blocks)


def _section(section: Section) -> str:
    tag = " (internal)" if section.internal else ""
    return "\n\n".join([f"## {escaped(section.title)}{tag}", *(_WRITERS[type(each)](each) for each in section.blocks)])


def _words(block: Words) -> str:
    return f"**{escaped(block.text)}**" if block.strong else escaped(block.text)


def _points(block: Points) -> str:
    return "\n".join(f"- {escaped(each)}" for each in block.texts)


def _facts(block: Facts) -> str:
    return table(("", ""), block.rows, 2)


def _grid(block: Grid) -> str:
    title = f"**{escaped(block.title)}**\n\n" if block.title else ""
    return title + table(block.columns, block.rows, block.left)


def _code(block: Code) -> str:
    return f"```python\n{block.text}\n```"


def _figure(block: Figure) -> str:
    return escaped(block.said)


def _sign_off(block: SignOff) -> str:
    return table(("", "Name", "Date", "Signature"), [(role, "", "", "") for role in block.roles], 4)


_WRITERS: dict[type, Callable[..., str]] = {
    Words: _words,
    Points: _points,
    Facts: _facts,
    Grid: _grid,
    Code: _code,
    Figure: _figure,
    SignOff: _sign_off,
}


def _yaml(values: Mapping[str, Any], indent: str = "") -> str:
    """A mapping as YAML. Its keys are ours; every text in it is quoted."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        elif isinstance(value, list):
            lines.append(f"{indent}{key}:\n" + "".join(_item(each, indent) for each in value))
        else:
            lines.append(f"{indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _item(value: Any, indent: str) -> str:
    if not isinstance(value, Mapping):
        return f"{indent}- {_scalar(value)}\n"
    inner = _yaml(value, indent + "  ")
    return f"{indent}- {inner[len(indent) + 2 :]}"


def _scalar(value: Any) -> str:
    # A JSON text in double quotes is one of YAML, if no character in it is written as a pair of escapes.
    return json.dumps(printable(value) if isinstance(value, str) else value, ensure_ascii=False)
