"""Scattering: a fixed wavelet transform, without any training. This module describes it; `transform` computes it."""

from dpfc_cli.backbones.backbone import Backbone, Progress
from dpfc_cli.backbones.family import DEFAULT_RECIPE, Classifier, Options, Wanted
from dpfc_cli.backbones.geometry import Geometry
from dpfc_cli.errors import UserError, parameter

UNPOOLED = 32
"""Side in pixels up to which scattering is not pooled by default."""


class ScatteringFamily:
    """The family of one model, `scattering`."""

    models = ("scattering",)
    poolings = ("none", "mean")
    recipes: tuple[str, ...] = ()
    precisions = ("float32",)

    def check(self, name: str, options: Options) -> None:
        for option, value, why in (
            ("weights", options.weights, "has no weights"),
            ("batch", options.batch, "chooses its batch itself"),
        ):
            if value is not None:
                raise UserError(
                    f"The model {name} {why}.",
                    f"Leave out {parameter(option)}, or choose another {parameter('model')}.",
                    code="conflict",
                    parameter=option,
                    model=name,
                )

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        """Scattering gives 81 numbers per channel for each 4 × 4 pixels.

        They are kept apart up to the size of MNIST's and CIFAR's pictures. For larger pictures they would make tens of
        thousands of dimensions, and no Gram matrix of that size fits into memory.
        """
        return "none" if max(image_shape[:2]) <= UNPOOLED else "mean"

    def dimensions(self, name: str) -> None:
        """They depend on the pictures."""
        return

    def repository(self, name: str) -> None:
        """It has no weights."""
        return

    def own_recipe(self, name: str) -> str:
        return DEFAULT_RECIPE

    def geometry(self, name: str, preprocess: str) -> Geometry | None:
        return None

    def classifier(self, name: str, options: Options, expected: str | None, progress: Progress | None) -> Classifier:
        raise UserError(
            f"The model {name} has no classifier: it was never trained.",
            f"Choose another {parameter('model')}.",
            code="unsupported",
            parameter="model",
            model=name,
        )

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.backbones.scattering import transform

        name, shape = wanted.name, wanted.image_shape
        return transform.load(name, shape, wanted.options.pool or self.own_pool(name, shape))


FAMILY = ScatteringFamily()
