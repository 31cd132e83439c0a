"""What is taken for what: a matrix of counts for few classes, the largest confusions for many."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dpfc_cli.extensions.plots.canvas import BACKGROUND, COLOURS, FAINT, INK, RAMP, Panel
from dpfc_cli.show.document import told_apart

Cell = tuple[int, int, int]
"""(row, column, count): how many things of the class in the row were taken for that in the column."""
MOST_CLASSES = 30
"""The matrix of more classes could not be read."""
MOST_NUMBERS = 16
"""The counts of more classes have no room in their cells."""
MOST_BARS = 15
_LONGEST_TICK, _LONGEST_NAME = 20, 24


def panel(names: Sequence[str], cells: Sequence[Cell]) -> Panel:
    """A confusion matrix, or bars of the largest confusions if there are more classes than `MOST_CLASSES`.

    A cell is as dark as the root of its part of the row. So rows with few things can be read, and small parts are seen.
    cells: those with a count; the others are 0. Rows are labels, columns are best classes.
    """
    if len(names) > MOST_CLASSES:
        return _largest(names, cells)

    def draw(axes: Axes) -> None:
        m = len(names)
        totals = [sum(n for row, _, n in cells if row == i) or 1 for i in range(m)]
        parts = [[0.0] * m for _ in names]
        for row, column, n in cells:
            parts[row][column] = math.sqrt(n / totals[row])
        axes.pcolormesh(parts, cmap=RAMP, vmin=0, vmax=1.1, edgecolors=BACKGROUND, linewidth=0.8)
        if m <= MOST_NUMBERS:
            for row, column, n in cells:
                ink = BACKGROUND if parts[row][column] > 0.7 else INK
                size = 9 if m <= 10 else 7.5
                text = f"{n:,}" if n < 10_000 else f"{n / 1000:.0f}k"
                axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=size)
        ticks = [i + 0.5 for i in range(m)]
        small = 9 if m <= MOST_NUMBERS else 7
        told = told_apart(names, _LONGEST_TICK)
        turned = max(map(len, told)) > 3
        axes.set_xticks(ticks, told, rotation=45 if turned else 0, ha="right" if turned else "center", fontsize=small)
        if turned:
            for label in axes.get_xticklabels():
                label.set_rotation_mode("anchor")
        axes.set_yticks(ticks, told, fontsize=small)
        axes.tick_params(length=0)
        axes.grid(False)
        axes.set(xlim=(0, m), ylim=(m, 0), aspect="equal", xlabel="best class", ylabel="label")
        axes.set_anchor("N")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title("What is taken for what (records; darker: more of the row)")

    side = 3.2 + 0.24 * len(names)
    return Panel(draw=draw, width=side + 0.8, height=side + 0.4)


def _largest(names: Sequence[str], cells: Sequence[Cell]) -> Panel:
    wrong = sorted((cell for cell in cells if cell[0] != cell[1]), key=lambda cell: (-cell[2], cell))[:MOST_BARS]

    def draw(axes: Axes) -> None:
        axes.barh(range(len(wrong)), [n for _, _, n in wrong], color=COLOURS[0], height=0.7)
        told = told_apart(names, _LONGEST_NAME)
        axes.set_yticks(range(len(wrong)), [f"{told[row]} → {told[column]}" for row, column, _ in wrong])
        for i, (_, _, n) in enumerate(wrong):
            axes.annotate(f"{n:,}", (n, i), (3, 0), textcoords="offset points", va="center", color=FAINT, fontsize=8.5)
        axes.margins(x=0.12)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        axes.set(xlabel="records", title="The largest confusions (label → best class)")
        if not wrong:
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=FAINT)

    return Panel(draw=draw, width=7.2, height=1.4 + 0.25 * max(len(wrong), 4))
