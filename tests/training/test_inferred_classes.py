"""Names of classes that nobody stated are published by a private head only if the user insists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpfc_cli.errors import GUARDED, UserError
from dpfc_cli.extraction.importing import import_features
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.planning.forecast import forecast
from dpfc_cli.training.train import train
from tests.support import blobs
from tests.training.requests import charges
from tests.training.starts import Quiet

NAMES = ("MUELLER, P0001", "OKAFOR, P0002", "SILVA, P0003", "WANG, P0004", "ZHAO, P0005")


@pytest.fixture
def inferred(tmp_path: Path, heads: None) -> FeatureSet:
    """120 records whose labels are names of patients."""
    x, y = blobs(120, 5, len(NAMES))
    np.savez(tmp_path / "raw.npz", train_x=x, train_y=np.array(NAMES)[y])
    return import_features(tmp_path / "raw.npz", tmp_path / "set").features


def trained(features: FeatureSet, **options: Any) -> Any:
    return train(features, method="dp-ls", observer=Quiet(), **options)


@pytest.mark.parametrize("privacy", [{"epsilon": 1.0}, {"noise_multiplier": 9.0}])
def test_names_that_nobody_stated_are_published_by_no_private_training(
    inferred: FeatureSet, tmp_path: Path, privacy: dict[str, float]
) -> None:
    with pytest.raises(UserError) as refused:
        trained(inferred, **privacy)
    assert (refused.value.code, refused.value.fields["parameter"]) == ("conflict", "infer_classes")
    said = str(refused.value)
    # The holder sees what would have been published, and both ways out.
    assert NAMES[0] in said
    assert NAMES[-1] not in said
    assert GUARDED in said
    assert "with classes" in said
    assert "infer_classes" in refused.value.text(lambda name: name)[1]
    # Nothing was charged, and nothing written.
    assert charges(inferred) == ()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_whoever_insists_publishes_them(inferred: FeatureSet) -> None:
    made = trained(inferred, epsilon=1.0, infer_classes=True)
    assert made.head.classes == NAMES
    assert "inferred from the private records" in made.head.statement()["public facts"]


def test_what_claims_nothing_is_not_refused(inferred: FeatureSet) -> None:
    assert trained(inferred, non_private=True).head.card["claim"] == "non-private"
    assert trained(inferred, epsilon=1.0, seed=3).head.card["claim"] == "research"
    forecast(records=inferred.split("train").n, classes=len(NAMES), dimensions=5)


@pytest.mark.parametrize("stated", ["names", "file", "number"])
def test_the_same_import_with_classes_is_trained_on_and_computes_nothing_anew(
    inferred: FeatureSet, tmp_path: Path, stated: str
) -> None:
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    source = tmp_path / "raw.npz"
    if stated == "number":
        x, y = blobs(120, 5, len(NAMES))
        source = tmp_path / "numbers.npz"
        np.savez(source, train_x=x, train_y=y)
        import_features(source, tmp_path / "numbers")
    out = tmp_path / "numbers" if stated == "number" else inferred.folder
    classes: Any = {"names": NAMES, "file": tmp_path / "names.txt", "number": len(NAMES)}[stated]
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    again = import_features(source, out, classes=classes)
    assert not again.made
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("*.h5")} == before
    assert trained(again.features, epsilon=1.0).head.card["facts"]["origin"] == "asserted"
