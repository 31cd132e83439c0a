"""Panels to a drawing, and a drawing to SVG, PNG or PDF. See the room's docstring on how to add a figure.

One style for all figures. The background is drawn, and it is nearly white. So a figure looks the same in a light page,
in a dark one, and in print. The colours are told apart by people with any colour vision (Okabe and Ito 2008), and each
comes with a marker of its own for print in grey. Text stays text, so it can be searched and copied.

The same numbers give the same bytes with the same version of matplotlib: no date, no random names, and no setting of
the user's matplotlib.
"""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfc_cli import files
from dpfc_cli.errors import UserError, check_installed, missing, parameter, printable, quoted, unwritable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf")
"""What a drawing can be written as: the endings of files."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b5b5b")
"""Of series, in order."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Of series, in order."""
BACKGROUND, INK, FAINT, GRID = "#fdfdfb", "#262626", "#6b6b6b", "#dededa"
"""The page, text and axes, remarks, and lines of the grid."""
RAMP = "Blues"
"""The matplotlib colour map of counts: from nothing (light) to most (dark)."""
DPI = 160
LONGEST_NAME = 40
"""Characters of a name in a figure. Longer ones are shortened in the middle."""
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

    draw: Callable[["Axes"], None]
    width: float = 6.0
    height: float = 4.0


@dataclass(frozen=True)
class Drawing:
    """A drawn figure."""

    figure: "Figure"

    def bytes_of(self, kind: str) -> bytes:
        """The contents of a file of this kind: one of `KINDS`."""
        buffer = io.BytesIO()
        with _styled():
            self.figure.savefig(buffer, format=kind, dpi=DPI, metadata=_METADATA[kind])
        return buffer.getvalue()

    def save(self, path: Path, mode: int | None = None) -> None:
        """Write the file, of the kind that its name ends in. A file of that name is replaced. mode: as in `files`.
        UserError: it ends in something else, or it cannot be written. Then an older file is as it was.
        """
        try:
            files.replace(path, self.bytes_of(_kind(path)), mode)
        except OSError as error:
            raise unwritable(
                f"The figure cannot be written to {quoted(path)}: {error.strerror or error}.",
                "Choose a writable place, with room left.",
            ) from error


def check(path: Path | None = None) -> None:
    """Refuse what would fail later: call it before any work. path: the file that is to be written, if any. UserError:
    matplotlib is missing, the file ends in something else than `KINDS`, or its folder is not there.
    """
    if path is not None:
        _kind(path)
        if path.is_dir() or not path.parent.is_dir():
            what = "is a folder" if path.is_dir() else "would lie in a folder that is not there"
            remedy = f"Name a file in a folder that is there: {parameter('plot')}."
            raise missing(f"{quoted(path)} {what}.", remedy)
    check_installed("matplotlib", "plot", "To draw figures")


def draw(*panels: Panel, title: str) -> Drawing:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

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
    return Drawing(figure)


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """A name with its middle left out where it is too long. Names that differ at an end stay different."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def told_apart(names: Sequence[str], longest: int) -> list[str]:
    """Names, shortened. Where two would then be the same, all have their place in front: 1, 2, 3 and so on."""
    short = [shortened(name, longest) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    digits = len(str(len(names)))
    return [f"{i} {shortened(name, longest - digits - 1)}" for i, name in enumerate(names, 1)]


def _kind(path: Path) -> str:
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UserError(
            f"{parameter('plot')} {quoted(path)} does not end in .{', .'.join(KINDS[:-1])} or .{KINDS[-1]}.",
            "The ending says what kind of file is written.",
        )
    return kind


@contextmanager
def _styled() -> Iterator[None]:
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        # A name may have letters that the font lacks. An SVG shows them nevertheless.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield
