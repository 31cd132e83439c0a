"""What the card of a head says of public records whose mean steadied a release."""

from dpfc_cli.records.card import Card, Said
from dpfc_cli.training.public import PublicSet


class PublicFeatures(PublicSet):
    """Public records whose mean was used."""

    def trained(self, card: Card) -> Said:
        said = f"{self.name}: the mean of {self.rows:,} records"
        return [("public features", f"{said}; the operator asserts that these records are public")]
