"""What a family of backbones provides. This module imports no JAX.

A family is a group of models with one way to check, load and run them, such as Vision Transformers. To add a family,
write one module or package with an implementation of `Family` and add it to the table in `families.py`. Its graph for
exports to ONNX is a module in `exports`. The module is
imported for `dpfc extract --help`, so it must import JAX, NumPy and libraries that read weights only inside `load`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dpfc_cli.backbones.backbone import Backbone, Progress
from dpfc_cli.backbones.geometry import Geometry

if TYPE_CHECKING:
    import numpy as np

DEFAULT_RECIPE = "paper"
"""The preprocessing of most models. A family without recipes accepts this name and ignores it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a model is to be run. None leaves the choice to the model.

    Attributes:
        pool: which vector is the feature.
        preprocess: the recipe for resizing, cropping and normalising.
        weights: a file, a folder or `hf:owner/name[/file]`.
        batch: pictures per call.
        precision: of the arithmetic. Features are float32 in any case.
        expected: the digest that the weights must have; None: any.

    """

    pool: str | None = None
    preprocess: str = DEFAULT_RECIPE
    weights: str | None = None
    batch: int | None = None
    precision: str = "float32"
    expected: str | None = None


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A model that is to be loaded for pictures of one shape.

    Attributes:
        name: the model.
        image_shape: (H, W, C) of the pictures.
        options: how it is to be run.
        geometry: how pictures are resized and cropped; None: they keep their size.
        prepared: whether they were resized and cropped already.
        progress: it is told how many bytes of a file were downloaded.

    """

    name: str
    image_shape: tuple[int, int, int]
    options: Options
    geometry: Geometry | None
    prepared: bool = False
    progress: Progress | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Classifier:
    """The classifier that a backbone was trained with.

    Attributes:
        rows: classes × dimensions, over the feature.
        labels: the names of its classes, if the weights say them: synonyms are separated by commas.
        pool: which vector is the feature.
        id: of the weights: `hf:owner/name/file`, or the name of a local file.
        sha256: the digest of the weights, as feature sets state it.

    """

    rows: "np.ndarray"
    labels: tuple[str, ...] | None
    pool: str
    id: str
    sha256: str


class Family(Protocol):
    """A family of backbones. All methods but `load` are fast and read at most the names of local files."""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models. No other family has a model of the same name."""
        ...

    @property
    def poolings(self) -> tuple[str, ...]:
        """The poolings that some of its models have."""
        ...

    @property
    def recipes(self) -> tuple[str, ...]:
        """The preprocessing recipes that its models have. Empty: they take the pictures at their own size."""
        ...

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions that its models can compute in."""
        ...

    def check(self, name: str, options: Options) -> None:
        """Refuse options that cannot work for the model `name`, before anything is fetched.

        The caller has checked that pooling, recipe and precision are among those of the family.

        Raises:
            UserError: the options do not fit the model.

        """
        ...

    def own_pool(self, name: str, image_shape: tuple[int, int, int]) -> str | None:
        """The pooling for pictures of this shape (H, W, C) if the user names none; None: the weights decide."""
        ...

    def dimensions(self, name: str) -> int | None:
        """The length of a feature vector of this model; None: it depends on the pictures or on the weights."""
        ...

    def repository(self, name: str) -> str | None:
        """The repository on the Hugging Face hub with the published weights, `owner/name`; None if there is none."""
        ...

    def own_recipe(self, name: str) -> str:
        """The preprocessing if the user names none."""
        ...

    def geometry(self, name: str, preprocess: str) -> Geometry | None:
        """How pictures are resized and cropped; None: they keep their size."""
        ...

    def classifier(self, name: str, options: Options, expected: str | None, progress: Progress | None) -> Classifier:
        """The classifier that the weights were trained with. See `dpfc_cli.backbones.classifier`.

        Raises:
            UserError: the model has none, or not for this feature; or the weights are others than expected.

        """
        ...

    def load(self, wanted: Wanted) -> Backbone:
        """Load a model. The caller has called `check`.

        Raises:
            UserError: the weights cannot be fetched or read, or do not fit the model or the pictures.

        """
        ...
