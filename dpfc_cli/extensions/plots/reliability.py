"""Whether probabilities are right: the part that is right against the probability, in bins."""

from matplotlib.axes import Axes

from dpfc_cli.evaluation.statistics import Calibration
from dpfc_cli.extensions.plots.canvas import COLOURS, FAINT, GRID, MARKERS, Panel


def panel(found: Calibration) -> Panel:
    """A reliability diagram. Points on the diagonal are right as often as they say."""
    bins, error, chance = found.bins, 100 * found.error, 100 * found.by_chance

    def draw(axes: Axes) -> None:
        centres = [50 * (each.low + each.high) for each in bins]
        widths = [92 * (each.high - each.low) for each in bins]
        whole = sum(each.n for each in bins)
        parts = axes.bar(centres, [100 * each.n / whole for each in bins], widths, color=GRID)
        line = axes.plot([0, 100], [0, 100], color=FAINT, linestyle=":", linewidth=1.3)[0]
        x, y, below, above = [], [], [], []
        for each in bins:
            if each.probability is None or each.right is None or each.interval is None:
                continue
            x.append(100 * each.probability)
            y.append(100 * each.right)
            below.append(max(100 * (each.right - each.interval[0]), 0.0))
            above.append(max(100 * (each.interval[1] - each.right), 0.0))
        points = axes.errorbar(
            x, y, yerr=[below, above], color=COLOURS[0], marker=MARKERS[0], linestyle="none", capsize=3, elinewidth=1.2
        )
        axes.set(
            xlim=(0, 100),
            ylim=(0, 101),
            aspect="equal",
            xlabel="probability of the best class, %",
            ylabel="%",
            title=f"Reliability (error {error:.1f} %, by chance {chance:.1f} %)",
        )
        axes.set_anchor("N")
        said = ["right, with its 95 % interval", "as it should be", "part of the records"]
        axes.legend([points, line, parts], said, loc="upper left", bbox_to_anchor=(-0.02, -0.14))

    return Panel(draw=draw, width=4.8, height=6.0)
