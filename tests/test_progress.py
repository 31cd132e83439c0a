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


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dpfc.FeatureSet:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(progress, "DELAY", 0)
    # Commands that were typed in this process before have lines, too.
    monkeypatch.setattr(progress, "wanted", True)
    monkeypatch.setattr(progress, "say", None)
    x, y = blobs(60, 4, 2)
    np.savez("blobs.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    return feature_set("blobs.npz", classes=2)


@pytest.mark.parametrize("where", ["terminal", "notebook", "pipe"])
def test_what_takes_longer_shows_a_bar_in_a_terminal_and_in_a_notebook(
    features: dpfc.FeatureSet, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "notebook":
        kernel = ModuleType("IPython")
        monkeypatch.setattr(kernel, "get_ipython", lambda: SimpleNamespace(kernel=object(), config={}), raising=False)
        monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setattr(sys, "stderr", stream := Stream(where == "terminal"))
    head = dpfc.train(features, epsilon=8.0, method="dp-ls").head
    dpfc.evaluate(head, features)
    for stage in ("Training", "Evaluating"):
        assert (stage in stream.getvalue()) is (where != "pipe")
    assert progress._bar is None
    # Whoever takes the progress, or wants none, sees no bar.
    before, told = stream.getvalue(), list[str]()
    dpfc.evaluate(head, features, progress=None)
    dpfc.evaluate(head, features, progress=lambda stage, *_: told.append(stage))
    assert (stream.getvalue(), set(told)) == (before, {"Evaluating"})


def test_where_nobody_looks_a_command_says_the_rate_and_the_time_left_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(progress, "wanted", True)
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(sys, "stderr", Stream(False))
    # What an earlier run has done is in no rate.
    for second in range(31):
        now[0] = float(second)
        progress.show("Extracting", 20_000 + 1000 * second, 80_000)
    progress.close()
    assert said[0].startswith("Extracting: 30.0k of 80.0k (1.00k/s, 00:5")
    assert [line.split()[1] for line in said] == ["30.0k", "40.0k", "50.0k"]


def test_a_stage_gives_the_terminal_no_commands(features: dpfc.FeatureSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    progress.show("a\x1b[2Jb", 1, 2)
    progress.close()
    assert "a\\x1b[2Jb" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
