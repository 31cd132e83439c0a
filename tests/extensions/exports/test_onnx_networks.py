"""A backbone and its head in one ONNX graph: from pictures to the scores that the head gives behind the backbone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from dpfc_cli import backbones
from dpfc_cli.extensions.exports import onnx as target
from dpfc_cli.extensions.exports.export import export
from dpfc_cli.extensions.exports.onnx import Network, rebuilt
from dpfc_cli.features.manifest import fingerprint_of
from dpfc_cli.geometry import PAPER
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.accounting import Privacy
from dpfc_cli.privacy.chain import Centre, Clip
from dpfc_cli.records.card import card_of
from dpfc_cli.structs import Values
from tests.backbones.test_parity import REFERENCES
from tests.backbones.test_vision_transformer import ti16
from tests.backbones.tiny import build, pictures, weights_of, write
from tests.hostile import calibrated, card_as_written

# Together they have all operations of all networks: class tokens, means, attention pooling, a normalisation before the
# blocks, registers, layer scale, a gated MLP, the three activations, and position embeddings that are resized.
CASES = [
    ("clip-b16", "26", "cls"),
    ("siglip-b16", "16", "map"),
    ("dinov2-g14", "16", "mean"),
    ("virchow2", "26", "cls+mean"),
]


def head_over(d: int, described: Values, preparation: dict[str, Any] | None = None) -> Head:
    """A head over d dimensions whose card names the backbone, and how pictures were prepared."""
    card = card_as_written(calibrated("dp-whitened", Privacy(epsilon=1.0)))
    backbone, dtype = json.loads(json.dumps(described)), card["features"]["dtype"]
    fingerprint = fingerprint_of(backbone, card["classes"], d, dtype, preparation)
    features = {
        **card["features"],
        **{"backbone": backbone, "preparation": preparation, "fingerprint": fingerprint},
    }
    rng = np.random.default_rng(0)
    return Head(
        chain=(Clip(1e-30), Centre(rng.normal(size=d) / d), Clip(0.9)),
        weight=rng.normal(size=(d, 3)),
        bias=rng.normal(size=3),
        card=card_of({**card, "facts": {**card["facts"], "d": d}, "features": features}),
    )


def run(path: Path, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(features, scores)"""
    features, scores = onnxruntime.InferenceSession(path).run(["features", "scores"], {"pixels": pixels})
    return features, scores


def exported(backbone: Any, shape: tuple[int, int, int], folder: Path) -> tuple[Path, Head]:
    """The graph of a backbone and a head behind it."""
    head = head_over(backbone.dim, backbone.describe())
    network = Network(backbone=backbone, input=shape, said="")
    path = folder / "both.onnx"
    for ending, parts in target.model(head, {}, network, path.name).items():
        path.with_name(path.name + ending).write_bytes(b"".join(parts))
    return path, head


@pytest.mark.parametrize(("name", "size", "pool"), CASES)
def test_a_transformer_and_its_head_give_what_the_library_and_the_head_give(
    name: str, size: str, pool: str, tmp_path: Path
) -> None:
    """The features were computed by timm and transformers from the same weights."""
    case, side = REFERENCES[name], int(size)
    path, head = exported(build(write(weights_of(name), tmp_path), name, side, pool), (side, side, 3), tmp_path)
    onnx.checker.check_model(path, full_check=True)
    features, scores = run(path, pictures(side))
    expected = np.array(case["features"][size][pool])
    assert np.abs(features - expected).max() < 1e-5 * np.linalg.norm(expected, axis=1).min()
    assert np.abs(scores - head.scores(expected)).max() < 1e-5


@pytest.mark.parametrize(("shape", "pool"), [((28, 28, 1), "none"), ((12, 9, 3), "mean")])
def test_scattering_and_its_head_give_what_the_backbone_and_the_head_give(
    shape: tuple[int, int, int], pool: str, tmp_path: Path
) -> None:
    backbone = backbones.load(backbones.Wanted(name="scattering", image_shape=shape, pool=pool))
    path, head = exported(backbone, shape, tmp_path)
    onnx.checker.check_model(path, full_check=True)
    pixels = np.random.default_rng(0).integers(0, 256, (3, *shape)).astype(np.uint8)
    pixels[2] = 7
    features, scores = run(path, pixels)
    expected = backbone(pixels)
    assert np.abs(features - expected).max() < 1e-5
    # The features of the last picture, of one shade, are rounding errors alone. The head would scale them to norm 1.
    assert np.abs(scores - head.scores(expected))[:2].max() < 1e-4


def test_the_backbone_is_made_again_from_the_card_and_takes_prepared_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFC_CACHE", str(tmp_path))
    ti16(tmp_path)
    backbone = backbones.load(backbones.Wanted(name="vit-ti16", image_shape=(256, 256, 3), batch=1))
    head = head_over(192, backbone.describe(), PAPER.describe())
    made = export(head, "onnx", tmp_path / "vit.onnx", with_backbone=True)
    assert made.notes["input"].startswith("pixels: uint8, n × 256 × 256 × 3: pictures, rows from above, resized to 384")
    pixels = pictures(256, 1)
    expected = backbone(pixels)
    features, scores = run(made.path, pixels)
    assert np.abs(features - expected).max() < 1e-4 * np.linalg.norm(expected)
    assert np.abs(scores - head.scores(expected)).max() < 1e-4


def test_a_graph_says_what_was_done_with_the_pictures_of_the_training() -> None:
    """The backbone takes pictures at their own size, and the training did not."""
    backbone = backbones.load(backbones.Wanted(name="scattering", image_shape=(24, 24, 3), pool="mean"))
    head = head_over(backbone.dim, backbone.describe())
    assert "at their own size" in rebuilt(head).said
    prepared = {"resize": 28, "crop": 24, "filter": "bicubic", "window": [-160.0, 240.0], "exif": True}
    assert rebuilt(head_over(backbone.dim, backbone.describe(), prepared)).said == (
        "grey values from -160 to 240 as 0 to 255, turned as their EXIF orientation says, resized to 28 pixels on the "
        "shorter side (bicubic, antialiased), then the central 24 × 24; the division by 255 is in the graph"
    )
