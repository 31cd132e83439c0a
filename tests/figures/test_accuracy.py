"""Accuracy against ε: what stands where, and what is told apart."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer

from dpfc_cli.figures import accuracy, canvas


def drawn(count: int, epsilons: tuple[float, ...]) -> Axes:
    """So many series with error bars at the same ε."""
    ones = [0.5] * len(epsilons)
    series = [accuracy.Series(f"{i}", epsilons, ones, ones, ones) for i in range(count)]
    [axes] = canvas.draw(accuracy.panel(series), title="").figure.axes
    return axes


def test_many_series_stand_at_their_epsilon_inside_the_axes_and_no_two_look_the_same() -> None:
    for count, epsilons in ((19, (0.1, 1.0, 8.0)), (19, (1.0,)), (2, (0.01, 8.0))):
        axes = drawn(count, epsilons)
        low, high = axes.get_xlim()
        lines = [each.lines[0] for each in axes.containers if isinstance(each, ErrorbarContainer)]
        assert len(lines) == len({(line.get_color(), line.get_marker()) for line in lines}) == count
        for line in lines:
            places = np.asarray(line.get_xdata(), dtype=float)
            assert np.all((low < places) & (places < high))
            assert np.all(np.abs(np.log10(places / epsilons)) < 0.04)
