"""False alarms against power: what the best attack on a released value can reach."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpfc_cli.figures.canvas import COLOURS, FAINT, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def panel(points: Sequence[tuple[float, float]], marked: tuple[float, float, str]) -> Panel:
    """A trade-off curve over the diagonal of pure chance.

    Args:
        points: (false alarms, power), as fractions, in the order of the false alarms.
        marked: a point of the curve to mark, and what is said of it.

    """

    def draw(axes: "Axes") -> None:
        x, y = ([100 * each[i] for each in points] for i in (0, 1))
        axes.fill_between(x, x, y, color=COLOURS[0], alpha=0.12, linewidth=0)
        axes.plot(x, y, color=COLOURS[0], label="no attack is above this line")
        axes.plot([0, 100], [0, 100], color=FAINT, linestyle="--", linewidth=1.2, label="chance: nothing is learned")
        across, up, said = marked
        axes.plot([100 * across], [100 * up], color=COLOURS[1], marker="o", linestyle="none", label=said)
        axes.set(
            xlim=(0, 100),
            ylim=(0, 100),
            aspect="equal",
            xlabel="false alarms, % of those that were not used",
            ylabel="found, % of those that were used",
        )
        axes.legend(loc="lower right")

    return Panel(draw=draw, width=5.2, height=4.4)
