"""Panels to a figure, and a figure to SVG, PNG or PDF.

One style for all figures. The background is drawn, and it is nearly white. So a figure looks the same in a light page,
in a dark one, and in print. The colours are told apart by people with any colour vision (Okabe and Ito 2008), and each
comes with a marker of its own for print in grey. Text stays text, so it can be searched and copied.

The same numbers give the same bytes with the same version of matplotlib: no date, no random names, and no setting of
the user's matplotlib.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from dpfc_cli.errors import printable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
"""Of series, in order."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of series, in order."""
BACKGROUND, INK, FAINT, GRID = "#fdfdfb", "#262626", "#6b6b6b", "#dededa"
"""The page, text and axes, remarks, and lines of the grid."""
RAMP = "Blues"
"""The matplotlib colour map of counts: from nothing (light) to most (dark)."""
DPI = 160
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.facecolor": BACKGROUND,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlepad": 8,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.facecolor": BACKGROUND,
    "figure.titlesize": 12,
    "font.size": 9.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.facecolor": BACKGROUND,
    "text.color": INK,
    # A name may have a dollar sign.
    "text.parse_math": False,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    # Text as text.
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    # The names inside an SVG are digests of what they name.
    "svg.hashsalt": "dpfc",
}
_METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot. width, height: of its place, in inches. draw: draws it on axes that are empty."""

    draw: Callable[[Axes], None]
    width: float = 6.0
    height: float = 4.0


def draw(*panels: Panel, title: str) -> Figure:
    """Draw panels side by side."""
    with _styled():
        size = (sum(panel.width for panel in panels), max(panel.height for panel in panels))
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left")
        widths = [panel.width for panel in panels]
        for panel, axes in zip(
            panels, figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0], strict=True
        ):
            panel.draw(axes)
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            # Names come from files that others made, and XML cannot have every character.
            text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
        # The places are found once: a second time would move them a little.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def bytes_of(figure: Figure, kind: str) -> bytes:
    """The contents of a file of this kind: svg, png or pdf."""
    buffer = io.BytesIO()
    with _styled():
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=_METADATA[kind])
    return buffer.getvalue()


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context(), warnings.catch_warnings():
        # A name may have letters that the font lacks. An SVG shows them nevertheless.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield
