"""A report as one HTML page: no script, and nothing from elsewhere. A browser may load nothing (its content policy).

It follows the reader's choice of light or dark, and prints on white, with the kind of the report on each page.
"""

import html
from collections.abc import Callable

from dpfc_cli.errors import printable
from dpfc_cli.figures import canvas
from dpfc_cli.report.document import Block, Code, Document, Facts, Figure, Grid, Points, Section, SignOff, Words

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #262626; --faint: #5b5b5b; --line: #d6d6d2; --mark: #9c3d00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1b1b1a; --ink: #e6e6e1; --faint: #a9a9a3; --line: #454541; --mark: #ff9d5c; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --ink: #000; --faint: #444; --line: #bbb; --mark: #8a3600; }
}
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif;
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.notice { border-left: 4px solid var(--faint); padding: .1rem 1rem; color: var(--faint); }
.internal .notice { border-color: var(--mark); }
.tag { color: var(--mark); border: 1px solid var(--mark); border-radius: 3px; font-size: .75rem; padding: 0 .4em;
  margin-left: .6em; vertical-align: middle; white-space: nowrap; }
strong { color: var(--mark); }
dl { display: grid; grid-template-columns: minmax(8rem, 11rem) 1fr; gap: .35rem 1rem; }
dt { color: var(--faint); } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); }
th, .whole { overflow-wrap: normal; }
.figures { width: auto; } .figures th, .figures td { padding-left: 1.2rem; }
.wide { font-size: .8rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { border: 1px solid var(--line); padding: .6rem; white-space: pre-wrap; font-size: .88rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
.sign td { height: 2.6rem; vertical-align: bottom; width: 27%; }
@page { size: A4; margin: 18mm 16mm 20mm;
  @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; }
  @bottom-left { content: "KIND"; font: 8pt sans-serif; } }
@media print { body { font-size: 10pt; max-width: none; margin: 0; padding: 0; } .wide { font-size: 7.5pt; }
  h2, caption { break-after: avoid; } tr, figure, dd, pre, .kept { break-inside: avoid; }
  thead { display: table-header-group; } }
@media (max-width: 36rem) {
  dl { display: block; } dd { margin-bottom: .5rem; } table { display: block; overflow-x: auto; } }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en"{kind}>
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}{tag}</h1>
<p class="notice">{notice}</p>
{sections}
</body>
</html>
"""
_MANY, _FEW, _SHORT = 6, 15, 14
"""More columns than these make a table wide; so many rows stay on one page; so long a word is not broken."""
_TAG = '<span class="tag">internal</span>'


def html_of(document: Document) -> str:
    """The page. It needs matplotlib if the document has a figure."""
    return _PAGE.format(
        kind=' class="internal"' if document.internal else "",
        title=_text(document.title),
        style=_STYLE.replace("KIND", _in_style(document)),
        tag=_TAG if document.internal else "",
        notice=_text(document.notice),
        sections="\n".join(map(_section, document.sections)),
    )


def _in_style(document: Document) -> str:
    return "internal: for the holder of the records only" if document.internal else document.kind


def _text(text: str) -> str:
    """Text that is no markup, whatever is in it."""
    return html.escape(printable(text))


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    return f"<section>\n<h2>{_text(section.title)}{_TAG if section.internal else ''}</h2>\n{blocks}\n</section>"


def _block(block: Block) -> str:
    return _WRITERS[type(block)](block)


def _words(block: Words) -> str:
    return f"<p>{f'<strong>{_text(block.text)}</strong>' if block.strong else _text(block.text)}</p>"


def _points(block: Points) -> str:
    return f"<ul>{''.join(f'<li>{_text(each)}</li>' for each in block.texts)}</ul>"


def _facts(block: Facts) -> str:
    rows = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in block.rows)
    return f"<dl>\n{rows}\n</dl>"


def _grid(block: Grid) -> str:
    columns = list(zip(*block.rows, strict=True)) or [()] * len(block.columns)
    looks = [_look(cells, i >= block.left) for i, cells in enumerate(columns)]

    def line(cells: tuple[str, ...], tag: str) -> str:
        inside = (f"<{tag}{look}>{_text(cell)}</{tag}>" for cell, look in zip(cells, looks, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    kinds = {"figures": not block.left, "wide": len(block.columns) > _MANY, "kept": len(block.rows) <= _FEW}
    caption = f"<caption>{_text(block.title)}</caption>" if block.title else ""
    rows = "\n".join(line(row, "td") for row in block.rows)
    head = f'<table class="{" ".join(name for name, holds in kinds.items() if holds)}">{caption}'
    return f"{head}<thead>{line(block.columns, 'th')}</thead>\n<tbody>{rows}</tbody></table>"


def _look(cells: tuple[str, ...], number: bool) -> str:
    """The attribute of a column. Short words are not broken; a digest or a long name is."""
    short = max((len(word) for cell in cells for word in cell.split()), default=0) <= _SHORT
    found = " ".join(name for name, holds in (("number", number), ("whole", short)) if holds)
    return f' class="{found}"' if found else ""


def _code(block: Code) -> str:
    return f"<pre>{html.escape(block.text)}</pre>"


def _figure(block: Figure) -> str:
    return f"<figure>{canvas.draw(block.panel, title=block.title).svg()}</figure>"


def _sign_off(block: SignOff) -> str:
    head = "<tr><th></th><th>Name</th><th>Date</th><th>Signature</th></tr>"
    rows = "".join(f"<tr><td>{_text(role)}</td><td></td><td></td><td></td></tr>" for role in block.roles)
    return f'<table class="sign"><thead>{head}</thead><tbody>{rows}</tbody></table>'


_WRITERS: dict[type, Callable[..., str]] = {
    Words: _words,
    Points: _points,
    Facts: _facts,
    Grid: _grid,
    Code: _code,
    Figure: _figure,
    SignOff: _sign_off,
}
