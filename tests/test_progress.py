"""Progress from Python: a bar where somebody looks, and nothing elsewhere."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli import progress
from tests.support import blobs, feature_set


class Stream(io.StringIO):
    """What stands for standard error."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def watched(patch: pytest.MonkeyPatch, terminal: bool = True) -> Stream:
    """What standard error is from now on, where progress is wanted at once."""
    # Commands that were typed in this process before may have wanted none.
    patch.setattr(progress, "wanted", True)
    patch.setattr(progress, "DELAY", 0)
    stream = Stream(terminal)
    patch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpfc.FeatureSet:
    monkeypatch.chdir(tmp_path)
    x, y = blobs(60, 4, 2)
    np.savez("blobs.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    return feature_set("blobs.npz", classes=2)


@pytest.mark.parametrize("where", ["terminal", "notebook", "pipe"])
def test_what_takes_longer_shows_a_bar_in_a_terminal_and_in_a_notebook(
    features: dpfc.FeatureSet, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "notebook":
        kernel = ModuleType("IPython")
        vars(kernel)["get_ipython"] = lambda: SimpleNamespace(kernel=object(), config={})
        monkeypatch.setitem(sys.modules, "IPython", kernel)
    stream = watched(monkeypatch, where == "terminal")
    head = dpfc.train(features, epsilon=8.0, method="dp-ls").head
    dpfc.evaluate(head, features)
    for stage in ("Training", "Evaluating"):
        assert (stage in stream.getvalue()) is (where != "pipe")
    # The cursor is there again, and whoever takes the progress, or wants none, sees no bar.
    assert where == "pipe" or stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")
    before, told = stream.getvalue(), list[str]()
    dpfc.evaluate(head, features, progress=None)
    dpfc.evaluate(head, features, progress=lambda stage, *_: told.append(stage))
    assert (stream.getvalue(), set(told)) == (before, {"Evaluating", "Ranking the records"})


def test_what_an_earlier_run_has_done_does_not_shorten_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = watched(monkeypatch)
    now = 0
    monkeypatch.setattr(progress, "monotonic", lambda: float(now))
    for now in range(6):
        progress.show("Extracting", 20_000 + 1000 * now, 80_000)
    progress.close()
    assert "0:00:55" in stream.getvalue()


def test_a_stage_gives_the_terminal_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = watched(monkeypatch)
    progress.show("a\x1b[2Jb [red]", 1, 2)
    progress.close()
    assert "a\\x1b[2Jb [red]" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()
