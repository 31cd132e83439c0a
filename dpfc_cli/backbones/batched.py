"""What networks have in common: the devices that they run on, and their layers."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpfc_cli.backbones.family import Backbone, Wanted
from dpfc_cli.backbones.preprocess import Recipe
from dpfc_cli.geometry import Triple


def rows_that_fit(row: int) -> int:
    """The rows that a device computes at a time, 256 at most. row: the bytes of a row's intermediates."""
    # On CPUs more than 32 MB would be taken from the system anew, and emptied by it, for each part.
    budget = 32 << 20 if jax.default_backend() == "cpu" else 4 << 30
    return int(max(1, min(budget // row, 256)))


class Sharded(Backbone):
    """A network of one checkpoint, one preprocessing and one shape of pictures. All local devices run it, each on its
    part of a batch. Subclasses set `dim` and what is named here, call `_divide` and complete the description.

    A batch is computed in parts of one size, so that the intermediates of a part fit into a fixed budget.

    Args:
        wanted: what is to be loaded. The batch is rounded up to suit the devices.
        weights: what the manifest says about the weights.
        mean: of the preprocessing, for each channel. The same for std, the standard deviation.

    Attributes:
        recipe: the preprocessing.
        outer: the parameters outside blocks, on the devices.
        blocks: those of the blocks.

    """

    outer: "Group"
    blocks: Any
    _run: Callable[[jax.Array, "Group", Any], jax.Array]
    """The compiled program: the features of one part of a batch."""

    def __init__(self, wanted: Wanted, weights: Mapping[str, Any], mean: Triple, std: Triple) -> None:
        assert wanted.geometry is not None
        shape, crop = wanted.image_shape, wanted.geometry.crop
        if shape != (crop, crop, 3):
            raise ValueError(f"pictures of shape {shape} do not fit this backbone with crop {crop}")
        self.name = wanted.name
        self._shape = tuple(shape)
        self.recipe = Recipe(name=str(wanted.preprocess), geometry=wanted.geometry, mean=mean, std=std)
        self._description: dict[str, Any] = {
            "name": self.name,
            "weights": weights,
            "preprocessing": self.recipe.describe(),
            "input": [crop, crop, 3],
        }

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    def _divide(self, most: int, batch: int | None) -> None:
        """Choose the size of batches. most: rows of a part per device; batch: the size that the user wants."""
        devices = jax.local_devices()
        most *= len(devices)
        self._parts = -(-(batch or most) // most)
        # Each device takes the same number of rows of a part.
        unit = self._parts * len(devices)
        self.batch = -(-(batch or most) // unit) * unit
        mesh = Mesh(np.array(devices), ("batch",))
        self._sharding = NamedSharding(mesh, PartitionSpec("batch"))  # type: ignore[no-untyped-call]
        self._everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def _placed(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """The arrays on every device. Each one is freed on the host after it was copied."""
        return {name: jax.device_put(arrays.pop(name), self._everywhere) for name in list(arrays)}

    def traced(self, pixels: jax.Array) -> jax.Array:
        return self._run(pixels, self.outer, self.blocks)

    def _compute(self, whole: np.ndarray) -> jax.Array:
        parts = (jax.device_put(part, self._sharding) for part in np.split(whole, self._parts))
        out = [self._run(part, self.outer, self.blocks) for part in parts]
        return jnp.concatenate(out) if len(out) > 1 else out[0]


Group = dict[str, jax.Array]
"""The parameters of a part of a network."""


@cache
def tensor_cores() -> bool:
    """Whether JAX computes on an NVIDIA GPU that has units for products of bfloat16 (compute capability 8)."""
    generation = str(getattr(jax.local_devices()[0], "compute_capability", "")).partition(".")[0]
    return generation.isdigit() and int(generation) >= 8


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """The matrix product of two arrays of one type, summed in float32. It is float32, but of their type on an NVIDIA
    GPU, which would wait for its memory otherwise.
    """
    # Accelerators round the factors of float32 products to fewer bits unless they are told not to.
    precision = "highest" if x.dtype == jnp.float32 else None
    kept = x.dtype if tensor_cores() else jnp.float32
    product: jax.Array = jnp.matmul(x, y, precision=precision, preferred_element_type=kept)
    return product


def dense(x: jax.Array, group: Group, name: str) -> jax.Array:
    """An affine map of the last axis, as float32."""
    kernel = group[f"{name}.weight"]
    return product(x.astype(kernel.dtype), kernel) + group[f"{name}.bias"]


def norm(x: jax.Array, group: Group, name: str, epsilon: float | jax.Array) -> jax.Array:
    """Layer normalisation over the last axis, in float32."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return centred * scale * group[f"{name}.weight"] + group[f"{name}.bias"]


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its exact form."""
    # jax.nn.gelu uses the complementary error function, which takes three times as long and is no better here.
    return x * (0.5 + 0.5 * jax.lax.erf(x * 0.5**0.5))
