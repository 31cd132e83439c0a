"""What a method is: a name, its options, and a few pure functions."""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np

from dpfc_cli.errors import conflict, parameter
from dpfc_cli.methods.linear import SQUARES, threads_for
from dpfc_cli.methods.options import Option, declared
from dpfc_cli.methods.unlabelled import Evidence
from dpfc_cli.options import Value
from dpfc_cli.privacy.chain import Chain
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.oracle import Mechanism, Oracle, Plan

Given = Mapping[str, Value]
"""Options that the user set, by name."""
Planned = TypeVar("Planned")
Options = TypeVar("Options")
PUBLISHED = "as_published"
RAW_CLIP = 0.005
"""The default clipping norm of gradients of raw features. It is the paper's, and smaller than almost every gradient."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A linear head without its card: scores are chain(x)·weight + bias. weight: d × m. bias: m. converged: whether a
    training that runs to the optimum reached it; None for other trainings. trusted: how far a public start was trusted
    for each class, m numbers from 0 to 1; None if there was none. evidence: what `unlabelled` needs; None where the
    method has none.
    """

    chain: Chain
    weight: np.ndarray
    bias: np.ndarray
    converged: bool | None = None
    trusted: np.ndarray | None = None
    evidence: Evidence | None = None


@dataclass(frozen=True, kw_only=True)
class Method(Generic[Planned, Options]):
    """One way to train a linear head.

    A training has four steps. Each is a function of public facts, of what the user gave, and of the step before:

    1. `planned(facts, given, private)`: the options that shape the plan (number of steps, split of the budget, …).
    2. `plan(facts, planned)`: which sums will be released, in which order, with which shares of the budget.
    3. `complete(facts, planned, mechanism, given)`: all options. Defaults may depend on the noise, which is now known
       (`mechanism`; None without noise).
    4. `solve(oracle, facts, options)`: asks the oracle for the planned sums and computes the head.

    Attributes:
        name: its name on the command line.
        title: its name in words.
        options: the dataclass of step 3, which extends the first one.
        planned: step 1.
        plan: step 2.
        complete: step 3.
        solve: step 4.
        copies: how many arrays of the shape of each answer `solve` keeps at once.
        runs_to_optimum: whether it runs to the optimum of its loss if there is no noise and no number of steps is
            given.
        public: the fields of its options that hold public knowledge: arrays that no user types.
        least_steps: with fewer steps no default learning rate is right on most sets.
        federated: a federation can train it: its plan does not depend on how many records there are.
        published: the options with which it is the method of its paper, word by word; None: there is none. What the
            paper tuned is left open.
        source: of a method of another package: that package, and the SHA-256 of its source.

    """

    name: str
    title: str
    options: type[Options]
    planned: Callable[[Facts, Given, bool], Planned]
    plan: Callable[[Facts, Planned], Plan]
    complete: Callable[[Facts, Planned, Mechanism | None, Given], Options]
    solve: Callable[[Oracle, Facts, Options], Solution]
    copies: int = 1
    runs_to_optimum: bool = False
    public: tuple[str, ...] = ()
    least_steps: int = 1
    federated: bool = False
    published: Given | None = None
    source: Mapping[str, str] | None = None

    @property
    def declared(self) -> dict[str, Option]:
        return declared(self.options)

    @property
    def grid(self) -> dict[str, tuple[float, ...]]:
        """What tuning tries: factors of the defaults, by option."""
        return {name: option.grid for name, option in self.declared.items() if option.grid}

    def defaults(self, facts: Facts, mu: float | None, given: Given) -> Options:
        """All options at that μ. None: without noise."""
        planned = self.planned(facts, given, mu is not None)
        noise = None if mu is None else Mechanism(facts=facts, plan=self.plan(facts, planned), mu=mu)
        return self.complete(facts, planned, noise, given)

    def taken(self, given: Given) -> dict[str, Value]:
        """The given options with plain Python values. With `as_published`, those of the paper, too, that are not given.

        Raises:
            UserError: the method does not have an option, or the value of an option is not valid.

        """
        known = self.declared
        if (given := dict(given)).pop(PUBLISHED, False):
            if self.published is None:
                what = f"{self.name} is of no paper, so {parameter(PUBLISHED)} has no effect."
                raise conflict(what, f"Choose another {parameter('method')}: those of Mehta et al. 2022.")
            given = {**self.published, **given}
        for name in given:
            if name not in known:
                raise conflict(
                    f"{parameter(name)} is no option of {self.name}.",
                    f"{self.name} has: {', '.join(map(parameter, known))}.",
                    method=self.name,
                )
        return {name: known[name].taken(name, value) for name, value in given.items()}

    def at_optimum(self, options: Options) -> bool:
        """Whether a training with these options runs to the optimum, and not for a number of steps."""
        return self.runs_to_optimum and getattr(options, "steps", None) is None

    def in_force(self, options: Options, private: bool) -> dict[str, Value]:
        """The values of the options that have an effect."""
        if private:
            used = self.declared
        elif self.at_optimum(options):
            used = {name: option for name, option in self.declared.items() if option.optimum}
        else:
            used = {name: option for name, option in self.declared.items() if not option.private}
        return {
            name: getattr(options, name)
            for name, option in used.items()
            if not (option.unless and getattr(options, option.unless))
        }


AnyMethod = Method[Any, Any]
"""A method, whatever its options are."""


def length(facts: Facts, given: Given) -> float:
    """The length of feature vectors that defaults are made for: 1 if they are clipped; √d if they are raw, because the
    coordinates of most backbones are of the size of 1. It is a guess: the features' real length is not public.
    """
    return math.sqrt(facts.d) if given.get("raw_features", False) else 1.0


def factors(method: AnyMethod, given: Given) -> list[dict[str, float]]:
    """Every point of the method's grid over the options that are not given."""
    open_options = {name: values for name, values in method.grid.items() if name not in given}
    return [dict(zip(open_options, point, strict=True)) for point in itertools.product(*open_options.values())]


def scaled(method: AnyMethod, facts: Facts, mu: float, given: Given, point: Mapping[str, float]) -> dict[str, Value]:
    """The given options and those of a point of the grid, as values, for a training of that μ. point: a factor for each
    tuned option. The value is the factor times the default, rounded to four digits.
    """
    defaults = method.defaults(facts, mu, given)
    return {**given, **{name: float(f"{getattr(defaults, name) * factor:.4g}") for name, factor in point.items()}}


def state_bytes(method: AnyMethod, plan: Plan) -> int:
    """The bytes of the largest state of a training, from the plan alone, at 8 bytes a number.

    This is what the method keeps, plus the larger of two needs: to make the largest answer (its exact sum and its
    noise), or to decompose square matrices (their copies and the workspace of LAPACK).
    """
    kept = method.copies * sum(held for _, held in {(r.shape, r.held) for r in plan.releases})
    sides = [(r.shape[-1], len(r.shape) > 2) for r in plan.releases if r.shape[-1] == r.shape[-2]]
    square = max((SQUARES * side**2 * (threads_for(side) if many else 1) for side, many in sides), default=0)
    return 8 * (kept + max(2 * plan.largest, square))


def chosen(options: type, given: Given, computed: Given) -> dict[str, Value]:
    """Values for the fields of an options class: the given value if there is one, otherwise the computed value."""
    names = {each.name for each in fields(options)}
    return {name: value for name, value in {**computed, **given}.items() if name in names}
