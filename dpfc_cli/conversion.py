"""Between noise and ε, before there is a training."""

import math

from dpfc_cli.methods import METHODS
from dpfc_cli.privacy import accounting
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.structs import Json

_ANY = Facts(n=1, m=2, d=1)
"""The number of releases of a method does not depend on the facts."""


def epsilon_of(*, noise_multiplier: float, releases: int, delta: float) -> float:
    """ε at δ of equal releases over all records, exactly; infinity where it is too large (above 450). ValueError where
    a value is out of range.

    Args:
        noise_multiplier: σ, the standard deviation of the noise over the most that one record can change a release.
        releases: how many there are.
        delta: δ.

    Examples:
        epsilon_of(noise_multiplier=10, releases=11, delta=1e-5)  # 1.264

    """
    _check(releases)
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"a noise multiplier is a positive number, not {noise_multiplier:g}")
    return accounting.epsilon_for(accounting.mu_of_sigma(noise_multiplier, releases), delta)


def noise_multiplier_of(*, epsilon: float, releases: int, delta: float) -> float:
    """The noise multiplier with which equal releases cost ε at δ. ValueError where a value is out of range."""
    _check(releases)
    return math.sqrt(releases) / accounting.mu_for(epsilon, delta)


def _check(releases: int) -> None:
    if releases < 1:
        raise ValueError(f"there is at least one release, not {releases}")


def conversions(
    *, noise_multiplier: float | None, epsilon: float | None, deltas: tuple[float, ...], steps: int | None
) -> list[dict[str, Json]]:
    """For every method and δ: what the noise is worth, or what noise ε takes; and the same by the zCDP conversion.

    steps: of the methods that iterate; None: their defaults.
    """
    rows = []
    for method in METHODS.values():
        iterates = "steps" in method.declared
        planned = method.planned(_ANY, {"steps": steps} if steps else {}, True)
        releases = method.plan(_ANY, planned).count
        for delta in deltas:
            row = {"method": method.name, "steps": planned.steps if iterates else None, "releases": releases}
            rows.append({**row, "delta": delta, **_converted(noise_multiplier, epsilon, delta, releases)})
    return rows


def _converted(sigma: float | None, epsilon: float | None, delta: float, releases: int) -> dict[str, float]:
    if sigma is not None:
        zcdp = accounting.zcdp_epsilon(accounting.mu_of_sigma(sigma, releases), delta)
        exact = epsilon_of(noise_multiplier=sigma, releases=releases, delta=delta)
        return {"sigma": sigma, "epsilon": exact, "zcdp": max(zcdp, accounting.LEAST_EPSILON)}
    assert epsilon is not None
    exact = noise_multiplier_of(epsilon=epsilon, releases=releases, delta=delta)
    return {
        "epsilon": epsilon,
        "sigma": exact,
        "zcdp": math.sqrt(releases) / accounting.zcdp_mu(epsilon, delta),
    }
