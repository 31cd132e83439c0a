"""Families of backbones: all that dpfc knows about models comes from the table, and a new family is one row in it."""

import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpfc_cli import backbones
from dpfc_cli.backbones import Geometry, Options, Wanted, families
from dpfc_cli.backbones.batched import Batched
from dpfc_cli.backbones.tensors import digest
from dpfc_cli.errors import UserError
from tests.backbones.tiny import build, random_weights, references, write


class Histogram(Batched):
    """The mean (or the largest value) of each channel: a backbone that nobody needs."""

    batch = 4

    def __init__(self, name: str, image_shape: tuple[int, int, int], pool: str) -> None:
        self.name, self.dim, self._shape, self._pool = name, image_shape[2], image_shape, pool

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "pooling": self._pool, "dim": self.dim}

    def _compute(self, whole: np.ndarray) -> jax.Array:
        planes = jnp.asarray(whole, jnp.float32)
        return planes.max((1, 2)) if self._pool == "max" else planes.mean((1, 2))


class Histograms:
    """A family with a pooling, a recipe and a precision that no other family has."""

    models = ("histogram-s", "histogram-l")
    poolings = ("mean", "max")
    recipes = ("paper", "square")
    precisions = ("float32", "float64")

    def check(self, name: str, options: Options) -> None:
        if options.weights is not None:
            raise UserError(f"{name} has no weights.", "Leave them out.", code="conflict", parameter="weights")

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        return "max" if name == "histogram-l" else "mean"

    def repository(self, name: str) -> str | None:
        return None

    def dimensions(self, name: str) -> int | None:
        return 8 if name == "histogram-l" else None

    def own_recipe(self, name: str) -> str:
        return "square" if name == "histogram-l" else "paper"

    def geometry(self, name: str, preprocess: str) -> Geometry | None:
        return backbones.Geometry(resize=8, crop=8) if preprocess == "square" else None

    def load(self, wanted: Wanted) -> Histogram:
        name, shape = wanted.name, wanted.image_shape
        return Histogram(name, shape, wanted.options.pool or self.own_pool(name, shape))


