"""Pictures: the same numbers give the same bytes, names may be anything, and each number stands where it belongs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from dpfc_cli import outputs
from dpfc_cli.errors import UserError, printable
from dpfc_cli.evaluation.exact import ClassFigures, Confused, Evaluation
from dpfc_cli.evaluation.statistics import Bin, Calibration
from dpfc_cli.extensions.plots import confusion
from dpfc_cli.extensions.plots.drawing import drawn, pdf, png, svg
from dpfc_cli.report.picture import Curves, Level, Picture, Series

NASTY = ["$x_1$ & <b>", "_hidden", 'a "quote"\x1b[31m', "肺炎", "two\nlines", "\ud800"]
BINS = (
    Bin(low=0, high=0.5, n=0, probability=None, right=None, interval=None),
    Bin(low=0.5, high=1, n=1, probability=0.8, right=0.7, interval=(0.6, 0.9)),
)


def curves(title: str = "A figure") -> Picture:
    series = [Series("dp-fc", (0.5, 2), (0.6, 0.8), (0.5, 0.7), (0.7, 0.9)), Series("b", (1,), (0.7,))]
    return Picture(title, Curves(series, [Level("without noise", 0.9)]))


def evaluation(names: Sequence[str], cells: Sequence[tuple[int, int, int]]) -> Picture:
    """Of (label, best class, records)."""
    found = Evaluation(
        split="test",
        n=1,
        top1=0.5,
        interval=(0.0, 1.0),
        top5=None,
        top5_interval=None,
        mean_average_precision=None,
        per_class=tuple(ClassFigures(name=n, n=1, top1=1, interval=(0, 1), average_precision=None) for n in names),
        private_split=False,
        warnings=(),
        confusions=tuple(Confused(names[label], names[best], n) for label, best, n in cells),
        calibration=Calibration(probability=0.5, error=0.1, by_chance=0.1, bins=BINS),
    )
    return Picture("", found)


@pytest.mark.parametrize("made", [svg, png, pdf])
def test_the_same_numbers_give_the_same_bytes(made: Any) -> None:
    assert made(curves()) == made(curves())


def test_no_setting_of_the_user_counts_and_none_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = svg(curves())
    # Who uses pyplot changes the state of the whole program.
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": None, "axes.linewidth": 5}):
        before = mpl.rcParams.copy()
        assert svg(curves()) == expected
        assert mpl.rcParams.copy() == before


def test_names_may_be_anything_and_text_stays_text() -> None:
    series = [Series(name, (i + 1,), (0.5,)) for i, name in enumerate(NASTY)]
    shown = ElementTree.fromstring(svg(Picture(NASTY[0], Curves(series)))).iter("{http://www.w3.org/2000/svg}text")
    found = ["".join(each.itertext()) for each in shown]
    for name in NASTY:
        for line in name.split("\n"):
            assert printable(line) in found, found
    assert found.count(NASTY[0]) == 2


def test_without_matplotlib_the_extra_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("dpfc_cli.extensions.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError) as caught:
        outputs.writer("picture", Path("a.svg"), "plot")
    assert caught.value.fields == {"package": "matplotlib", "extra": "plot"}


# Panels


def axes_of(picture: Picture, panel: int = 0) -> Any:
    return drawn(picture).axes[panel]


def test_points_stand_at_their_epsilon_in_percent_and_in_order() -> None:
    axes = axes_of(Picture("", Curves([Series("a", (8, 0.5), (0.9, 0.6), (0.8, 0.5), (0.95, 0.7))])))
    line = axes.lines[0]
    assert line.get_xdata().tolist() == pytest.approx([0.5, 8])
    assert line.get_ydata().tolist() == pytest.approx([60, 90])
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.5", "8"]
    (bars,) = [each.get_segments() for each in axes.collections]
    assert [segment[:, 1].tolist() for segment in bars] == [pytest.approx([50, 70]), pytest.approx([80, 95])]


@pytest.mark.parametrize(("count", "epsilons"), [(19, (0.1, 1.0, 8.0)), (19, (1.0,)), (2, (0.01, 8.0))])
def test_many_series_stand_at_their_epsilon_inside_the_axes_and_no_two_look_the_same(
    count: int, epsilons: tuple[float, ...]
) -> None:
    ones = [0.5] * len(epsilons)
    axes = axes_of(Picture("", Curves([Series(f"{i}", epsilons, ones, ones, ones) for i in range(count)])))
    low, high = axes.get_xlim()
    lines = [each.lines[0] for each in axes.containers if isinstance(each, ErrorbarContainer)]
    assert len(lines) == len({(line.get_color(), line.get_marker()) for line in lines}) == count
    for line in lines:
        places = np.asarray(line.get_xdata(), dtype=float)
        assert np.all((low < places) & (places < high))
        assert np.all(np.abs(np.log10(places / epsilons)) < 0.04)


def test_a_matrix_has_its_counts_in_their_cells() -> None:
    axes = axes_of(evaluation(["flu", "cold"], [(0, 0, 7), (0, 1, 2), (1, 1, 5)]))
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0.5, 0.5): "7", (1.5, 0.5): "2", (1.5, 1.5): "5"}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["flu", "cold"]


def test_names_that_would_look_alike_are_numbered() -> None:
    names = [f"{'pneumonia ' * 4}{i}{' of the left lung' * 2}" for i in range(3)]
    axes = axes_of(evaluation(names, [(0, 0, 1)]))
    assert len({text.get_text() for text in axes.get_yticklabels()}) == 3


def test_many_classes_show_the_largest_confusions() -> None:
    names = [f"class {i}" for i in range(1000)]
    cells = [(i, i, 50) for i in range(1000)] + [(3, 4, 9), (4, 3, 2)] + [(i, 0, 1) for i in range(1, 40)]
    axes = axes_of(evaluation(names, cells))
    told = [text.get_text() for text in axes.get_yticklabels()]
    assert len(told) == confusion.MOST_BARS
    assert told[:2] == ["class 3 → class 4", "class 4 → class 3"]
    assert axes.patches[0].get_width() == 9
    assert "none" in [text.get_text() for text in axes_of(evaluation(names, [(0, 0, 1)])).texts]


def test_a_reliability_diagram_shows_the_bins_that_have_records() -> None:
    axes = axes_of(evaluation(["a", "b"], [(0, 0, 1)]), 1)
    points = axes.containers[1][0]
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([80], [70])
    assert [bar.get_height() for bar in axes.containers[0]] == [0, 100]
