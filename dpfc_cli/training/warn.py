"""What public facts say will go badly, before anything is spent."""

import math

from dpfc_cli.training.calibrate import Calibrated

WIDE = 8_192
"""Dimensions from which decomposing a Gram matrix takes minutes to hours."""

CLEAR = 2.0
"""Where a class has less signal than so many times the noise, a poor head is to be expected."""


def warnings_of_width(d: int) -> list[str]:
    """What so many dimensions mean."""
    if d <= WIDE:
        return []
    return [
        f"{d:,} dimensions make a Gram matrix of {8 * d**2 / 1e9:.1f} GB. After the last pass its decomposition takes "
        "long. Fewer dimensions (extract with mean pooling) are faster and lose less to noise."
    ]


def signal_and_noise(calibrated: Calibrated) -> tuple[float, float]:
    """A class mean of vectors of length 1 stands for n/m records; the noise in one release of it has length √d/μ."""
    facts, guarantee = calibrated.facts, calibrated.guarantee
    assert guarantee is not None
    return facts.n / facts.m, math.sqrt(facts.d) / guarantee.mu


def warnings_of(calibrated: Calibrated) -> list[str]:
    """What will go badly in this training."""
    facts, guarantee, said = calibrated.facts, calibrated.guarantee, warnings_of_width(calibrated.facts.d)
    if guarantee is None:
        return said
    if guarantee.delta > 1 / facts.n:
        said.append(
            f"delta = {guarantee.delta:g} is larger than 1/n = {1 / facts.n:.2g}: a mechanism that publishes all of "
            f"one {facts.unit} would satisfy it."
        )
    signal, noise = signal_and_noise(calibrated)
    length = f"{noise:,.0f}" if noise < 1e9 else f"{noise:.3g}"
    if signal < CLEAR * noise:
        said.append(
            f"the noise hides the classes: a class has less than {CLEAR:g} times as much signal as there is noise "
            f"(about {signal:,.0f} {facts.unit}s against noise of length {length}, with {facts.d} dimensions at "
            f"epsilon = {guarantee.epsilon:g}). {_expected(calibrated)}"
        )
    return said


def _expected(calibrated: Calibrated) -> str:
    """What a training can do if noise hides the classes."""
    if "public_head" not in calibrated.method.public:
        return "Expect a poor head. More records, fewer dimensions or a larger epsilon help."
    if calibrated.options.public_head is None:
        return "Expect a poor head. More records, fewer dimensions, a larger epsilon or a public start help."
    return "Expect a head that is little better than its start."
