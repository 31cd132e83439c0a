"""Who sums the records of a training or a private evaluation: this process, or an engine (`summing_on`)."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from dpfc_cli.options import engine_named

if TYPE_CHECKING:
    from dpfc_cli.features.reader import FeatureSet
    from dpfc_cli.privacy.facts import Facts
    from dpfc_cli.privacy.oracle import Progress
    from dpfc_cli.privacy.parts import Sum
    from dpfc_cli.privacy.queries import Grid


class Summing(Protocol):
    """What is asked of whoever sums records. Several trainings may ask."""

    def verify(self, features: "FeatureSet", split: str, facts: "Facts", progress: "Progress | None" = None) -> None:
        """Check, before the charge, that the records of a split are there unchanged. The second time nothing is read.
        UserError: they are not.
        """
        ...

    def begun(
        self,
        features: "FeatureSet",
        split: str,
        facts: "Facts",
        grid: "Grid",
        side: int | None = None,
        memory: float | None = None,
    ) -> "AbstractContextManager[Sum]":
        """Sum in this context, after the charge.

        side: how many numbers of a record the sums share, see `machine.side_of`. memory: bytes that a process may take.
        """
        ...


class Engine(Protocol):
    """What sums on other processes or machines."""

    def summing(self, say: Callable[[str], None]) -> AbstractContextManager[Summing]:
        """Sum there in this context. say: told where. UserError: it cannot be used."""
        ...


class Alone:
    """One process sums all records: this one."""

    def __init__(self) -> None:
        self._verified = set[tuple[str, str]]()

    def verify(self, features: "FeatureSet", split: str, facts: "Facts", progress: "Progress | None" = None) -> None:
        if (known := (features.manifest.id, split)) not in self._verified:
            features.verify(split, progress)
        self._verified.add(known)

    @contextmanager
    def begun(self, *_: object) -> "Iterator[Sum]":
        from dpfc_cli.privacy import sums

        yield sums.exact_sum


@contextmanager
def summing_on(engine: str | None, say: Callable[[str], None] = lambda text: None) -> Iterator[Summing]:
    """Who sums in this context. engine: its name; None: this process. say: told where. UserError: the engine cannot be
    used.
    """
    if engine is None:
        yield Alone()
        return
    found: Engine = engine_named(engine)
    with found.summing(say) as summing:
        yield summing