@pytest.fixture
def with_histograms(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`dpfc_cli.backbones` as it is imported with one row more in the table, and nothing else changed."""
    monkeypatch.setattr(families, "FAMILIES", (*families.FAMILIES, Histograms()))
    yield importlib.reload(backbones)
    monkeypatch.undo()
    importlib.reload(backbones)


def test_a_family_that_is_added_to_the_table_is_known_everywhere(with_histograms: ModuleType) -> None:
    assert with_histograms.BACKBONES[:2] == ("scattering", "vit-ti16")
    assert with_histograms.BACKBONES[-2:] == ("histogram-s", "histogram-l")
    assert with_histograms.POOLINGS == ("none", "mean", "cls", "map", "cls+mean", "max")
    assert with_histograms.PREPROCESS == ("paper", "native", "square")
    assert with_histograms.PRECISIONS == ("float32", "bfloat16", "float64")
    assert [with_histograms.dimensions(name) for name in ("histogram-s", "histogram-l")] == [None, 8]
    assert with_histograms.geometry_of("histogram-s", "square") == with_histograms.Geometry(resize=8, crop=8)
    assert with_histograms.own_pool("histogram-l", (8, 8, 3)) == "max"
    assert with_histograms.geometry_of("histogram-l") == with_histograms.geometry_of("histogram-l", "square")


def test_a_family_that_is_added_to_the_table_is_loaded_and_checked(with_histograms: ModuleType) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    mean = with_histograms.load("histogram-s", (8, 8, 3), preprocess="square", precision="float64")
    np.testing.assert_allclose(mean(pixels), pixels.mean((1, 2)), rtol=1e-5)
    assert np.array_equal(with_histograms.load("histogram-l", (8, 8, 3))(pixels), pixels.max((1, 2)))
    assert with_histograms.load("histogram-l", (8, 8, 3), "mean").describe()["pooling"] == "mean"
    for options, code in (
        ({"pool": "cls"}, "conflict"),
        ({"preprocess": "native"}, "conflict"),
        ({"precision": "bfloat16"}, "conflict"),
        ({"weights": "x.npz"}, "conflict"),
        ({"pool": "mx"}, "unknown-name"),
    ):
        with pytest.raises(UserError) as caught:
            with_histograms.load("histogram-s", (8, 8, 3), **options)
        assert caught.value.code == code


def test_the_other_families_do_not_take_what_only_the_new_one_has(with_histograms: ModuleType) -> None:
    for name in ("scattering", "vit-b16"):
        with_histograms.check(name)
        for options in ({"pool": "max"}, {"preprocess": "square"}, {"precision": "float64"}):
            with pytest.raises(UserError, match=f"{name} has no"):
                with_histograms.check(name, **options)


def test_no_two_families_have_a_model_of_one_name() -> None:
    names = [name for family in families.FAMILIES for name in family.models]
    assert len(set(names)) == len(names) == len(backbones.BACKBONES)
    with pytest.raises(UserError, match="Unknown model 'histogram-s'"):
        backbones.check("histogram-s")


REFUSED: list[tuple[dict[str, Any], str, dict[str, object]]] = [
    ({"name": "vit-b61"}, "unknown-name", {"name": "vit-b61"}),
    (
        {"name": "vit-b16", "pool": "none"},
        "conflict",
        {"parameter": "pool", "known": ["mean", "cls", "map", "cls+mean"]},
    ),
    ({"name": "vit-b16", "pool": "map"}, "conflict", {"parameter": "pool", "known": ["mean", "cls", "cls+mean"]}),
    ({"name": "uni2-h"}, "unsupported", {"parameter": "weights", "repository": "MahmoodLab/UNI2-h", "gated": True}),
    ({"name": "vit-g14"}, "missing", {"parameter": "weights", "model": "vit-g14"}),
    ({"name": "vit-b16", "weights": "none.npz"}, "missing", {"parameter": "weights", "path": "none.npz"}),
    ({"name": "vit-b16", "weights": "hf:timm"}, "bad-value", {"parameter": "weights", "value": "hf:timm"}),
    ({"name": "vit-b16", "weights": "hf:a/b/c.pt"}, "unsupported", {"parameter": "weights", "path": "c.pt"}),
    ({"name": "scattering", "preprocess": "native"}, "conflict", {"parameter": "preprocess"}),
    ({"name": "scattering", "precision": "bfloat16"}, "conflict", {"parameter": "precision"}),
    ({"name": "scattering", "batch": 8}, "conflict", {"parameter": "batch"}),
    ({"name": "scattering", "weights": "x.npz"}, "conflict", {"parameter": "weights"}),
]


@pytest.mark.parametrize(("asked", "code", "fields"), REFUSED)
def test_a_program_can_read_what_is_wrong(asked: dict[str, Any], code: str, fields: dict[str, object]) -> None:
    """The same before anything is loaded and on loading; and the text names parameters, not flags."""
    loads = {**asked, "image_shape": (32, 32, 3)}
    for function, arguments in ((backbones.check, asked), (backbones.load, loads)):
        with pytest.raises(UserError) as caught:
            function(**arguments)
        assert caught.value.code == code
        assert caught.value.fields.items() >= fields.items()
        assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    "weights", ["hf:owkin/phikon-v2", "hf:owkin/phikon-v2/model.safetensors", "hf:Owkin/Phikon-v2"]
)
def test_published_weights_are_recognised_by_their_repository(weights: str) -> None:
    """Widths, depth and patches are those of vit-l16, too. The pictures would be prepared in a wrong way."""
    for name in ("vit-l16", "scattering", "convnext-t"):
        with pytest.raises(UserError, match=r"are the weights of phikon-v2, not of") as caught:
            backbones.check(name, weights=weights)
        assert caught.value.code == "conflict"
        assert caught.value.fields["known"] == ["phikon-v2"]
    backbones.check("phikon-v2", weights=weights)
    backbones.check("vit-l16", weights="hf:owkin/phikon-v3")


def test_the_digest_of_several_files_is_that_of_their_digests() -> None:
    sums = [hashlib.sha256(part) for part in (b"first", b"second")]
    said = [each.hexdigest() for each in sums]
    assert digest(said[:1]) == said[0]
    assert digest(said) == hashlib.sha256(b"".join(each.digest() for each in sums)).hexdigest()


def test_a_geometry_is_described_as_manifests_state_it() -> None:
    assert backbones.Geometry(resize=(384, 256), crop=224).describe() == {
        "resize": [384, 256],
        "crop": 224,
        "filter": "bicubic",
    }
    assert backbones.Geometry(resize=256, crop=224, filter="bilinear").describe() == {
        "resize": 256,
        "crop": 224,
        "filter": "bilinear",
    }


@pytest.mark.parametrize(
    ("resize", "size", "expected"),
    [
        (256, (100, 100), (256, 256)),
        (256, (300, 400), (256, 341)),
        (256, (401, 300), (342, 256)),
        ((3, 5), (9, 9), (3, 5)),
    ],
)
def test_the_shorter_side_is_resized_exactly_and_the_longer_one_is_rounded_down(
    resize: int | tuple[int, int], size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert backbones.Geometry(resize=resize, crop=8).resized(*size) == expected


def test_how_long_a_feature_vector_is_follows_from_the_name_of_most_models(tmp_path: Path) -> None:
    known = {name: backbones.dimensions(name) for name in backbones.BACKBONES}
    assert {known[name] for name in ("vit-b16", "deit-b16", "dinov2-b14-reg", "clip-b32", "siglip-b16")} == {768}
    assert [name for name, found in known.items() if found is None] == ["scattering", "vit-g14"]
    with pytest.raises(UserError, match="Unknown model"):
        backbones.dimensions("vit-b")
    # Every pooling has the width of a token: that of a patch's projection.
    for name in ("timm-vit", "timm-vit-gap", "timm-siglip"):
        case = references()[name]
        tensors, folder = random_weights(case["shapes"]), tmp_path / name
        folder.mkdir()
        width = next(len(array) for key, array in tensors.items() if "patch_embed" in key and key.endswith("bias"))
        assert build(write(tensors, folder, case["kind"], case["config"])).dim == width
