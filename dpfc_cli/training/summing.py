"""Who sums the records of a training: this process, or whoever is named in its request (`Request.summing`)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.privacy.facts import Facts
    from dpfc_cli.privacy.oracle import Progress
    from dpfc_cli.privacy.parts import Sum
    from dpfc_cli.privacy.queries import Grid


class Summing(Protocol):
    """What a training asks of whoever sums its records."""

    def verify(self, features: "FeatureSet", split: str, facts: "Facts", progress: "Progress | None" = None) -> None:
        """Check, before the charge, that the records of a split are there unchanged. UserError: they are not."""
        ...

    def records(self, facts: "Facts") -> int:
        """How many records this process reads at most."""
        ...

    def begun(
        self, split: str, facts: "Facts", grid: "Grid", side: int | None, memory: float | None
    ) -> "AbstractContextManager[Sum]":
        """Sum in this context, after the charge.

        side: how many numbers of a record the sums share, see `machine.side_of`. memory: bytes that a process may take.
        """
        ...


class Alone:
    """One process sums all records: this one."""

    def verify(self, features: "FeatureSet", split: str, facts: "Facts", progress: "Progress | None" = None) -> None:
        features.verify(split, progress)

    def records(self, facts: "Facts") -> int:
        return facts.records

    @contextmanager
    def begun(self, *_: object) -> "Iterator[Sum]":
        from dpfc_cli.privacy import sums

        yield sums.exact_sum
