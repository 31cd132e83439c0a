"""What all facts of a ledger say together: which sets are whose, what was spent, and which caps hold.

A population is the people (or the things) whose records some sets hold (`populations`). An undeclared set may hold
anybody, so its charges count in every population. **The total of a population** is for one record, or for one person:

- A record lies in one split of a set, and a person does so with all records. So of each set the split counts on which
  most was spent. (A picture that lies in a set twice is two records.)
- A record or a person may be in all sets of its population. So these sets are added up.
- What was spent adds up as μ² where all releases are full passes. Where a release saw a Poisson sample, privacy loss
  distributions compose them, and all splits are added.
- For one record, a charge that protects persons counts with `Charge.weight`. For one person there is a total only if
  all charges protect persons.

It is for neighbours under zero-out. A charge under replace-one counts with its μ, which covers zero-out: the null
record is one of those that a record may be replaced by.

The smallest ε that holds for all these releases together is that of Dong, Roth and Su (2022), Corollary 3.3. The
corollary lets each training depend on what the earlier ones released, but it takes their noise as fixed in advance. So
the total is a guarantee if the trainings were planned in advance. If somebody looked at one head to decide on the next,
and on its noise, it says what they spent, and a cap that was fixed in advance is the guarantee (`caps`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from dpfc_cli.errors import counted, printable
from dpfc_cli.ledger.facts import Cap, Charge, Fact, Merge, Outcome, Released, Set
from dpfc_cli.privacy.facts import Unit
from dpfc_cli.privacy.filters import RESERVE
from dpfc_cli.records.claims import Release, epsilon_of
from dpfc_cli.records.figures import Figures
from dpfc_cli.rounding import cost
from dpfc_cli.show.document import Told

Kind = TypeVar("Kind", bound=Fact)


@dataclass(frozen=True, kw_only=True, repr=False)
class Account(Told):
    """What counts for one population.

    ledger: the file. population: its name; None: the undeclared sets. charges: the oldest first. caps: those that hold,
    the strictest first. adopted: whether one of its sets was imported without its history. also: the alternatives,
    accounts of other populations that may be meant.
    """

    ledger: Path
    population: str | None
    charges: tuple[Charge, ...] = ()
    caps: tuple[Cap, ...] = ()
    adopted: bool = False
    also: tuple["Account", ...] = ()

    @property
    def meant(self) -> tuple["Account", ...]:
        """The accounts of all populations that may be meant."""
        return (self, *self.also)

    @property
    def at_least(self) -> bool:
        """Whether more may be spent than is known."""
        return any(each.adopted for each in self.meant)

    @cached_property
    def private(self) -> tuple[Charge, ...]:
        """The charges with a guarantee."""
        return tuple(charge for charge in self.charges if charge.private)

    @property
    def unprotected(self) -> int:
        """The number of charges without a guarantee. No ε covers them."""
        return len(self.charges) - len(self.private)

    @property
    def unit(self) -> Unit:
        """What a total can be stated for: a person if all private charges protect persons, or else a record."""
        units = {charge.unit for each in self.meant for charge in each.private}
        return "person" if self.private and units == {"person"} else "record"

    def counted(self, unit: Unit, at: tuple[str, str] | None = None) -> list[Charge]:
        """The private charges of the most used split of each set; all of them where one is sampled. at: a set and a
        split; of this set it is this split.
        """
        if any(charge.sampled for charge in self.private):
            return list(self.private)
        splits: dict[str, dict[str, list[Charge]]] = {}
        for charge in self.private:
            splits.setdefault(charge.set, {}).setdefault(charge.split, []).append(charge)
        if at is not None:
            splits[at[0]] = {at[1]: splits.get(at[0], {}).get(at[1], [])}
        return [charge for each in splits.values() for charge in max(each.values(), key=partial(spent, unit=unit))]

    def used(self, unit: Unit, at: tuple[str, str] | None = None) -> float:
        """Σ 1/σ² of what is counted for a unit. It may be infinite."""
        return spent(self.counted(unit, at), unit)

    def epsilon(self, delta: float, unit: Unit | None = None) -> float:
        """ε at δ of all private charges together, for one unit. 0 if there are none."""
        unit = unit or self.unit
        if math.isinf(self.used(unit)):
            return math.inf
        made = [_for(unit, charge, release) for charge in self.counted(unit) for release in charge.releases]
        return epsilon_of(made, delta, self.eta) if made else 0.0

    def summed(self, delta: float) -> str:
        """What was spent, in a sentence."""
        least, none = "at least " if self.at_least else "", ""
        if self.unprotected:
            none = f", and {counted(self.unprotected, 'training')} without a guarantee (epsilon = ∞)"
        if not self.private:
            return f"{least}nothing{none}"
        bound = "" if self.exact else " (an upper bound)"
        why = ", and for no person: some charges protect records" if len({of.unit for of in self.private}) > 1 else ""
        return f"{least}{cost(self.epsilon(delta), delta)}{bound} for one {self.unit}{why}{none}"

    def told(self) -> dict[str, str]:
        named = " or ".join(printable(each.population or "undeclared") for each in self.meant)
        return {"population": named, "spent": self.summed(1e-5)}

    @property
    def eta(self) -> float:
        """Σ η of all splits: the one with more noise may have the larger η."""
        return math.fsum(charge.eta or 0.0 for charge in self.private)

    @property
    def exact(self) -> bool:
        """Whether `epsilon` is the smallest that can be claimed for one `unit`. Otherwise it is an upper bound."""
        found = self.counted(self.unit)
        plain = (not each.sampled and each.weight(self.unit) == 1 and each.adjacency == "zero-out" for each in found)
        return not self.at_least and len({(each.set, each.split) for each in found}) < 2 and all(plain)

    def room(self, cap: Cap, at: tuple[str, str] | None = None) -> float:
        """What is left of the μ² of a cap, for one of its units; below 0 if more is spent. at: see `counted`."""
        assert cap.most is not None
        if self.adopted or self.unprotected or self.eta > RESERVE:
            return -math.inf
        # Where another split has passed it already, nothing fits on this one either.
        return cap.most - self.used(cap.unit, at if self.used(cap.unit) <= cap.most else None)

    @property
    def passed(self) -> list[Cap]:
        """The caps that are passed: something was charged where they were not known."""
        return [cap for cap in self.caps if self.room(cap) < 0]


def spent(charges: Iterable[Charge], unit: Unit) -> float:
    """Σ 1/σ² of charges for a unit."""
    return math.fsum(charge.spent(unit) for charge in charges)


def _for(unit: Unit, charge: Charge, release: Release) -> Release:
    """A release as it counts for a unit. The bound of a sampled one is for a unit that takes part or does not. For one
    record of a person it is not, so it counts as a full pass then: somebody who sees who takes part learns more.
    """
    rate = release.rate if charge.unit == unit else 1.0
    return structs.replace(release, sigma=release.sigma / charge.weight(unit), rate=rate)


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All facts of a ledger, in their order. path: its file."""

    path: Path
    facts: tuple[Fact, ...] = ()

    @cached_property
    def known(self) -> dict[str, Fact]:
        """The facts by their ids."""
        return {fact.id: fact for fact in self.facts}

    @property
    def newest(self) -> str:
        """When its newest fact was written: so old a copy may be. It has one."""
        return max(fact.at for fact in self.facts)

    @property
    def as_of(self) -> str:
        """Until when it knows what was spent, in words."""
        return f"{self.newest[:16].replace('T', ' ')} UTC"

    def with_facts(self, *facts: Fact) -> "Ledger":
        """The ledger as it will be with more facts."""
        return Ledger(path=self.path, facts=(*self.facts, *facts))

    def until(self, fact: str) -> "Ledger":
        """The ledger as it was when that fact had been added."""
        last = next((i for i, each in enumerate(self.facts) if each.id == fact), len(self.facts))
        return Ledger(path=self.path, facts=self.facts[: last + 1])

    def all(self, kind: type[Kind]) -> list[Kind]:
        """All facts of a kind, the oldest first."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @cached_property
    def _replaced(self) -> frozenset[str]:
        ignored = {fact for merge in self.all(Merge) for fact in merge.ignored}
        return frozenset(one for fact in self.facts if fact.id not in ignored for one in fact.replaces)

    @property
    def caps(self) -> list[Cap]:
        return [cap for cap in self.all(Cap) if cap.id not in self._replaced and cap.most is not None]

    @cached_property
    def _same(self) -> dict[str, str]:
        """The name of each population that has several, as merges say."""
        pairs = [pair for merge in self.all(Merge) for pair in merge.same.items()]
        groups = {name: {name} for pair in pairs for name in pair}
        for other, name in pairs:
            both = groups[other] | groups[name]
            groups |= dict.fromkeys(both, both)
        elsewhere = {other for other, _ in pairs}
        return {name: min(each - elsewhere or each) for name, each in groups.items()}

    def named(self, population: str | None) -> str | None:
        """The name of a population here: a merged ledger may have called it otherwise."""
        return None if population is None else self._same.get(population, population)

    @cached_property
    def sets(self) -> dict[str, list[Set]]:
        """The facts that hold about each set, by its id. A name that was said is never replaced, only that none was."""
        found: dict[str, list[Set]] = {}
        for each in self.all(Set):
            if each.population is not None or each.id not in self._replaced:
                found.setdefault(each.set, []).append(each)
        return found

    def populations_of(self, of: str) -> frozenset[str] | None:
        """The populations in which a set counts; None: in all of them."""
        names = {self.named(each.population) for each in self.sets.get(of, [])}
        return None if None in names or not names else frozenset(name for name in names if name is not None)

    def names(self, facts: Iterable[Set | Cap]) -> set[str]:
        """The names of the populations that facts are about."""
        return {name for fact in facts if (name := self.named(fact.population)) is not None}

    @cached_property
    def populations(self) -> tuple[str, ...]:
        """The names of all populations of which there is a set or a cap."""
        return tuple(sorted(self.names([*self.all(Set), *self.caps])))

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        """All charges, as often as they were spent. One that went on in two copies of a ledger was spent twice: two of
        its outcomes then follow the same one.
        """
        return tuple(charge for charge in self.all(Charge) for _ in range(max(1, len(self._ends.get(charge.id, ())))))

    @cached_property
    def _ends(self) -> dict[str, list[Outcome]]:
        """Of each charge, the outcomes that none follows."""
        outcomes = self.all(Outcome)
        followed, found = {each.after for each in outcomes}, dict[str, list[Outcome]]()
        for each in outcomes:
            if each.id not in followed:
                found.setdefault(each.charge, []).append(each)
        return found

    def outcome(self, charge: str) -> Outcome | None:
        """What became of a charge last: the file that was written, if one was. None if nothing is known."""
        return next(iter(sorted(self._ends.get(charge, ()), key=lambda each: each.state != "written")), None)

    def written(self, sha256: str) -> list[Charge]:
        """The charges that ended with a file of this digest."""
        found = {each.charge for each in self.all(Outcome) if each.sha256 == sha256}
        return [charge for charge in self.all(Charge) if charge.id in found]

    @cached_property
    def released(self) -> dict[str, Figures]:
        """The figures of private evaluations, the oldest first, by their charges. They are those that the outcomes of
        the charges name.
        """
        found = ((each.figures.charge, each.figures) for each in self.all(Released))
        return {of: made for of, made in found if (end := self.outcome(of)) and end.sha256 == made.sha256}

    def released_of(self, head: str) -> list[Figures]:
        """Those of the head with this SHA-256."""
        return [each for each in self.released.values() if each.head_sha256 == head]

    def account(self, population: str | None) -> Account:
        """What counts for a population. None: what counts for the people of undeclared sets alone."""

        def counts(of: str) -> bool:
            where = self.populations_of(of)
            return where is None or population in where

        caps = [cap for cap in self.caps if cap.population is None or self.named(cap.population) == population]
        return Account(
            ledger=self.path,
            population=population,
            # After a merge the rows are in another order.
            charges=tuple(sorted((each for each in self.charges if counts(each.set)), key=lambda each: each.at)),
            caps=tuple(sorted(caps, key=lambda cap: cap.most or 0.0)),
            adopted=any(each.adopted and counts(each.set) for each in self.all(Set)),
        )

    def accounts(self, populations: Iterable[str] | None) -> list[Account]:
        """Those of some populations. None: of all of them, or of the undeclared sets if none is named."""
        names: Sequence[str | None] = sorted(populations) if populations is not None else self.populations or (None,)
        return [self.account(name) for name in names]

    def account_of(self, of: str) -> Account:
        """What counts for a set: for the population on which most was spent, where it may be of several (`also`). Where
        nothing is said, it may be of any, or of none that has a name.
        """
        where = self.populations_of(of)
        accounts = self.accounts(where)
        accounts += [self.account(None)] if where is None and self.populations else []
        found = max(accounts, key=lambda each: (each.epsilon(1e-5, "record"), len(each.charges)))
        return replace(found, also=tuple(each for each in accounts if each is not found))
