"""What is wanted of a training, before anything is computed or read."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

from dpfc_cli import points
from dpfc_cli.errors import conflict, parameter
from dpfc_cli.folders import heads_folder
from dpfc_cli.options import METHOD, MethodName, MethodOptions, Options, engine_option, option, said
from dpfc_cli.privacy.accounting import DEFAULT_DELTA, LARGEST_EPSILON, LEAST_EPSILON, Accounting, Privacy
from dpfc_cli.privacy.facts import Adjacency, Facts
from dpfc_cli.structs import LARGEST
from dpfc_cli.training.observer import Observer
from dpfc_cli.training.summing import Alone, Summing

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.methods import AnyMethod
    from dpfc_cli.records.card import Card
    from dpfc_cli.training.calibrate import Calibrated

PRIVACY, RUN = "Privacy", "The run"
"""Panels of the help."""
VARIED = ("epsilon", "method", "seed")
"""The options of which several trainings have several values (`many`)."""


@dataclass(frozen=True, kw_only=True)
class Noisy(MethodOptions):
    """What a training and a forecast of trainings have in common."""

    delta: float | None = option(f"δ. {DEFAULT_DELTA}", PRIVACY)
    adjacency: Adjacency | None = option(
        "What the guarantee hides. zero-out: whether one record (or person) was used or counted as null. replace-one: "
        "which of two was used; this takes more noise. Their number is public in both. Default: zero-out.",
        PRIVACY,
        metavar="NAME",
    )
    method: MethodName = option(
        "auto is dp-whitened for records with one label, and dp-fc for records with several.",
        METHOD,
        metavar="NAME",
        default="auto",
    )
    memory: float | None = option(
        "Refuse a training that needs more bytes, such as 8GB. Default: the free memory.", RUN, metavar="SIZE"
    )

    @property
    def neighbours(self) -> Adjacency:
        """Which data sets are neighbours."""
        return self.adjacency or "zero-out"


@dataclass(frozen=True, kw_only=True)
class Hook(Options):
    """What a package adds to trainings, with its options. A training has it if one of them is set; none has a default.

    It acts after the calibration and before the checks, so nothing is charged yet. What it makes may depend on public
    facts and public records alone.
    """

    def choose(self, request: "Request", calibrated: "Calibrated", observer: Observer) -> "Calibrated":
        """The same training with other options of its method. What is released stays, and so does the noise.

        UserError: whatever can be refused.
        """
        raise NotImplementedError

    def ended(self, card: "Card", observer: Observer) -> None:
        """Told what the card of the head says."""


def added_hooks() -> list[type[Hook]]:
    """What packages add to trainings, in the order of their names: it acts in this order."""
    return [points.load("dpfc.hooks", name, type) for name in sorted(points.added("dpfc.hooks"))]


@dataclass(frozen=True, kw_only=True)
class Training(Noisy):
    """One training as it is asked for. UserError where privacy is not stated once, or where parameters contradict.

    hooks: what packages add, of which an option is set.
    """

    features: "FeatureSet" = field(
        kw_only=False, metadata=said("The private records (`dpfc_cli.open_features`).", metavar="SET")
    )
    out: Path | str | None = option(
        "File of the head; its ending may be left out. Of several trainings the folder. Default: a name of its own in "
        "the folder for heads."
    )
    epsilon: float | None = option(
        "ε to spend, 1e-4 to 100: the smaller, the more private.", PRIVACY, low=LEAST_EPSILON, high=LARGEST_EPSILON
    )
    noise_multiplier: float | None = option(
        "Instead of ε: the standard deviation of the noise, divided by the most that one record (or person) can change "
        "a release, if all releases had the same. 'dpfc budget --sigma' says what that is as ε.",
        PRIVACY,
        flags=("--noise-multiplier", "--sigma"),
    )
    accounting: Accounting | None = option(
        "How ε becomes noise. exact: by the exact curve. zcdp: by the conversion ρ + 2√(ρ·ln(1/δ)), which takes more "
        "noise; what is claimed and charged is the exact, smaller ε. Default: exact; zcdp for ‹epsilon› "
        "with ‹as_published›.",
        PRIVACY,
    )
    non_private: bool = option("Train without noise, for comparison: ε = ∞.", PRIVACY, default=False)
    allow_large_delta: bool = option("Accept a δ above 1/n, which is refused otherwise.", PRIVACY, default=False)
    seed: int | None = option(
        "Reproducible noise, for research. The head then claims no guarantee. It names the seed, and the ε that the "
        "noise would be worth.",
        RUN,
        low=0,
        high=LARGEST,
    )
    again: bool = option("Make the same training again. Without it dpfc asks, or refuses.", RUN, default=False)
    by: str | None = option("Whose training it is, for the ledger. Default: your account.", RUN)
    purpose: str | None = option("What the training is for, for the ledger.", RUN)
    on: str | None = engine_option(RUN)
    observer: Observer | None = option(
        "Told of warnings and progress. Default: Python warnings, and a bar in a terminal or a notebook.", typed=False
    )
    hooks: tuple[Hook, ...] = ()

    def __post_init__(self) -> None:
        from dpfc_cli.ledger.facts import noted

        super().__post_init__()
        noted("by", self.by)
        noted("purpose", self.purpose)
        if sum((self.epsilon is not None, self.noise_multiplier is not None, self.non_private)) != 1:
            raise conflict(
                f"State the privacy once: as {parameter('epsilon')}, as {parameter('noise_multiplier')} or as "
                f"{parameter('non_private')}.",
                f"To begin with: {parameter('epsilon')} 1.",
            )
        idle = [name for name in ("delta", "seed", "adjacency") if getattr(self, name) is not None]
        idle += ["allow_large_delta"] * self.allow_large_delta
        if self.non_private and idle:
            raise conflict(f"{parameter(idle[0])} has no effect with {parameter('non_private')}.", "Leave it out.")
        if self.epsilon is None and self.accounting == "zcdp":
            raise conflict(
                f"{parameter('accounting')} zcdp is of no use without {parameter('epsilon')}.", "Leave it out."
            )

    @property
    def privacy(self) -> Privacy:
        asked = {each.name: getattr(self, each.name) for each in fields(Privacy)}
        usual: Accounting = "zcdp" if self.as_published and self.epsilon is not None else "exact"
        return Privacy(**{**asked, "accounting": self.accounting or usual})

    @property
    def facts(self) -> Facts:
        from dpfc_cli.ledger.public import facts_of

        return facts_of(self.features, self.neighbours, not self.non_private)

    @property
    def chosen(self) -> "AnyMethod":
        from dpfc_cli.methods import method_named

        return method_named(self.method, self.facts)

    @property
    def whose(self) -> str:
        from dpfc_cli.ledger.facts import account_name

        return self.by or account_name()


@dataclass(frozen=True, kw_only=True)
class Request(Training):
    """A training with what its caller decides.

    folder: where heads lie that are not named. keep: its answers, so that it can go on after it was stopped.
    summing: who sums the records.
    """

    folder: Path = field(default_factory=heads_folder)
    keep: bool = True
    summing: Summing = field(default_factory=Alone)
