"""Heads and pictures: the embedded digits through scattering, and pictures of many sizes through a small ViT."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from dpfc_cli.backbones.vision_transformer.models import MODELS
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.geometry import Geometry
from dpfc_cli.heads.head import Head
from dpfc_cli.privacy.accounting import Privacy
from tests.backbones.tiny import kept, tiny, weights_of
from tests.hostile import a_card

COUNT = 24
"""Pictures of each kind."""
ORIENTATION = 0x0112
"""The tag of EXIF that says how a picture is turned."""


class Scene(NamedTuple):
    """Pictures in a flat folder, the features that `extract` made of them in the order of their names, a head, and the
    weights of the backbone.
    """

    photos: Path
    features: FeatureSet
    head: Head
    weights: Path | None = None


def head_of(features: FeatureSet, **changed: Any) -> Head:
    """A head with a card as a training on these features writes it. changed: values of the card's features."""
    manifest = features.manifest
    own = {
        "name": features.name,
        "split": "train",
        "fingerprint": manifest.fingerprint,
        "backbone": manifest.backbone,
        "preparation": manifest.identity.preparation,
        "dtype": manifest.dtype,
        "hold_out": manifest.hold_out,
    }
    facts = {"d": manifest.dim, "n": features.splits.get("train", 1)}
    card = a_card(manifest.classes, Privacy(epsilon=1.0), facts, **(own | changed))
    weight = np.random.default_rng(5).normal(size=(manifest.dim, len(manifest.classes)))
    return Head(chain=(), weight=weight, bias=np.zeros(len(manifest.classes)), card=card)


def features_of(features: FeatureSet) -> np.ndarray:
    return features.arrays("test")[0]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Grey pictures of 8 × 8 pixels."""
    from dpfc_cli.extraction.extract import extract
    from dpfc_cli.images.catalogue import open_images

    top = tmp_path_factory.mktemp("digits")
    made = extract("digits", out=top / "set", limit=COUNT).features
    assert made is not None
    pixels = open_images("digits").splits["test"].spread(COUNT).pixels(0, COUNT)
    for i, picture in enumerate(pixels):
        path = top / "photos" / ("low" if i < COUNT // 2 else "other") / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture[:, :, 0]).save(path)
    return Scene(top / "photos", made, head_of(made))


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Pictures of many sizes and colours, in two classes. The backbone is a small ViT with weights from a seed."""
    from dpfc_cli.extraction.extract import extract

    top, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for i in range(COUNT):
        name, turned = f"{i:03d}.png", Image.Exif()
        # A quarter of them lie on their side.
        turned[ORIENTATION] = 6 if i % 4 == 0 else 1
        picture = Image.fromarray(rng.integers(0, 256, (*rng.integers(18, 60, 2), 3), np.uint8))
        for path in (
            top / "data" / "train" / f"c{i % 2}" / name,
            top / "data" / "test" / f"c{i // 12}" / name,
            top / "photos" / name,
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path, exif=turned)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFC_CACHE", str(top / "cache"))
        file = kept(MODELS["vit-ti16"], top / "cache", weights_of("vit-ti16"))
        patch.setitem(MODELS, "vit-ti16", replace(tiny("vit-ti16"), native=Geometry(resize=18, crop=16)))
        options: dict[str, Any] = {"model": "vit-ti16", "preprocess": "native", "pool": "mean"}
        options["classes"] = ["c0", "c1"]
        made = extract(
            f"imagefolder:{top / 'data'}", out=top / "set", exif=True, dtype="float32", batch=7, **options
        ).features
        assert made is not None
        yield Scene(top / "photos", made, head_of(made), file)
