"""What the card of a head says of the sites that trained it, and what is promised whoever of them is trusted."""

import math
import textwrap
from typing import Annotated

from msgspec import Meta

from dpfc_cli.errors import counted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.privacy.accounting import Guarantee, epsilon_for, mu_for
from dpfc_cli.records.card import Card, Part, Said
from dpfc_cli.records.claims import Epsilon
from dpfc_cli.records.statement import figure
from dpfc_cli.structs import Count, Record

COMPUTED = "that the coordinator computed this head as the plan says: a site cannot check it"


class Site(Record, omit_defaults=True):
    """A site: its name, its number of units, of records if units are persons, and its ε whoever colludes."""

    name: str
    n: Count
    epsilon: Epsilon
    records: Count | None = None


class Federated(Part, omit_defaults=True):
    """The plan of a head's training.

    Attributes:
        plan: its SHA-256.
        colluding: how many of the other sites may tell what they know.
        sites: all of them.
        site: the one whose head this is; None: it is the coordinator's.

    """

    plan: str
    colluding: Count
    sites: Annotated[tuple[Site, ...], Meta(min_length=2)]
    site: str | None = None

    @property
    def unproved(self) -> tuple[str, ...]:
        return (COMPUTED,)

    @property
    def elsewhere(self) -> str:
        said = "Each site has it as a head of its own, which says what else was spent on the records there."
        return said if self.site is None else ""

    def trained_on(self, features: FeatureSet, card: Card) -> FeatureSet:
        # A site need not have records of all classes.
        return features.with_classes(card.classes)

    def contradiction(self, card: Card) -> str | None:
        if not card.private or len({each.name for each in self.sites}) < len(self.sites):
            return "its sites have one name, or nothing is claimed"
        others, several = len(self.sites) - 1, len({each.epsilon for each in self.sites}) > 1
        if self.colluding > others or (self.colluding < others and several):
            return "more sites may collude than there are others, or masks are for several epsilon"
        own = [each for each in self.sites if self.site in (None, each.name)]
        if not own or card.facts.n != sum(each.n for each in own):
            return "it has other records than the sites that it is about"
        return None if card.epsilon == max(each.epsilon for each in own) else "epsilon is not that of its sites"

    def promised(self, card: Card) -> Said:
        """Whose head it is, and what is promised then."""
        said = ", ".join(f"{each.name} ({each.n:,}, epsilon = {each.epsilon:g})" for each in self.sites)
        whose = "each site, with the largest epsilon" if self.site is None else f"the records of {self.site}"
        trained = f"{counted(len(self.sites), 'site')}: {said}; this says what is promised for {whose}"
        return [("trained by", trained), *self.trusted(card.guarantee, card.unit)]

    def masked(self, claimed: Guarantee, at: int = 1) -> float:
        """ε of a unit at so many sites, where masks hide the answers of sites in their sum (`federation.masks` has the
        proof). It holds while no more than `colluding` sites tell, and none of its own.

        A unit counts as often as it is there in the sum of all, or once in each answer: the smaller one is true.
        """
        count = len(self.sites)
        factor = min(at / math.sqrt(count - self.colluding), math.sqrt(at))
        return epsilon_for(factor * claimed.mu, claimed.delta, count * claimed.eta)

    def trusted(self, claimed: Guarantee, unit: str) -> Said:
        """Which claim holds if nobody is trusted, and which one if some are; and which plan.

        Who has records at j of them is in the answers of each. These have independent noise, so μ² adds up, as far as
        all j add it: no claim of a site is about what another one tells.
        """
        delta, eta, count = claimed.delta, claimed.eta, len(self.sites)
        squares = sorted((mu_for(each.epsilon, delta, eta) ** 2 for each in self.sites), reverse=True)
        several = "; ".join(
            f"{j} sites: epsilon = {figure(epsilon_for(math.sqrt(sum(squares[:j])), delta, eta))}"
            for j in range(2, min(count, 3) + 1)
        )
        wrapped = " ".join(textwrap.wrap(self.plan, 8))
        alone = [
            (
                "trust nobody",
                "the epsilon of each site holds for its records: it adds the whole noise of its own claim",
            ),
            (
                f"a {unit} of",
                f"{several}; at most, at the same delta, if each of these sites adds its noise. One that does not can "
                f"tell all that it has of the {unit}",
            ),
            ("plan", f"SHA-256 {wrapped} (compare it with all operators, outside the network)"),
        ]
        if self.colluding == count - 1:
            return alone
        spent = [figure(self.masked(claimed, j)) for j in (1, 2, 3)]
        return [
            *alone,
            (
                "trust some",
                f"with masks, epsilon = {spent[0]} while at most {self.colluding} of the {count - 1} other sites tell "
                "what they know, lie or add no noise, whatever the coordinator does, and X25519 and ChaCha20 are not "
                f"broken; for a {unit} of several sites, if none of these is one of those that tell, lie or add no "
                f"noise: 2 sites: epsilon = {spent[1]}; 3 sites: epsilon = {spent[2]}",
            ),
        ]
