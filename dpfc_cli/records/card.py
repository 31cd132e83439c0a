"""The card of a head: how the head was made, and what is claimed of it. One record, and its parts.

A head may come from somebody else. `card_of` refuses what no training writes. `findings` says whether the figures of a
card agree.

**Parts of extensions.** An extension may write a record of its own into a card, under its own name (entry points of the
group `dpfc.cards`, each a subclass of `Part`). A part that no package here knows stays as it is: the head is good
without it, and whoever shows the card says that this part was not checked. It has to be an object, so no plain value
stands beside those of the core.
"""

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, field
from msgspec.structs import replace

from dpfc_cli import points
from dpfc_cli.annotations.classes import Origin
from dpfc_cli.annotations.groups import By
from dpfc_cli.geometry import Filter
from dpfc_cli.privacy.accounting import LEAST_EPSILON
from dpfc_cli.privacy.facts import Facts, Unit
from dpfc_cli.records.claims import Claimed, Seeded, is_time
from dpfc_cli.structs import Count, Fault, Fraction, Json, Number, Record, Scalar, Values, Whole, decoded, encoded

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet

CARDS = "dpfc.cards"
"""The group of entry points."""
Side = Annotated[int, Meta(ge=1, le=8192)]
"""Pixels. A larger picture would take more memory than a head may ask for."""
Said = list[tuple[str, str]]
_NAME = re.compile("[a-z][a-z_]{0,39}")


class Counts(Record, omit_defaults=True):
    """Public facts of the records (`privacy.facts.Facts`), and who states the classes and k. records: their number, if
    the unit is a person.
    """

    n: Count
    m: Count
    d: Count
    k: Count
    origin: Origin
    records: Count | None = None


class Prepared(Record, omit_defaults=True):
    """How pictures were prepared, see `images.sets.Preparation`."""

    crop: Side | None = None
    exif: bool | None = None
    filter: Filter | None = None
    resize: Side | Annotated[tuple[Side, ...], Meta(min_length=2)] | None = None
    window: Annotated[tuple[Number, ...], Meta(min_length=2)] | None = None


class Grouped(Record, omit_defaults=True):
    """How the person of each record was found."""

    by: By | Literal["table"]
    column: str | None = None
    level: Count | None = None


class Features(Record, omit_defaults=True):
    """The features of a training, as their manifest says. grouped_by: how persons were found, if they are the unit."""

    name: str
    fingerprint: str
    backbone: Values
    preparation: Prepared | None
    dtype: str
    hold_out: Fraction
    grouped_by: Grouped | None = None
    split: str


class Made(Record):
    """How a file of class vectors says that it was made: of how many prompts, or of how many rows of a classifier."""

    source: Literal["text", "classifier"]
    model: str
    count: Count


class Start(Record, omit_defaults=True):
    """Public class vectors.

    Attributes:
        name: of the file.
        sha256: of its bytes.
        classes: how many classes have a vector.
        without: the names of the others.
        made: how the file says that it was made.
        trusted: how far what was released bears them out; the mean over the classes.
        doubted: the names of those that it does not.

    """

    name: str
    sha256: str
    classes: Annotated[int, Meta(ge=2, le=2**53)]
    without: tuple[str, ...]
    made: Made | None = None
    trusted: Fraction | None = None
    doubted: tuple[str, ...] | None = None


class Source(Record):
    """The code of a method that is not of dpfc. sha256: of its files."""

    package: str
    sha256: str


class Standing(Record, omit_defaults=True):
    """The charge of the training, and what its ledger had of the same people then, this one included.

    Attributes:
        charge: its id.
        private: how many charges had a guarantee.
        unprotected: how many had none.
        epsilon: what the private ones cost together; None: more than can be stated, or nothing is claimed.
        exact: whether that is exact, and not an upper bound.
        unit: that it is for.
        adopted: whether one of the sets was made elsewhere, so that more may be spent.

    """

    charge: str
    private: Whole
    unprotected: Whole
    epsilon: Annotated[float, Meta(ge=LEAST_EPSILON, le=1e308)] | None
    exact: bool
    unit: Unit
    adopted: bool = False

    @property
    def count(self) -> int:
        """Of all charges."""
        return self.private + self.unprotected


class Versions(Record):
    """What made the head."""

    dpfc: str


