"""Records without labels, as hooks of predictions (`--adapt`) and of trainings (`--unlabelled`)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfc_cli.options import METHOD, option
from dpfc_cli.prediction.request import Hook as Prediction
from dpfc_cli.progress import Progress
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import Hook, Request

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.heads.head import Head
    from dpfc_cli.prediction.sources import Source
    from dpfc_cli.training.calibrate import Calibrated


@dataclass(frozen=True, kw_only=True)
class Adapting(Prediction):
    """Predictions by a head that is adapted to them."""

    adapt: bool | None = option(
        "Adapt the head to what is predicted, as far as the gradients of its training agree. This helps where epsilon "
        "is small. It costs no privacy, and the head's file stays as it is. A prediction then depends on what is "
        "predicted together."
    )

    def chosen(self, head: "Head", source: "Source", progress: Progress | None) -> "tuple[Head, Source]":
        from dpfc_cli.extensions.unlabelled.predictions import adapted

        return adapted(head, source, progress) if self.adapt else (head, source)


@dataclass(frozen=True, kw_only=True)
class Unlabelled(Hook):
    """A training with public records without labels."""

    unlabelled: "FeatureSet | None" = option(
        "Feature set of public pictures of the same kind, from the same backbone, whose labels are not read. At the "
        "end the head is adapted to them as far as the private gradients agree, at no cost in privacy. It then has "
        "means of them in it. This helps where epsilon is small (dp-whitened).",
        METHOD,
        metavar="SET",
    )

    def choose(self, request: Request, calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        from dpfc_cli.extensions.unlabelled.trainings import informed

        assert self.unlabelled is not None
        return informed(request, calibrated, self.unlabelled, observer)
