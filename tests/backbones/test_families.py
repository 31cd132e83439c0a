"""Families of backbones: all that dpfc knows about models comes from them, and a package can add one."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpfc_cli import backbones
from dpfc_cli.backbones import Family, Geometry, Wanted
from tests.support import package, refuses


class Histogram(backbones.Backbone):
    """The mean (or the largest value) of each channel: a backbone that nobody needs."""

    batch = 4

    def __init__(self, wanted: Wanted, pool: str) -> None:
        self.name, self.dim, self._shape, self._pool = wanted.name, wanted.image_shape[2], wanted.image_shape, pool

    def describe(self) -> dict[str, object]:
        return {"name": self.name, "pooling": self._pool, "dim": self.dim}

    def _compute(self, whole: np.ndarray) -> jax.Array:
        planes = jnp.asarray(whole, jnp.float32)
        return planes.max((1, 2)) if self._pool == "max" else planes.mean((1, 2))


class Histograms(Family):
    """A family of which models differ in their own pooling and recipe."""

    poolings = ("mean", "max")
    recipes = ("paper", "native")

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        return "max" if name == "histogram:l" else "mean"

    def own_recipe(self, name: str) -> str:
        return "native" if name == "histogram:l" else "paper"

    def geometry(self, name: str, preprocess: str) -> Geometry | None:
        return Geometry(resize=8, crop=8) if preprocess == "native" else None

    def load(self, wanted: Wanted) -> Histogram:
        return Histogram(wanted, wanted.pool or self.own_pool(wanted.name, wanted.image_shape))


FAMILY = Histograms()


def test_a_family_of_another_package_is_checked_and_loaded(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), dtype=np.uint8)
    with package(tmp_path, "histograms", "", f"[dpfc.backbones]\nhistogram = {__name__}:FAMILY\n"):
        assert backbones.geometry_of("histogram:l") == Geometry(resize=8, crop=8)
        assert (backbones.geometry_of("histogram:s"), backbones.dimensions("histogram:s")) == (None, None)
        mean = backbones.load(Wanted(name="histogram:s", image_shape=(8, 8, 3), preprocess="native"))
        np.testing.assert_allclose(mean(pixels), pixels.mean((1, 2)), rtol=1e-5)
        largest = backbones.load(Wanted(name="histogram:l", image_shape=(8, 8, 3)))
        assert np.array_equal(largest(pixels), pixels.max((1, 2)))
        assert backbones.files(Wanted(name="histogram:l"), text=True) == ()
        for name, options, code in (
            ("histogram:s", {"pool": "cls"}, "conflict"),
            ("histogram:s", {"precision": "bfloat16"}, "conflict"),
            ("histogram:s", {"weights": "x.npz"}, "conflict"),
            ("histogram:s", {"pool": "mx"}, "unknown-name"),
        ):
            with refuses(code):
                backbones.load(Wanted(name=name, image_shape=(8, 8, 3), **options))  # type: ignore[arg-type]
        with refuses("unsupported", parameter="model"):
            backbones.classifier(Wanted(name="histogram:s"))
    with refuses("unknown-name", name="histogram:s"):
        backbones.check(Wanted(name="histogram:s"))


def test_no_two_families_have_a_model_of_one_name() -> None:
    names = [name for family in backbones.FAMILIES for name in family.models]
    assert len(set(names)) == len(names) == len(backbones.BACKBONES)


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"name": "vit-b61"}, "unknown-name", "", "'vit-b16'"),
    ({"name": "vit-b16", "pool": "max"}, "unknown-name", "", "none, mean, cls, map"),
    ({"name": "vit-b16", "pool": "none"}, "conflict", "pool", "vit-b16"),
    ({"name": "vit-b16", "pool": "map"}, "conflict", "pool", "vit-b16"),
    ({"name": "siglip-b16", "pool": "cls"}, "conflict", "pool", "siglip-b16"),
    ({"name": "vit-b16", "preprocess": "papers"}, "unknown-name", "", "'paper'"),
    ({"name": "vit-b16", "precision": "float16"}, "unknown-name", "", "float32, bfloat16"),
    ({"name": "vit-b16", "weights": "own.safetensors"}, "conflict", "weights", "vit-b16"),
    ({"name": "scattering", "preprocess": "native"}, "conflict", "preprocess", "scattering"),
    ({"name": "scattering", "precision": "bfloat16"}, "conflict", "precision", "scattering"),
    ({"name": "scattering", "batch": 8}, "conflict", "batch", "scattering"),
    ({"name": "scattering", "weights": "x.npz"}, "conflict", "weights", "scattering"),
]


def test_what_cannot_be_is_refused_before_anything_is_fetched_and_on_loading() -> None:
    for asked, code, parameter, named in REFUSED:
        for function, arguments in ((backbones.check, asked), (backbones.load, {**asked, "image_shape": (32, 32, 3)})):
            with refuses(code, match=named, parameter=parameter or None) as caught:
                function(Wanted(**arguments))
            assert "--" not in str(caught.value)


def test_the_shorter_side_is_resized_exactly_and_the_longer_one_is_rounded_down() -> None:
    for resize, size, expected in (
        (256, (100, 100), (256, 256)),
        (256, (300, 400), (256, 341)),
        (256, (401, 300), (342, 256)),
        ((3, 5), (9, 9), (3, 5)),
    ):
        assert Geometry(resize=resize, crop=8).resized(*size) == expected


def test_how_long_a_feature_vector_is_follows_from_the_name_of_most_models() -> None:
    known = {name: backbones.dimensions(name) for name in backbones.BACKBONES}
    assert {known[name] for name in ("vit-b16", "deit-b16", "dinov2-b14-reg", "clip-b32", "siglip-b16")} == {768}
    assert [name for name, found in known.items() if found is None] == ["scattering"]
    with refuses("unknown-name", name="vit-b"):
        backbones.dimensions("vit-b")
