"""What a private evaluation released of a head: figures with noise, as a file and a ledger's digest have them."""

import hashlib
import json
from typing import Annotated

from msgspec import Meta, field

from dpfc_cli.privacy.facts import Unit
from dpfc_cli.records.claims import Epsilon
from dpfc_cli.structs import Fraction, Open, Record, Values, Whole, encoded

Interval = tuple[Fraction, Fraction]
Deviation = Annotated[float, Meta(ge=0, le=1e308)]


class Measured(Record):
    """A figure with noise.

    Attributes:
        value: the figure; None if its interval is so wide that it would say nothing.
        interval: its 95 % interval, for the choice of the records and the noise together.
        noise: the standard deviation of its noise alone; None if there is nothing but noise.

    """

    value: Fraction | None
    interval: Interval
    noise: Deviation | None


class ReleasedRanks(Record):
    """How a head tells one class from the rest. n: the number of units that have it. Sensitivity and specificity are
    None where the head decides in another way than by a threshold.
    """

    name: str = field(name="class")
    n: Whole
    auroc: Measured
    sensitivity: Measured | None
    specificity: Measured | None


class ReleasedSubgroup(Record):
    """How good a head is on the records with one value of a column. As the figures of a `Figures`."""

    column: str
    value: str
    n: Whole
    top1: Fraction | None
    interval: Interval
    noise: Deviation | None
    auroc: Measured | None


class ReleasedClass(Record):
    """How good a head is on the records of one class, with noise. As the figures of a `Figures`."""

    name: str = field(name="class")
    n: Whole
    top1: Fraction | None
    interval: Interval
    noise: Deviation | None


class Figures(Record, omit_defaults=True):
    """How good a head is on a private split. Everything here was released with noise, or is public.

    Attributes:
        head: the name of its file.
        head_sha256: of its file.
        features: the name of the feature set.
        split: the records.
        unit: a record or a person.
        epsilon: what the figures cost for one unit, at `delta`.
        delta: δ.
        n: the number of units with a label.
        top1: the fraction of them that is right; None if the noise leaves no record to count.
        interval: its 95 % interval, for the choice of the records and the noise together; 0 to 1 if nothing is to be
            seen beside the noise.
        noise: the standard deviation of its noise alone.
        top5: as top1, for the best five classes; None where that does not pay.
        top5_interval: of that.
        top5_noise: of that.
        charge: its id in the ledger.
        per_class: in the order of the classes; None where that does not pay.
        balanced_accuracy: the mean over the classes of the fractions that are right, or of sensitivity and specificity.
        auroc: the mean over the classes of the area under the ROC curve, one class against the rest.
        ranks: of each class, in their order.
        threshold: the probability from which on a class is said, where `ranks` have sensitivities.
        subgroups: of each value of a column. All other figures are then those of the records that have one of them.

    What was not asked for is None, and the interval of `top1` 0 to 1.

    """

    head: str
    head_sha256: str
    features: str
    split: str
    unit: Unit
    epsilon: Epsilon
    delta: Fraction
    n: Whole
    top1: Fraction | None
    interval: Interval
    noise: Deviation | None
    top5: Fraction | None
    top5_interval: Interval | None
    top5_noise: Deviation | None
    charge: str
    per_class: tuple[ReleasedClass, ...] | None
    balanced_accuracy: Measured | None = None
    auroc: Measured | None = None
    ranks: tuple[ReleasedRanks, ...] | None = None
    threshold: Fraction | None = None
    subgroups: tuple[ReleasedSubgroup, ...] | None = None

    @property
    def tells_accuracy(self) -> bool:
        return self.auroc is None or self.top1 is not None

    @property
    def sha256(self) -> str:
        return digest_of(encoded(self))


class Output(Open):
    """What 'dpfc evaluate --epsilon --json' wrote."""

    figures: Figures
    sha256: str


def digest_of(figures: Values) -> str:
    return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()
