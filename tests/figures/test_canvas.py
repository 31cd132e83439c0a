"""A drawing: the same numbers give the same bytes, a file is whole or not there, and names may be anything."""

import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from dpfc_cli import errors
from dpfc_cli.errors import UserError, printable
from dpfc_cli.figures import accuracy, canvas, confusion, reliability
from tests.support import refuses

NASTY = ["$x_1$ & <b>", "_hidden", 'a "quote"\x1b[31m', "肺炎", "two\nlines", "\ud800"]


def drawing(title: str = "A figure", label: str = "dp-fc") -> canvas.Drawing:
    series = [accuracy.Series(label, (0.5, 2), (0.6, 0.8), (0.5, 0.7), (0.7, 0.9)), accuracy.Series("b", (1,), (0.7,))]
    return canvas.draw(accuracy.panel(series), title=title)


def text_in(svg: str) -> list[str]:
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(each.itertext()) for each in found]


@pytest.mark.parametrize("kind", canvas.KINDS)
def test_the_same_numbers_give_the_same_bytes(kind: str) -> None:
    one = drawing()
    assert one.bytes_of(kind) == drawing().bytes_of(kind)
    assert kind != "svg" or one.bytes_of(kind) == one.bytes_of(kind)


def test_no_setting_of_the_user_counts_and_none_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = drawing().bytes_of("svg")
    # Who uses pyplot changes the state of the whole program.
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with mpl.rc_context({"font.size": 30, "lines.linewidth": 9, "svg.hashsalt": None, "axes.linewidth": 5}):
        before = mpl.rcParams.copy()
        assert drawing().bytes_of("svg") == expected
        assert mpl.rcParams.copy() == before


def test_names_may_be_anything_and_text_stays_text() -> None:
    panel = accuracy.panel([accuracy.Series(name, (i + 1,), (0.5,)) for i, name in enumerate(NASTY)])
    found = text_in(canvas.draw(panel, title=NASTY[0]).bytes_of("svg").decode())
    for name in NASTY:
        for line in name.split("\n"):
            assert printable(line) in found, found
    assert found.count(NASTY[0]) == 2


def test_a_file_is_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figure.SVG"
    drawing().save(path)
    whole = path.read_bytes()
    assert whole == drawing().bytes_of("svg")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with refuses("unwritable"):
        drawing("Another").save(path)
    assert os.listdir(tmp_path) == ["figure.SVG"]
    assert path.read_bytes() == whole


def test_what_would_fail_later_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canvas.check(tmp_path / "a.pdf")
    for wrong, code in (("a.jpg", "bad-value"), ("svg", "bad-value"), ("no/a.svg", "missing")):
        with refuses(code, parameter="plot"):
            canvas.check(tmp_path / wrong)
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        canvas.check(tmp_path / "a.svg")
    assert caught.value.fields == {"package": "matplotlib", "extra": "plot"}


# Panels


def axes_of(panel: canvas.Panel) -> Any:
    return canvas.draw(panel, title="").figure.axes[0]


def test_points_stand_at_their_epsilon_in_percent_and_in_order() -> None:
    axes = axes_of(accuracy.panel([accuracy.Series("a", (8, 0.5), (0.9, 0.6), (0.8, 0.5), (0.95, 0.7))]))
    line = axes.lines[0]
    assert line.get_xdata().tolist() == pytest.approx([0.5, 8])
    assert line.get_ydata().tolist() == pytest.approx([60, 90])
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.5", "8"]
    (bars,) = [each.get_segments() for each in axes.collections]
    assert [segment[:, 1].tolist() for segment in bars] == [pytest.approx([50, 70]), pytest.approx([80, 95])]


def test_a_matrix_has_its_counts_in_their_cells() -> None:
    axes = axes_of(confusion.panel(["flu", "cold"], [(0, 0, 7), (0, 1, 2), (1, 1, 5)]))
    cells = {text.get_position(): text.get_text() for text in axes.texts}
    assert cells == {(0.5, 0.5): "7", (1.5, 0.5): "2", (1.5, 1.5): "5"}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["flu", "cold"]


def test_names_that_would_look_alike_are_numbered() -> None:
    names = [f"{'pneumonia ' * 4}{i}{' of the left lung' * 2}" for i in range(3)]
    axes = axes_of(confusion.panel(names, [(0, 0, 1)]))
    assert len({text.get_text() for text in axes.get_yticklabels()}) == 3


def test_many_classes_show_the_largest_confusions() -> None:
    names = [f"class {i}" for i in range(1000)]
    cells = [(i, i, 50) for i in range(1000)] + [(3, 4, 9), (4, 3, 2)] + [(i, 0, 1) for i in range(1, 40)]
    axes = axes_of(confusion.panel(names, cells))
    told = [text.get_text() for text in axes.get_yticklabels()]
    assert len(told) == confusion.MOST_BARS
    assert told[:2] == ["class 3 → class 4", "class 4 → class 3"]
    assert axes.patches[0].get_width() == 9
    assert "none" in [text.get_text() for text in axes_of(confusion.panel(names, [(0, 0, 1)])).texts]


def test_a_reliability_diagram_shows_the_bins_that_have_records() -> None:
    bins = [
        reliability.Bin(low=0, high=0.5, n=0, probability=None, right=None, interval=None),
        reliability.Bin(low=0.5, high=1, n=1, probability=0.8, right=0.7, interval=(0.6, 0.9)),
    ]
    axes = axes_of(reliability.panel(bins))
    points = axes.containers[1][0]
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([80], [70])
    assert [bar.get_height() for bar in axes.containers[0]] == [0, 100]
