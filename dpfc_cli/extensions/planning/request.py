"""What is wanted of a forecast, and of a training whose options are chosen on public records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dpfc_cli.backbones import BACKBONES
from dpfc_cli.options import METHOD, Classes, option, progress_option, said
from dpfc_cli.progress import Progress
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.request import PRIVACY, Hook, Noisy, Request

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.training.calibrate import Calibrated

FACTS = "Public facts"
MOST = 10**12
"""The most records, classes or dimensions that can be stated."""


@dataclass(frozen=True, kw_only=True)
class Forecasting(Noisy):
    """A forecast as it is asked for. The records are those of a set, or they are stated."""

    features: "FeatureSet | None" = field(
        default=None,
        kw_only=False,
        metadata=said(
            "The private feature set, by path or name. Only its manifest is read. Instead of it, state:",
            FACTS,
            metavar="SET",
        ),
    )
    records: int | None = option("How many private records.", FACTS, low=2, high=MOST)
    persons: int | None = option("How many persons, if persons are to be protected.", FACTS, low=2, high=MOST)
    classes: Classes | None = option(
        "How many classes; or their names; or a file with a name on each line.", FACTS, metavar="CLASSES"
    )
    model: str | None = option("The backbone, as of 'dpfc extract'.", FACTS, metavar="NAME", choices=BACKBONES)
    dimensions: int | None = option(
        "Instead of ‹model›: how long a feature vector is. Default: as in ‹on›.", FACTS, low=1, high=MOST
    )
    on: "FeatureSet | None" = option(
        "A labelled feature set of the same backbone, which nobody needs to protect. Private trainings on it say what "
        "accuracy to expect. Without it no accuracy is expected.",
        metavar="SET",
    )
    sites: int = option(
        "So many hospitals have equal parts of the records and train one head. Each adds the whole noise of its ε.",
        PRIVACY,
        low=1,
        high=1000,
        default=1,
    )
    epsilons: Sequence[float] = option(
        "The ε to look at.", PRIVACY, metavar="LIST", flags=("--epsilon",), default=(0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
    )
    cap: float | None = option(
        "Say how many such trainings fit under this cap, at the same δ, beside what is spent.",
        PRIVACY,
        metavar="EPSILON",
    )
    records_per_person: int | None = option(
        "Say what ε is for a person with so many records, if records are protected.", PRIVACY, low=1, high=MOST
    )
    progress: Progress | None = progress_option("trainings")


@dataclass(frozen=True, kw_only=True)
class Tuning(Hook):
    """Options are chosen by trainings on public records."""

    tune_on: "FeatureSet | None" = option(
        "A public feature set with labels. Options are chosen by private trainings on it, at no cost in privacy.",
        METHOD,
        metavar="SET",
    )

    def choose(self, request: Request, calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        from dpfc_cli.extensions.planning.tuning import tuned

        assert self.tune_on is not None
        return tuned(request, calibrated, self.tune_on, observer)
