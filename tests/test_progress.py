"""Progress from Python: a bar where somebody looks, and nothing elsewhere."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli import progress
from tests.support import blobs


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
    # Commands that were typed in this process before have bars of their own.
    monkeypatch.setattr(progress, "wanted", True)
    x, y = blobs(60, 4, 2)
    np.savez("blobs.npz", train_x=x, train_y=y, test_x=x, test_y=y)
    return dpfc.import_features("blobs.npz", classes=2).features


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
