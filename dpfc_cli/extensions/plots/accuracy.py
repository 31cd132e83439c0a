"""Accuracy against ε, on a logarithmic axis: several series with error bars or bands, and levels without an ε."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, Locator, LogLocator, NullLocator

from dpfc_cli.extensions.plots.canvas import COLOURS, FAINT, MARKERS, Panel
from dpfc_cli.report.picture import Curves, Level, Series
from dpfc_cli.show.document import shortened

APART = 0.06
"""How far the error bars of all series at the same ε are spread, in decades."""
_LONGEST_LABEL = 64
_NARROWEST_TICKS = 0.055
"""As a part of the axis."""


def panel(curves: Curves) -> Panel:
    series, levels = curves.series, curves.levels
    labels = [shortened(label, _LONGEST_LABEL) for label in [*(s.label for s in series), *(v.label for v in levels)]]

    def draw(axes: Axes) -> None:
        epsilons = sorted({float(epsilon) for each in series for epsilon in each.epsilons})
        _epsilon_axis(axes, epsilons)
        handles = [_draw_series(axes, each, i, _shift(series, i)) for i, each in enumerate(series)]
        handles += [_draw_level(axes, each, i) for i, each in enumerate(levels)]
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 100.0 + (high - low) * 0.02))
        axes.set(ylabel=f"{curves.measure}, %")
        if any(labels):
            legend = axes.legend(handles, ["."] * len(labels), loc="upper left", bbox_to_anchor=(-0.02, -0.16))
            # A label may begin with '_', which matplotlib would leave out.
            for text, label in zip(legend.get_texts(), labels, strict=True):
                text.set_text(label)

    return Panel(draw=draw, width=6.4, height=4.2 + 0.19 * len(labels))


def _epsilon_axis(axes: Axes, epsilons: Sequence[float]) -> None:
    axes.set_xscale("log")
    low, high = (epsilons[0], epsilons[-1]) if epsilons else (0.1, 10.0)
    decades = math.log10(high / low)
    margin = 10 ** max(0.06 * decades, 0.15 if decades < 1 else 0.0)
    axes.set_xlim(low / margin, high * margin)
    # The values themselves, if there is room for their labels.
    apart = _NARROWEST_TICKS * (decades + 2 * math.log10(margin))
    locator: Locator = LogLocator(subs=(1.0,) if decades > 4 else (1.0, 2.0, 5.0))
    if epsilons and all(math.log10(b / a) >= apart for a, b in pairwise(epsilons)):
        locator = FixedLocator(epsilons)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("ε (smaller protects more)")


def _shift(series: Sequence[Series], i: int) -> float:
    """By which factor the points of a series stand beside their ε, so that error bars at one ε can be told apart."""
    barred = [j for j, each in enumerate(series) if each.low is not None and not each.band]
    if i not in barred or len({e for j in barred for e in series[j].epsilons}) == sum(
        len(series[j].epsilons) for j in barred
    ):
        return 1.0
    return float(10 ** (APART * (barred.index(i) / (len(barred) - 1) - 0.5)))


def _draw_series(axes: Axes, series: Series, i: int, shift: float) -> Any:
    order = sorted(range(len(series.epsilons)), key=lambda j: series.epsilons[j])
    x = [series.epsilons[j] * shift for j in order]
    y = [100 * series.values[j] for j in order]
    look: dict[str, Any] = {
        "color": COLOURS[i % len(COLOURS)],
        # Where a colour is used a second time, it has another marker.
        "marker": MARKERS[(i + i // len(COLOURS)) % len(MARKERS)],
        "linestyle": "--" if series.dashed else "-",
    }
    if series.low is None or series.high is None:
        return axes.plot(x, y, **look)[0]
    low, high = ([100 * ends[j] for j in order] for ends in (series.low, series.high))
    if series.band:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.18, linewidth=0)
        return axes.plot(x, y, **look)[0]
    errors = [
        [max(value - end, 0.0) for value, end in zip(y, low, strict=True)],
        [max(end - value, 0.0) for value, end in zip(y, high, strict=True)],
    ]
    return axes.errorbar(x, y, yerr=errors, capsize=3, elinewidth=1.2, **look)


def _draw_level(axes: Axes, level: Level, i: int) -> Any:
    style = (":", "-.", "--")[i % 3]
    if level.low is not None and level.high is not None:
        axes.axhspan(100 * level.low, 100 * level.high, color=FAINT, alpha=0.12, linewidth=0)
    return axes.axhline(100 * level.value, color=FAINT, linestyle=style, linewidth=1.3)