class Part(Record):
    """What an extension writes into a card. These methods are all that others ask of it."""

    def contradiction(self, card: "Card") -> str | None:
        """What contradicts between it and the card. None if nothing does."""
        return None

    def promised(self, card: "Card") -> Said:
        """What the statement says of it beside the claim."""
        return []

    def trained(self, card: "Card") -> Said:
        """What the statement says of it among what was trained."""
        return []

    @property
    def unproved(self) -> tuple[str, ...]:
        """What the head's file cannot prove because of it."""
        return ()

    @property
    def elsewhere(self) -> str:
        """Where the training is charged, in a sentence, if no ledger has this head; empty if one has it."""
        return ""

    def trained_on(self, features: "FeatureSet", card: "Card") -> "FeatureSet":
        """The feature set of the training, as the training saw it."""
        return features


class Card(Claimed, omit_defaults=True):
    """The card of a head.

    Attributes:
        method: its name.
        date: when it was charged, in UTC.
        options: those of the method that had an effect.
        facts: public facts.
        classes: their names, in the order of the scores.
        features: that it was trained on.
        versions: what made it.
        seeded: the seed of its noise; `claim` is "research" then.
        method_source: the code of the method, if it is not of dpfc.
        ledger: its charge; None if no ledger has the training.
        public_head: the public class vectors that it started from.
        converged: whether a training without noise reached its optimum.
        parts: those of extensions, by name: records, or values if the extension is not installed.

    """

    method: str
    date: str
    options: Mapping[str, Scalar | tuple[Scalar, ...]]
    facts: Counts
    classes: Annotated[tuple[str, ...], Meta(min_length=1)]
    features: Features
    versions: Versions
    seeded: Seeded | None = None
    method_source: Source | None = None
    ledger: Standing | None = None
    public_head: Start | None = None
    converged: bool | None = None
    parts: Values = field(default_factory=dict)

    @property
    def known(self) -> dict[str, Part]:
        """The parts of the extensions that are installed."""
        return {name: part for name, part in self.parts.items() if isinstance(part, Part)}

    @property
    def elsewhere(self) -> str:
        """Where it was charged, if no ledger has it, as its parts say."""
        return " ".join(part.elsewhere for part in self.known.values() if part.elsewhere)

    @property
    def unknown(self) -> list[str]:
        """The names of the other parts. Nobody can say what they mean."""
        return [name for name in self.parts if name not in self.known]

    @property
    def records(self) -> int:
        """The number of records, whatever the unit is."""
        return self.facts.records or self.facts.n

    @property
    def public(self) -> Facts:
        """The public facts, as methods see them."""
        facts = self.facts
        counts = {"n": facts.n, "m": facts.m, "d": facts.d, "k": facts.k}
        return Facts(**counts, rows=facts.records, adjacency=self.adjacency, unit=self.unit)

    def values(self) -> dict[str, Json]:
        """The values that its JSON text has, in the order of the file."""
        said: dict[str, Json] = encoded(self)
        said |= said.pop("parts", {})
        return dict.fromkeys(_FIRST) | said

    @property
    def json(self) -> str:
        """What a head's file has of it."""
        return json.dumps(self.values())


_FIRST = ("method", "date", "options", "claim", "epsilon", "delta", "mu", "eta", "adjacency", "unit", "facts", "plan")
_OWN = {*Card.__struct_fields__} - {"parts"}


def card_of(values: Json) -> Card:
    """The card that the values of a JSON text are. Fault: no training writes such values. UserError: the extension that
    a part is of cannot be used.
    """
    added = {name: part for name, part in values.items() if name not in _OWN} if isinstance(values, dict) else {}
    bare = decoded({name: value for name, value in values.items() if name not in added} if added else values, Card)
    wrong = bare.misfit or (None if is_time(bare.date) else "date")
    wrong = wrong or next((name for name, part in added.items() if not _may_be(name, part)), None)
    if wrong is not None:
        raise Fault(wrong)
    return replace(bare, parts={name: part_of(name, part) for name, part in added.items()}) if added else bare


def _may_be(name: str, part: Json) -> bool:
    """Whether it can be the part of an extension."""
    return bool(_NAME.fullmatch(name)) and isinstance(part, dict)


def part_of(name: str, part: Part | Values) -> Part | Values:
    """The record that the part of an extension is; the part itself if none is installed that knows it."""
    if isinstance(part, Part) or name not in points.added(CARDS):
        return part
    kind: type[Part] = points.load(CARDS, name, type)
    try:
        return decoded(part, kind)
    except Fault as fault:
        raise Fault(name if fault.place == "it" else f"{name}.{fault.place}") from None
