"""What the card of a head says of the public records that its options were chosen on."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from dpfc_cli.records.card import Card, Part, Said
from dpfc_cli.structs import Count, Record, Values


class Stood(Record):
    """What stood for the private records in the trials: at most so many records and classes."""

    n: Count
    m: Count


class Tuned(Part):
    """Trials on public records. runs: of each finalist. tried, finalists: settings with their scores. chosen: factors
    of the defaults.
    """

    name: str
    fingerprint: str
    facts: Stood
    runs: Count
    tried: tuple[Values, ...]
    finalists: tuple[Values, ...]
    chosen: Mapping[str, Annotated[float, Meta(ge=0, le=1e308)]]

    def trained(self, card: Card) -> Said:
        found = ", ".join(f"{name} = {factor:g} × default" for name, factor in self.chosen.items()) or "the defaults"
        said = (
            f"{self.name}: {len(self.tried)} settings on {self.facts.n:,} of its records of {self.facts.m} classes; "
            f"the operator asserts that they are public; chosen: {found}"
        )
        return [("tuned on", said)]
