"""What is wanted of an audit."""

from dataclasses import dataclass
from typing import Literal

from dpfc_cli.options import MethodName, Options, option, progress_option
from dpfc_cli.privacy.facts import Adjacency
from dpfc_cli.progress import Progress

MOST_RUNS = 10_000_000
MOST_LABELS, MOST_RECORDS = 32, 1024


@dataclass(frozen=True, kw_only=True)
class Auditing(Options):
    """An audit as it is asked for."""

    method: Literal["all"] | MethodName = option("The method to attack, or all.", default="all", metavar="NAME")
    epsilon: float = option("ε that is claimed.", default=1.0)
    delta: float = option("δ that is claimed.", default=1e-5)
    runs: int = option("Pairs of runs of the releases, for each attack on them.", default=10_000, low=1, high=MOST_RUNS)
    trainings: int = option("Pairs of whole trainings.", default=2_000, low=1, high=MOST_RUNS)
    confidence: float = option("Of each lower bound.", default=0.95, low=0.5, high=1, open=True)
    adjacency: Adjacency = option(
        "What the guarantee hides. zero-out: whether one record (or person) was used or counted as null. replace-one: "
        "which of two was used.",
        default="zero-out",
    )
    sampling_rate: float | None = option(
        "Attack trainings on Poisson samples with this rate, of the methods that can sample."
    )
    labels_per_record: int = option(
        "Attack the guarantee for records with so many labels.", default=1, low=1, high=MOST_LABELS
    )
    records_per_person: int | None = option(
        "Attack the guarantee for persons with so many records. Of one person 1,024 count.", low=1, high=MOST_RECORDS
    )
    progress: Progress | None = progress_option("pairs")
