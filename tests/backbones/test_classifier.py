"""The classifier that a backbone was trained with: its rows over the feature."""

from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted
from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.files import sha256_of
from tests.backbones.tiny import kept
from tests.support import refuses

ROWS = np.arange(3 * 192, dtype=np.float32).reshape(3, 192)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    return tmp_path


def test_a_row_is_a_class_over_the_feature_that_the_classifier_was_trained_on(cache: Path) -> None:
    file = kept(MODELS["vit-ti16"], cache, {"head.weight": ROWS, "head.bias": np.ones(3, np.float32)})
    found = backbones.classifier(Wanted(name="vit-ti16", expected=sha256_of(file)))
    assert np.array_equal(found.rows, ROWS)
    assert (found.pool, found.id, found.sha256) == ("cls", MODELS["vit-ti16"].file.id, sha256_of(file))
    with refuses("conflict", parameter="pool"):
        backbones.classifier(Wanted(name="vit-ti16", pool="mean"))
    with refuses("conflict", parameter="weights"):
        backbones.classifier(Wanted(name="vit-ti16", expected="0" * 64))


def test_what_is_no_classifier_of_the_feature_is_refused(cache: Path) -> None:
    for tensors, code in (
        ({"norm.weight": ROWS}, "missing"),
        ({"head.weight": 0 * ROWS}, "damaged"),
        ({"head.weight": np.nan * ROWS}, "damaged"),
        ({"head.weight": ROWS.T.copy()}, "damaged"),
        ({"head.weight": ROWS[0]}, "damaged"),
        ({"head.weight": np.array(1, np.float32)}, "damaged"),
    ):
        kept(MODELS["vit-ti16"], cache, tensors)
        with refuses(code):
            backbones.classifier(Wanted(name="vit-ti16"))


@pytest.mark.parametrize("name", ["clip-b16", "siglip-so400m14", "dinov2-s14"])
def test_a_model_that_was_not_trained_as_a_classifier_has_none_and_nothing_is_fetched(name: str) -> None:
    with refuses("missing", parameter="model"):
        backbones.classifier(Wanted(name=name))
