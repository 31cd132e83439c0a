"""What is wanted of an evaluation."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from dpfc_cli.options import Options, engine_option, option, progress_option, said
from dpfc_cli.privacy.accounting import DEFAULT_DELTA
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.heads.head import Head

PRIVATE = "Private records"


@dataclass(frozen=True, kw_only=True)
class Scoring(Options):
    """An evaluation as it is asked for."""

    head: "Head" = field(kw_only=False, metadata=said("The head, as Head.load or a training gives it.", typed=False))
    features: "FeatureSet" = field(
        kw_only=False, metadata=said("A feature set of the same backbone and classes.", metavar="SET")
    )
    split: str = field(default="test", kw_only=False, metadata=said("The split of it to score.", metavar="NAME"))
    threshold: float | None = option(
        "A probability. Sensitivity and specificity are then those of saying a class where it has this probability or "
        "more. Default: of saying the best class; with several labels, those from 0.5 on.",
        low=0.0,
        high=1.0,
        open=True,
    )
    subgroups: str | None = option(
        "A column that the set has kept ('dpfc extract --subgroups'): figures are also those of each of its values.",
        metavar="COLUMN",
    )
    progress: Progress | None = progress_option("records")


@dataclass(frozen=True, kw_only=True)
class PrivateScoring(Scoring):
    """An evaluation whose figures are noisy, and protect the records."""

    epsilon: float = field(metadata=said("ε to spend on the records of the split, 1e-4 to 100.", PRIVATE))
    delta: float | None = option(f"δ, with ‹epsilon›. {DEFAULT_DELTA}", PRIVATE)
    figures: Literal["accuracy", "auroc", "both"] = option(
        "With ‹epsilon›: what is released. auroc: areas under ROC curves; where a class is said from a probability on, "
        "also sensitivities and specificities. both: half of the budget goes to each.",
        PRIVATE,
        default="accuracy",
    )
    on: str | None = engine_option(PRIVATE)
    again: bool = option("Charge the same evaluation again. Without it dpfc asks, or refuses.", PRIVATE, default=False)
    by: str | None = option("With ‹epsilon›: whose evaluation it is, for the ledger. Default: your account.", PRIVATE)
    purpose: str | None = option("With ‹epsilon›: what it is for, for the ledger.", PRIVATE)
