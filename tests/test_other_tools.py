"""What the pages say of Opacus, MLflow and Weights & Biases holds, with the libraries themselves if they are there."""

import re
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.features.reader import FeatureSet
from tests.support import blobs, feature_set

DOCS = Path(__file__).parents[1] / "docs"
N, D, M = 3000, 5, 3
SIGMA, CLIP, RATE, STEPS = 0.25, 1.0, 0.5, 6
"""Of so many records the noise is small."""


@pytest.fixture
def features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureSet:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPFC_FEATURES", raising=False)
    x, y = blobs(N, D, M)
    np.savez(tmp_path / "a.npz", train_x=x, train_y=y, test_x=x[:99], test_y=y[:99])
    return feature_set(tmp_path / "a.npz", tmp_path / "features" / "digits-scattering", classes=M)


def plain(x: np.ndarray, y: np.ndarray, _: str) -> np.ndarray:
    """Its rule in NumPy, without noise: the scores of the records."""
    x, theta = np.c_[x, np.ones(N)].astype(np.float64), np.zeros((D + 1, M))
    for _step in range(STEPS):
        likely = np.exp(x @ theta)
        residuals = likely / likely.sum(axis=1, keepdims=True) - np.eye(M)[y]
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(residuals, axis=1)
        theta -= RATE * x.T @ (residuals * np.minimum(1, CLIP / norms)[:, None]) / N
    return np.asarray(x @ theta)


def opacus(x: np.ndarray, y: np.ndarray, method: str) -> np.ndarray:
    torch, library = (pytest.importorskip(name, reason=f"{name} is not installed") for name in ("torch", "opacus"))
    torch.manual_seed(0)
    layer = torch.nn.Linear(D, M)
    for each in layer.parameters():
        torch.nn.init.zeros_(each)
    sgd = partial(torch.optim.SGD, momentum=0.9 if method == "dp-momentum" else 0)
    optimizer = (torch.optim.Adam if method == "dp-adam" else sgd)(layer.parameters(), lr=RATE)
    records = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y).long())
    layer, optimizer, batches = library.PrivacyEngine().make_private(
        module=layer,
        optimizer=optimizer,
        data_loader=torch.utils.data.DataLoader(records, batch_size=N),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        poisson_sampling=False,
    )
    for _ in range(STEPS):
        for batch, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(layer(batch), labels).backward()
            optimizer.step()
    return np.asarray(layer(torch.from_numpy(x)).detach().numpy())


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize(
    ("rival", "method"), [(plain, "dp-sgd"), *((opacus, f"dp-{name}") for name in ("sgd", "momentum", "adam"))]
)
def test_a_training_with_the_options_of_the_page_is_that_of_opacus(
    features: FeatureSet, rival: Any, method: Any
) -> None:
    x, y = features.arrays("train")
    longest = float(np.linalg.norm(x, axis=1).max()) + 1
    trained = dpfc.train(
        features,
        noise_multiplier=SIGMA,
        seed=1,
        method=method,
        loss="softmax",
        steps=STEPS,
        feature_clip=longest,
        gradient_clip=CLIP / longest,
        learning_rate=RATE * (longest if method == "dp-adam" else longest**2),
        bias_feature=1 / longest,
    )
    ours, theirs = trained.head.scores(x), rival(x, y.ravel(), method)
    assert np.abs(theirs).max() > 2
    np.testing.assert_allclose(ours, theirs, atol=0.02 if method == "dp-sgd" else 0.1)


SETTINGS = [(1.1, 0.02, 500, 1e-5), (3.0, 0.1, 100, 1e-5), (10.0, 1.0, 100, 1e-6)]


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), SETTINGS)
def test_epsilon_is_that_of_opacus_and_below_that_of_renyi_accounting(
    sigma: float, rate: float, steps: int, delta: float
) -> None:
    accountants = pytest.importorskip("opacus", reason="opacus is not installed").accountants
    found = {}
    for kind in ("prv", "rdp"):
        accountant = accountants.create_accountant(kind)
        accountant.history = [(sigma, rate, steps)]
        found[kind] = accountant.get_epsilon(delta=delta)
    own = dpfc.epsilon_of(noise_multiplier=sigma, releases=steps, delta=delta, sampling_rate=rate)
    # Its PRV figure is an upper bound, 0.01 above its estimate.
    assert found["prv"] - 0.015 < own < found["prv"] < found["rdp"]


def test_the_page_on_opacus_says_what_is_computed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "from-opacus.md").read_text("utf-8")
    (code,), (said,) = (re.findall(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S) for kind in ("python", "text"))
    exec(code)
    assert capsys.readouterr().out == said


class Tracked(ModuleType):
    """Stands for a library that tracks runs, and takes what it is given."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.given: dict[str, object] = {}
        self.log_params = self.log_metrics = self.log = self.given.update
        self.config = SimpleNamespace(update=self.given.update)
        self.start_run = self.init = lambda **_: self

    def __enter__(self) -> "Tracked":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def log_artifact(self, path: str, type: str = "") -> None:
        self.given["file"] = path


def recipe(library: str) -> str:
    page = (DOCS / "pipelines.md").read_text("utf-8")
    return str(re.findall(rf"^```python\n(import {library}\n.*?)^```$", page, re.M | re.S)[0])


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_tracker_is_told_what_a_training_cost(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    stand_in = Tracked(library)
    monkeypatch.setitem(sys.modules, library, stand_in)
    exec(recipe(library))
    told = stand_in.given
    assert (told["epsilon"], told["delta"], told["spent"]) == (1.0, 1e-5, pytest.approx(1.0))
    assert (told["method"], told["unit"], told["features"]) == ("dp-whitened", "record", "digits-scattering")
    assert told["accuracy"] > 0.9  # type: ignore[operator]
    assert Path(str(told["file"])).is_file()


@pytest.mark.filterwarnings("ignore::Warning")
@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_tracker_itself_takes_it(features: FeatureSet, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{Path.cwd()}/runs")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    exec(recipe(library))
    kept = [path for path in Path.cwd().rglob("*") if path.is_file() and {"runs", "wandb"} & {*path.parts}]
    assert kept
