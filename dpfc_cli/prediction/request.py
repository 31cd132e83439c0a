"""What is wanted of predictions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dpfc_cli import points
from dpfc_cli.options import HEAD, Options, option, progress_option, said
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    import numpy as np

    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.heads.head import Head
    from dpfc_cli.prediction.sources import Source as Records

    Source: TypeAlias = str | Path | FeatureSet | np.ndarray

SOURCE = (
    "A folder of pictures (at any depth, without folders of classes); a text file with the path of a picture on each "
    "line (- for standard input); a .tar or .parquet file of pictures; a feature set; or features as .npy, .npz, "
    ".safetensors or .h5."
)


@dataclass(frozen=True, kw_only=True)
class Hook(Options):
    """What a package adds to predictions, with its options. Predictions have it if one of them is set; none has a
    default.
    """

    def chosen(self, head: "Head", source: "Records", progress: Progress | None) -> "tuple[Head, Records]":
        """The head and the source that serve in place of these. UserError: whatever can be refused."""
        raise NotImplementedError


def added_hooks() -> list[type[Hook]]:
    """What packages add to predictions, in the order of their names: it acts in this order."""
    return [points.load("dpfc.predictions", name, type) for name in sorted(points.added("dpfc.predictions"))]


@dataclass(frozen=True, kw_only=True)
class Predicting(Options):
    """Predictions as they are asked for. hooks: what packages add, of which an option is set."""

    head: "Head | Path | str" = field(kw_only=False, metadata=said(HEAD, argument=True))
    source: "Source" = field(kw_only=False, metadata=said(SOURCE + " In Python also an n × d array.", argument=True))
    top: int = option("How many of the best classes to give.", default=1, low=1)
    weights: str | None = option(
        "The file of weights that the features of the head were computed with, if it was your own.",
        metavar="CHECKPOINT",
    )
    calibrate_on: "FeatureSet | None" = option(
        "A feature set of public pictures with labels, to fit one temperature on. Default: none. The probabilities are "
        "then not calibrated.",
        metavar="PUBLIC_SET",
    )
    batch: int | None = option("Pictures per call of the backbone. Default: the model chooses.", typed=False, low=1)
    progress: Progress | None = progress_option()
    hooks: tuple[Hook, ...] = ()
