"""What a family of backbones provides, and what a loaded backbone is to its callers. This module imports no JAX.

A family is a group of models with one way to check, load and run them, such as Vision Transformers. To add one, write a
module with a `Family` and name it as an entry point of the group `dpfc.backbones` (`dpfc_cli.backbones.ADDED`). The
module is imported for what is said of a model, so it imports JAX, NumPy and libraries that read weights only inside
`load`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from dpfc_cli.backbones import hub
from dpfc_cli.errors import parameter, unsupported
from dpfc_cli.geometry import Geometry
from dpfc_cli.progress import Progress
from dpfc_cli.structs import Values

if TYPE_CHECKING:
    import jax
    import numpy as np

DEFAULT_RECIPE = "paper"
"""The preprocessing of most models. A family without recipes accepts this name and ignores it."""
Key = TypeVar("Key")


class Backbone(ABC):
    """A frozen network, or a fixed transform, that turns pictures into feature vectors.

    The features of a picture depend on the pixels of that picture alone. The last bits of a row may depend on its
    position in the batch, because the order of a sum does. They never depend on what the other rows hold.

    Attributes:
        name: the name of the model.
        dim: the length of a feature vector.
        batch: the number of pictures per call that runs best. It is chosen so that memory stays bounded.

    """

    name: str
    dim: int
    batch: int
    _shape: tuple[int, ...]
    """(H, W, C) of the pictures."""

    @abstractmethod
    def describe(self) -> Values:
        """What the manifest says about the features, as JSON values."""

    @abstractmethod
    def _compute(self, whole: "np.ndarray") -> "jax.Array | np.ndarray":
        """Compute the features: from uint8 (batch, H, W, C) to float32 (batch, dim)."""

    def traced(self, pixels: "jax.Array") -> "jax.Array":
        """What is computed, from uint8 (B, H, W, C) to float32 (B, dim), as a function that JAX can trace.

        UserError: JAX does not compute it.
        """
        raise unsupported(f"The backbone {self.name} is not computed by JAX.", "Export the head alone.")

    def __call__(self, pixels: "np.ndarray") -> "np.ndarray":
        """The features, float32 (B, dim), of pictures, uint8 (B, H, W, C), for any B.

        The pictures are padded to batches of one shape, so that the program is compiled once.
        """
        import numpy as np

        out = np.empty((len(pixels), self.dim), np.float32)
        for start in range(0, max(len(pixels), 1), self.batch):
            part = self.submit(pixels[start : start + self.batch])
            out[start : start + len(part)] = np.asarray(part)
        return out

    def submit(self, pixels: "np.ndarray") -> "jax.Array | np.ndarray":
        """Start to compute the features of at most `batch` pictures, and do not wait for them.

        The host can decode the next pictures while the device computes. `np.asarray` of the result waits. Raises
        ValueError for pixels of another type or shape, or for too many.
        """
        import numpy as np

        if pixels.dtype != np.uint8 or pixels.shape[1:] != self._shape:
            raise ValueError(f"expected uint8 pixels (B, {self._shape}), got {pixels.dtype} {pixels.shape}")
        if len(pixels) > self.batch:
            raise ValueError(f"expected at most {self.batch} rows, got {len(pixels)}")
        # This is always a copy, because the caller may change its array while the device still reads.
        whole = np.zeros((self.batch, *self._shape), np.uint8)
        whole[: len(pixels)] = pixels
        out = self._compute(whole)
        return out if len(pixels) == self.batch else out[: len(pixels)]


def computed(backbone: Backbone, batches: Iterable[tuple[Key, "np.ndarray"]]) -> Iterator[tuple[Key, "np.ndarray"]]:
    """The features of batches of pictures, each with the key of its batch. The device works one batch ahead."""
    import numpy as np

    waiting = None
    for key, pixels in batches:
        submitted = key, backbone.submit(pixels)
        if waiting is not None:
            yield waiting[0], np.asarray(waiting[1])
        waiting = submitted
    if waiting is not None:
        yield waiting[0], np.asarray(waiting[1])


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model, and how it is to be run. None leaves the choice to the model.

    Attributes:
        name: of the model.
        pool: which vector is the feature.
        preprocess: the recipe for resizing, cropping and normalising.
        weights: a file of the user's own, for families that take one; None: the published weights.
        batch: pictures per call.
        precision: of the arithmetic. Features are float32 in any case.
        expected: the digest that the weights must have; None: any.
        progress: told how many bytes of a file were downloaded.
        image_shape: (H, W, C) of the pictures, if the model is to be loaded.
        geometry: how pictures were resized and cropped, as the recipe says; None: they keep their size.

    """

    name: str
    pool: str | None = None
    preprocess: str | None = None
    weights: str | None = None
    batch: int | None = None
    precision: str = "float32"
    expected: str | None = None
    progress: Progress | None = None
    image_shape: tuple[int, int, int] = (0, 0, 0)
    geometry: Geometry | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Classifier:
    """The classifier that a backbone was trained with.

    Attributes:
        rows: classes × dimensions, over the feature.
        pool: which vector is the feature.
        id: of the weights: `hf:owner/name/file`.
        sha256: the digest of the weights, as feature sets state it.

    """

    rows: "np.ndarray"
    pool: str
    id: str
    sha256: str


class Family(ABC):
    """A family of backbones. All methods but `load` and `classifier` are fast and read at most names of local files.

    Attributes:
        models: the names of its models, if it is one of dpfc's own. No other family has a model of the same name.
        own_weights: whether they run weights of the user's own.
        poolings: those that some of its models have. The same for recipes and precisions.
        recipes: of preprocessing. Empty: the models take pictures at their own size.
        precisions: of the arithmetic.

    """

    models: tuple[str, ...] = ()
    own_weights: bool = False
    poolings: tuple[str, ...]
    recipes: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ("float32",)

    def check(self, wanted: Wanted) -> None:  # noqa: B027
        """Raise UserError for what cannot work, before anything is fetched. The caller has checked that pooling, recipe
        and precision are among those of the model, and that it takes weights of the user's own.
        """

    def files(self, wanted: Wanted, *, text: bool) -> tuple[hub.File, ...]:
        """The files of the hub that are needed to load a model. text: its text tower, too."""
        return ()

    def dimensions(self, name: str) -> int | None:
        """The length of a feature vector of a model; None if it depends on the pictures or on the weights."""
        return None

    def poolings_of(self, wanted: Wanted) -> tuple[str, ...]:
        return self.poolings

    @abstractmethod
    def load(self, wanted: Wanted) -> Backbone:
        """Load a model. Raises UserError if the weights cannot be fetched or read, or do not fit."""

    def own_recipe(self, name: str) -> str:
        """The preprocessing if the user names none."""
        return DEFAULT_RECIPE

    def geometry(self, name: str, preprocess: str) -> Geometry | None:
        """How pictures are resized and cropped; None: they keep their size."""
        return None

    def classifier(self, wanted: Wanted) -> Classifier:
        """The classifier that the weights were trained with. Raises UserError if there is none of this feature."""
        raise unsupported(
            f"dpfc knows no classifier of the model {wanted.name}.",
            f"Choose another {parameter('model')}, or a start of your own.",
        )
