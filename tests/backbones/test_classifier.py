"""The classifier that a backbone was trained with: its rows over the feature, from every kind of checkpoint."""

from pathlib import Path

import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import Wanted, hub
from dpfc_cli.files import sha256_of
from tests.backbones.tiny import build, random_weights, references, write
from tests.support import refuses

REFERENCES = references()


def weights_of(name: str, **others: np.ndarray | None) -> dict[str, np.ndarray]:
    """The tensors of a case. others: tensors that are added or, if they are None, left out."""
    found: dict[str, np.ndarray | None] = {**random_weights(REFERENCES[name]["shapes"]), **others}
    return {key: array for key, array in found.items() if array is not None}


# The table does not say the width of this model, so a tiny tower is one.
def classifier(file: Path, pool: str | None = None, expected: str | None = None) -> backbones.Classifier:
    return backbones.classifier(Wanted(name="vit-g14", pool=pool, weights=str(file), expected=expected))


@pytest.mark.parametrize(
    ("name", "tensor", "pool"),
    [
        ("timm-vit", "head.weight", "cls"),
        ("timm-vit-reg-scale", "head.weight", "cls"),
        ("timm-vit-gap", "head.weight", "mean"),
        ("timm-siglip", "head.weight", "map"),
        ("transformers-4-vit-classifier", "classifier.weight", "cls"),
        ("transformers-5-vit-classifier", "classifier.weight", "cls"),
        ("big-vision", "params/head/kernel", "cls"),
        ("augreg", "head/kernel", "cls"),
        ("augreg-training", "opt/target/head/kernel", "cls"),
    ],
)
def test_a_row_is_a_class_over_the_feature_that_the_classifier_was_trained_on(
    tmp_path: Path, name: str, tensor: str, pool: str
) -> None:
    case = REFERENCES[name]
    whole = {key: array for key, array in weights_of(name).items() if "pre_logits" not in key}
    file = write(whole, tmp_path, case["kind"], case["config"])
    found = classifier(file)
    stored = whole[tensor]
    assert np.array_equal(found.rows, stored if case["kind"] == "safetensors" else stored.T)
    assert (found.pool, found.id, found.sha256) == (pool, file.name, sha256_of(file))
    backbone = build(file)
    assert (found.rows.shape, found.pool) == ((3, backbone.dim), backbone.describe()["pooling"])
    for other in {"cls", "mean", "map"} - {pool}:
        with refuses("conflict", parameter="pool"):
            classifier(file, other)


def test_the_distillation_token_has_a_classifier_of_its_own_which_is_not_taken(tmp_path: Path) -> None:
    own, other = np.ones((3, 32), np.float32), np.zeros((3, 32), np.float32)
    whole = {f"deit.{key}": array for key, array in weights_of("transformers-4-deit-distilled").items()}
    file = write(whole | {"cls_classifier.weight": own, "distillation_classifier.weight": other}, tmp_path)
    assert np.array_equal(classifier(file).rows, own)


@pytest.mark.parametrize("pool", [None, "cls", "mean"])
@pytest.mark.parametrize("name", ["transformers-4-dinov2", "transformers-4-dinov2-reg"])
def test_the_classifier_of_dinov2_has_a_part_for_the_class_token_and_one_for_the_mean(
    tmp_path: Path, name: str, pool: str | None
) -> None:
    prefix = "dinov2_with_registers." if name.endswith("reg") else "dinov2."
    rows = np.arange(5 * 64, dtype=np.float32).reshape(5, 64)
    whole = {prefix + key: array for key, array in weights_of(name).items()}
    found = classifier(write(whole | {"classifier.weight": rows}, tmp_path), pool)
    assert found.pool == (pool or "cls")
    assert np.array_equal(found.rows, rows[:, 32:] if pool == "mean" else rows[:, :32])
    with refuses("conflict", parameter="pool"):
        classifier(tmp_path / "model.safetensors", "map")


def test_the_labels_are_those_of_the_config(tmp_path: Path) -> None:
    whole = weights_of("transformers-4-vit-classifier")
    config = {"id2label": {"1": "cat", "0": "dog, hound", "2": "red fox"}}
    assert classifier(write(whole, tmp_path, config=config)).labels == ("dog, hound", "cat", "red fox")
    for other in ({}, {"id2label": {"0": "dog"}}, {"id2label": ["dog", "cat", "fox"]}):
        assert classifier(write(whole, tmp_path, config=other)).labels is None


NONE: list[tuple[str, dict[str, np.ndarray | None], str]] = [
    ("timm-vit", {"head.weight": None}, "missing"),
    ("openai-clip", {}, "missing"),
    ("transformers-4-clip", {"classifier.weight": np.ones((3, 32))}, "missing"),
    ("big-vision-siglip", {}, "missing"),
    ("timm-vit", {"pre_logits.fc.weight": np.ones((32, 32))}, "unsupported"),
    ("augreg", {}, "unsupported"),
    ("timm-vit", {"head.weight": np.zeros((3, 32))}, "damaged"),
    ("timm-vit", {"head.weight": np.full((3, 32), np.nan)}, "damaged"),
    ("timm-vit", {"head.weight": np.ones((3, 64))}, "damaged"),
    ("timm-vit", {"head.weight": np.ones(32)}, "damaged"),
    ("timm-vit", {"head.weight": np.ones(())}, "damaged"),
    ("timm-vit", {"strange.weight": np.ones(3)}, "unsupported"),
]


def test_what_is_no_classifier_of_the_feature_is_refused(tmp_path: Path) -> None:
    for name, others, code in NONE:
        file = write(weights_of(name, **others), tmp_path, REFERENCES[name]["kind"])
        with refuses(code):
            classifier(file)


def test_weights_with_another_digest_than_expected_are_refused(tmp_path: Path) -> None:
    file = write(weights_of("timm-vit"), tmp_path)
    assert classifier(file, expected=sha256_of(file)).sha256 == sha256_of(file)
    with refuses("conflict", parameter="weights"):
        classifier(file, expected="0" * 64)


def test_weights_of_another_size_than_the_model_are_refused(tmp_path: Path) -> None:
    file = write(weights_of("timm-vit"), tmp_path)
    with refuses("conflict", match=r"model\.safetensors.* 32, not 192", parameter="weights"):
        backbones.classifier(Wanted(name="vit-ti16", weights=str(file)))


@pytest.mark.parametrize("name", ["clip-b16", "siglip-so400m14"])
def test_a_model_that_was_trained_on_captions_has_none_and_nothing_is_fetched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(hub, "locate")
    with refuses("missing", parameter="model"):
        backbones.classifier(Wanted(name=name))
