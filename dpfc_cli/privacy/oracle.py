"""What a solver sees: public facts, a plan of releases, and one door.

A method is two functions. `plan(facts, options)` is pure and says which sums will be released, in which order, with
which shares of the budget. `solve(oracle, facts, options)` gets those sums, noised, by calling `oracle.release(query)`,
and nothing else; whatever it computes from them is post-processing.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from dpfc_cli.privacy.queries import Query

Adjacency = Literal["zero-out", "replace-one"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Facts:
    """What is public about the private records.

    n: records; m: classes; d: feature dimensions; k: most labels per record. adjacency: what neighbouring data sets
    are: "zero-out" (one record may become the null record, n stays public) or "replace-one" (one record may become any
    other).
    """

    n: int
    m: int
    d: int
    k: int = 1
    adjacency: Adjacency = "zero-out"
    unit: str = "record"


@dataclass(frozen=True)
class Release:
    """One planned release: the query's kind, the shape of its answer, and its share of μ².

    rate: each record takes part with this probability, decided by the curator for this release alone (Poisson
    sampling); 1 for a full pass.
    """

    kind: str
    shape: tuple[int, ...]
    share: float
    rate: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The releases of one training, in order. Their shares are fractions of μ² and are made to sum to 1.

    equal: of how many equal releases the paper speaks, which is what a noise multiplier for the whole training refers
    to. It differs from their number where one release is split (class by class); None: it does not.
    """

    releases: tuple[Release, ...]
    equal: int | None = None

    def __post_init__(self) -> None:
        if not self.releases or any(not r.share > 0 for r in self.releases):
            raise ValueError("a plan needs releases, each with a positive share")
        if any(not 0 < r.rate <= 1 for r in self.releases):
            raise ValueError("a sampling rate lies in (0, 1]")

    @property
    def count(self) -> int:
        """Releases in the paper's count."""
        return self.equal or len(self.releases)

    @property
    def sampled(self) -> bool:
        """Whether some release sees a Poisson sample instead of all records."""
        return any(r.rate < 1 for r in self.releases)

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of μ², in plan order."""
        total = math.fsum(r.share for r in self.releases)
        return tuple(r.share / total for r in self.releases)

    def sigmas(self, mu: float) -> tuple[float, ...]:
        """Noise multipliers σ_r = 1/(μ·√w_r), so that Σ 1/σ_r² = μ²: full passes compose so exactly
        (Dong, Roth and Su 2022, Corollary 3.3).
        """
        return tuple(1 / (mu * math.sqrt(w)) for w in self.shares)

    @property
    def coordinates(self) -> int:
        """An upper bound on how many noise samples the whole plan draws."""
        return sum(math.prod(r.shape) for r in self.releases)

    @property
    def largest(self) -> int:
        """Numbers in the largest answer."""
        return max(math.prod(r.shape) for r in self.releases)


def releases(plan: Plan, mu: float | None) -> list[dict[str, Any]]:
    """The plan's releases with their shares and noise multipliers (0 without noise), equal neighbours counted once."""
    sigmas = plan.sigmas(mu) if mu is not None else (0.0,) * len(plan.releases)
    rows = [(r.kind, r.shape, w, s, r.rate) for r, w, s in zip(plan.releases, plan.shares, sigmas, strict=True)]
    names = ("kind", "shape", "share", "sigma", "rate")
    return [{**dict(zip(names, row, strict=True)), "times": len(list(same))} for row, same in itertools.groupby(rows)]


class Oracle(Protocol):
    """The only door between records and solvers."""

    def release(self, query: "Query") -> np.ndarray:
        """The noised sum over all records of what `query` takes from each: float64, in the query's natural units."""
        ...
