"""What the card of a head says of public records whose mean steadied a release."""

from dpfc_cli.records.card import Card, Part, Said
from dpfc_cli.structs import Count, Values


class PublicFeatures(Part):
    """A set of public records. rows: how many there are."""

    name: str
    rows: Count
    fingerprint: str
    backbone: Values

    def trained(self, card: Card) -> Said:
        said = f"{self.name}: the mean of {self.rows:,} records"
        return [("public features", f"{said}; the operator asserts that these records are public")]
