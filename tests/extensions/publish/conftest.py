"""A working folder with heads, their ledger and released figures, made once."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpfc_cli as dpfc
from dpfc_cli.structs import encoded
from tests.heads.test_hub import hub as hub
from tests.support import blobs, feature_set

CLASSES = ("flu", "cold", "rare")
WHO, WHY = "N. Officer", "figure 3 of the study"


@dataclass(frozen=True)
class Ward:
    """first, second: heads of one set, the second under a cap. sampled: of Poisson samples. plain: without noise.
    released: figures of the second one.
    """

    folder: Path
    first: Path
    second: Path
    sampled: Path
    plain: Path
    released: Path


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """The folder is the working folder of the tests of the module."""
    folder = tmp_path_factory.mktemp("ward")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for variable in ("DPFC_FEATURES", "DPFC_HEADS"):
            patch.delenv(variable, raising=False)
        for name, seed in (("clinic", 1), ("other", 2)):
            x, y = blobs(750, 8, 3, seed=seed, apart=2.5)
            np.savez(f"{name}.npz", train_x=x[:600], train_y=y[:600], test_x=x[600:], test_y=y[600:])
            classes = CLASSES if name == "clinic" else ("a", "b", "c")
            place = Path("features", name)
            feature_set(Path(f"{name}.npz"), place, classes=classes, labels_per_record=1, population=name)
        features, other = dpfc.open_features("clinic"), dpfc.open_features("other")
        first = dpfc.train(features, epsilon=1.0, method="dp-ls", out="heads/first.safetensors", by=WHO, purpose=WHY)
        dpfc.set_cap(features, 6.0, delta=1e-5, by="the board", note="section 4")
        second = dpfc.train(features, epsilon=2.0, method="dp-ls", out="heads/second.safetensors", by=WHO)
        found = dpfc.evaluate_privately(second.head, features, epsilon=2.0, by=WHO)
        Path("released.json").write_text(json.dumps({"figures": encoded(found.figures), "sha256": found.sha256}))
        given: dict[str, Any] = {"method": "dp-adam", "steps": 4, "sampling_rate": 0.3}
        sampled = dpfc.train(other, noise_multiplier=8.0, out="heads/sampled.safetensors", **given)
        plain = dpfc.train(other, non_private=True, method="dp-ls", out="heads/plain.nonprivate.safetensors")
        yield Ward(folder, first.path, second.path, sampled.path, plain.path, Path("released.json"))
