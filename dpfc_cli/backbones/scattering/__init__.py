"""Scattering: a fixed wavelet transform, without any training. This module describes it; `transform` computes it."""

from dpfc_cli.backbones.family import Backbone, Family, Wanted
from dpfc_cli.errors import conflict, parameter
from dpfc_cli.memory import WIDE


class ScatteringFamily(Family):
    """The family of one model, `scattering`. It has no weights, and takes pictures at their own size."""

    models = ("scattering",)
    poolings = ("none", "mean")

    def check(self, wanted: Wanted) -> None:
        if wanted.batch is not None:
            raise conflict(
                f"The model {wanted.name} chooses its batch itself.",
                f"Leave out {parameter('batch')}, or choose another {parameter('model')}.",
            )

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str:
        """Scattering gives 81 numbers per channel for each 4 × 4 pixels.

        They are kept apart where these are few dimensions, as for MNIST's pictures, and not for CIFAR's.
        """
        height, width, channels = image_shape
        return "none" if 81 * channels * (height // 4) * (width // 4) <= WIDE else "mean"

    def load(self, wanted: Wanted) -> Backbone:
        from dpfc_cli.backbones.scattering import transform

        name, shape = wanted.name, wanted.image_shape
        return transform.load(name, shape, wanted.pool or self.own_pool(name, shape))


FAMILY = ScatteringFamily()
