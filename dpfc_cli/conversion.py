"""Between noise and ε, before there is a training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpfc_cli.errors import UserError, sentence
from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting, poisson
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.poisson import Sampled
from dpfc_cli.structs import Json

_ANY = Facts(n=1, m=2, d=1)
"""The number of releases of a method does not depend on the facts."""
_SAMPLES = METHODS["dp-sgd"]
"""A method that samples, whose releases are equal."""


@contextmanager
def _refused() -> Iterator[None]:
    """UserError where a value is out of range, or has no figure."""
    try:
        yield
    except ValueError as error:
        raise UserError(sentence(error), "Give another number.") from error


@_refused()
def epsilon_of(*, noise_multiplier: float, releases: int, delta: float, sampling_rate: float = 1.0) -> float:
    """ε at δ of equal releases; infinity where it is too large (above 450). UserError where a value is out of range.

    It is exact over all records, and an upper bound over Poisson samples, where an ε needs a σ of at least 0.2.

    Args:
        noise_multiplier: σ, the standard deviation of the noise over the most that one record can change a release.
        releases: how many there are.
        delta: δ.
        sampling_rate: the probability with which a record takes part in a release.

    Examples:
        epsilon_of(noise_multiplier=10, releases=11, delta=1e-5)  # 1.264

    """
    _check(releases, sampling_rate)
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"a noise multiplier is a positive number, not {noise_multiplier:g}")
    if sampling_rate == 1:
        return accounting.epsilon_for(accounting.mu_of_sigma(noise_multiplier, releases), delta)
    return poisson.epsilon_for([Sampled(sigma=noise_multiplier, rate=sampling_rate, times=releases)], 0.0, delta)


@_refused()
def noise_multiplier_of(*, epsilon: float, releases: int, delta: float, sampling_rate: float = 1.0) -> float:
    """The noise multiplier with which equal releases cost ε at δ: the inverse of `epsilon_of`, with its errors."""
    _check(releases, sampling_rate)
    if sampling_rate == 1:
        return math.sqrt(releases) / accounting.mu_for(epsilon, delta)
    given = {"steps": releases, "sampling_rate": sampling_rate}
    plan = _SAMPLES.plan(_ANY, _SAMPLES.planned(_ANY, given, True))
    return plan.sigmas(poisson.mu_for(plan, epsilon, delta))[0]


def _check(releases: int, sampling_rate: float) -> None:
    if releases < 1:
        raise ValueError(f"there is at least one release, not {releases}")
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"a sampling rate is above 0 and at most 1, not {sampling_rate:g}")


def conversions(
    *,
    noise_multiplier: float | None,
    epsilon: float | None,
    deltas: tuple[float, ...],
    steps: int | None,
    sampling_rate: float | None = None,
) -> list[dict[str, Json]]:
    """For every method and δ: what the noise is worth, or what noise ε takes; and the same by the zCDP conversion.

    steps: of the methods that iterate; None: their defaults. sampling_rate: there are rows of the methods that sample
    alone then, and zCDP has no figure for them.
    """
    rows = []
    for method in METHODS.values():
        if sampling_rate is not None and "sampling_rate" not in method.declared:
            continue
        iterates = "steps" in method.declared
        planned = method.planned(_ANY, {"steps": steps} if steps else {}, True)
        releases = method.plan(_ANY, planned).count
        for delta in deltas:
            row = {"method": method.name, "steps": planned.steps if iterates else None, "releases": releases}
            found = _converted(noise_multiplier, epsilon, delta, releases, sampling_rate or 1.0)
            rows.append({**row, "delta": delta, **found})
    return rows


def _converted(
    sigma: float | None, epsilon: float | None, delta: float, releases: int, rate: float
) -> dict[str, float | None]:
    of: dict[str, Any] = {"releases": releases, "delta": delta, "sampling_rate": rate}
    if sigma is not None:
        zcdp = max(accounting.zcdp_epsilon(accounting.mu_of_sigma(sigma, releases), delta), accounting.LEAST_EPSILON)
        found = {"sigma": sigma, "epsilon": epsilon_of(noise_multiplier=sigma, **of)}
    else:
        assert epsilon is not None
        zcdp = math.sqrt(releases) / accounting.zcdp_mu(epsilon, delta)
        found = {"epsilon": epsilon, "sigma": noise_multiplier_of(epsilon=epsilon, **of)}
    return {**found, "zcdp": zcdp if rate == 1 else None}
