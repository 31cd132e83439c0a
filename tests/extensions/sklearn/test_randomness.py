"""Every random word of an estimator's fit comes from the system, and is used once."""

from pathlib import Path

import pytest

from dpfc_cli.extensions.sklearn.estimator import PrivateClassifier
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.curator import Unprotected
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.training.calibrate import calibrate
from tests.support import blobs, stream_of
from tests.test_randomness import D, M, N, System, replayed


def test_each_word_of_the_estimators_fit_comes_from_the_system_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = blobs(N, D, M)
    system = System(3, monkeypatch)
    model = PrivateClassifier(classes=M, method="dp-fc", steps=2).fit(x, y)
    made = calibrate(METHODS["dp-fc"], Facts(n=N, m=M, d=D), {"steps": 2}, Privacy(epsilon=1.0))
    solution, _ = replayed(made, Unprotected(stream_of(x, y)), system.handed)
    assert model.head_.weight.tobytes() == solution.weight.astype(model.head_.weight.dtype).tobytes()
