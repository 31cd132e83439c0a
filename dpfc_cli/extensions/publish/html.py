"""A document as one HTML page: no script, and nothing from elsewhere. A browser may load nothing (its content policy).

It follows the reader's choice of light or dark, and prints on white, with its kind on each page.
"""

import html
from collections.abc import Sequence

from dpfc_cli.errors import printable
from dpfc_cli.show.document import Block, Code, Curve, Document, Points, Rows, Section, Table, Words

_STYLE = """
:root { color-scheme: light dark; --page: #fdfdfb; --ink: #262626; --faint: #5b5b5b; --line: #d6d6d2; --mark: #9c3d00; }
@media (prefers-color-scheme: dark) {
  :root { --page: #1b1b1a; --ink: #e6e6e1; --faint: #a9a9a3; --line: #454541; --mark: #ff9d5c; }
}
@media print {
  :root { color-scheme: light; --page: #fff; --ink: #000; --faint: #444; --line: #bbb; --mark: #8a3600; }
}
body { background: var(--page); color: var(--ink); font: 1rem/1.5 system-ui, "DejaVu Sans", sans-serif;
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
figure { float: left; margin: 1rem 2rem 1rem 0; } section { clear: both; }
svg { max-width: 100%; height: auto; font-size: 11px; fill: var(--ink); }
path { fill: none; stroke: var(--line); } .curve, circle { stroke: #0072b2; stroke-width: 2; }
.chance { stroke: var(--faint); stroke-dasharray: 5 4; } circle { fill: var(--page); }
.sign td { height: 1.9rem; vertical-align: bottom; width: 27%; }
@page { size: A4; margin: 12mm 15mm 14mm;
  @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; }
  @bottom-left { content: "KIND"; font: 8pt sans-serif; } }
@media print { html { font-size: 9pt; } body { line-height: 1.25; max-width: none; margin: 0; padding: 0; }
  h2 { margin: 1rem 0 .3rem; } svg { max-width: 56mm; } dl { gap: .1rem 1rem; }
  p, ul, dl, table, figure { margin-block: .45rem; }
  h2, caption { break-after: avoid; } section, table, tr, figure, dd, pre { break-inside: avoid; }
  thead { display: table-header-group; } }
@media (max-width: 36rem) {
  figure { float: none; } dl { display: block; } dd { margin-bottom: .5rem; }
  table { display: block; overflow-x: auto; } .figures th, .figures td { padding-left: .2rem; } }
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
{notice}
{sections}
</body>
</html>
"""
_MANY, _SHORT = 6, 14
"""More columns than these make a table wide; so long a word is not broken."""
_TAG = '<span class="tag">confidential</span>'


def html_of(document: Document) -> str:
    notice = f'<p class="notice">{_text(document.notice)}</p>' if document.notice else ""
    return _PAGE.format(
        kind=' class="internal"' if document.internal else "",
        title=_text(document.title),
        style=_STYLE.replace("KIND", document.kind),
        tag=_TAG if document.internal else "",
        notice=notice,
        sections="\n".join(map(_section, document.sections)),
    )


def _text(text: str) -> str:
    """Text that is no markup, whatever is in it."""
    return html.escape(printable(text))


def _section(section: Section) -> str:
    blocks = "\n".join(map(_block, section.blocks))
    title = f"<h2>{_text(section.title)}{_TAG if section.internal else ''}</h2>\n" if section.title else ""
    return f"<section>\n{title}{blocks}\n</section>"


def _block(block: Block) -> str:
    match block:
        case Words():
            return f"<p>{f'<strong>{_text(block.text)}</strong>' if block.strong else _text(block.text)}</p>"
        case Points():
            return f"<ul>{''.join(f'<li>{_text(each)}</li>' for each in block.texts)}</ul>"
        case Rows():
            title = f"<p>{_text(block.title)}</p>" if block.title else ""
            rows = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(said)}</dd>" for name, said in block.rows)
            return f"{title}<dl>\n{rows}\n</dl>"
        case Table():
            return _table(block)
        case Code():
            return f"<pre>{html.escape(block.text)}</pre>"
        case Curve():
            return f"<figure>{_svg(block)}</figure>"
    raise TypeError(block)


def _table(table: Table) -> str:
    columns = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    looks = [_look(cells, i >= table.left) for i, cells in enumerate(columns)]

    def line(cells: Sequence[str], tag: str) -> str:
        inside = (f"<{tag}{look}>{_text(cell)}</{tag}>" for cell, look in zip(cells, looks, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    kinds = {"figures": not table.left, "wide": len(table.columns) > _MANY}
    kinds["sign"] = not any(columns[-1])
    caption = f"<caption>{_text(table.title)}</caption>" if table.title else ""
    rows = "\n".join(line(row, "td") for row in table.rows)
    head = f'<table class="{" ".join(name for name, holds in kinds.items() if holds)}">{caption}'
    return f"{head}<thead>{line(table.columns, 'th')}</thead>\n<tbody>{rows}</tbody></table>"


def _look(cells: Sequence[str], number: bool) -> str:
    """The attribute of a column. Short words are not broken; a digest or a long name is."""
    short = max((len(word) for cell in cells for word in cell.split()), default=0) <= _SHORT
    found = " ".join(name for name, holds in (("number", number), ("whole", short)) if holds)
    return f' class="{found}"' if found else ""


def _svg(curve: Curve) -> str:
    """The drawing, in the colours of the page. Its text is text."""

    def at(x: float, y: float) -> str:
        return f"{50 + 300 * x:.2f} {310 - 300 * y:.2f}"

    def said(x: float, y: float, words: str, anchor: str = "middle") -> str:
        return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{_text(words)}</text>'

    line = " L ".join(at(x, y) for x, y in curve.points)
    grid = " ".join(f"M {at(i / 5, 0)} L {at(i / 5, 1)} M {at(0, i / 5)} L {at(1, i / 5)}" for i in range(6))
    ticks = "".join(said(50 + 60 * i, 326, str(20 * i)) + said(44, 314 - 60 * i, str(20 * i), "end") for i in range(6))
    across, up, words = curve.marked
    x, y = at(across, up).split()
    return (
        # What prints PDF knows these attributes, and not the style of the page. In a browser the style wins.
        f'<svg viewBox="0 0 360 352" width="400" font-size="11" role="img" aria-label="{_text(curve.title)}">'
        f'<g fill="none" stroke="#bbb"><path d="{grid}"/><path class="chance" d="M {at(0, 0)} L {at(1, 1)}"/>'
        f'<path class="curve" stroke="#0072b2" stroke-width="2" d="M {line}"/></g>{ticks}'
        f'<circle cx="{x}" cy="{y}" r="4" fill="#fff" stroke="#0072b2"/>'
        f"{said(200, 346, curve.axes[0])}<g transform='rotate(-90)'>{said(-160, 14, curve.axes[1])}</g>"
        f"{said(345, 300, words, 'end')}</svg>"
    )
