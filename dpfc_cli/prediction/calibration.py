"""A temperature: one number that makes the probabilities of a head mean what they say.

The scores of a head are divided by it, and the order of the classes stays. It is the number with the least mean
negative log-likelihood on labelled records (Guo et al. 2017, "On Calibration of Modern Neural Networks"). It is a
function of these records, without noise. So they must be public. Where there is none, probabilities are not calibrated:
noise and clipping change how large the scores are.
"""

from dataclasses import dataclass

import numpy as np

from dpfc_cli.errors import conflict, missing, parameter, quoted
from dpfc_cli.features.reader import FeatureSet
from dpfc_cli.heads.head import Head, made_otherwise, misfit
from dpfc_cli.ledger.public import check_public

ROWS = 4096
MOST = 50_000_000
"""Numbers of scores that are held. More records are not needed for one number."""
LEAST_LOG, MOST_LOG = -12.0, 12.0
"""Where the logarithm of the temperature is looked for."""


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A temperature, and what it was fitted on: n labelled records of a split of the set of that name. warnings: for
    whoever reads the probabilities.
    """

    temperature: float
    name: str
    split: str
    n: int
    warnings: tuple[str, ...]


def fit(head: Head, on: FeatureSet) -> Temperature:
    """Fit the temperature of a head on public labelled features: on the test split of the set if it has one. UserError:
    the set is private, as far as can be seen; it does not fit the head; or it has no label.
    """
    split = "test" if "test" in on.splits else next(iter(on.splits))
    warnings = _check(head, on)
    on.verify(split)
    several = head.several_labels
    m = len(head.classes)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    n = 0
    for _, x, y in on.stream(split)(ROWS):
        known = (y >= 0).any(axis=1) & np.isfinite(x).all(axis=1)
        if known.any():
            kept.append((head.scores(x[known]), (y[known][:, :, None] == np.arange(m)).any(axis=1)))
            n += int(known.sum())
        if n * m >= MOST:
            break
    if not n:
        raise missing(
            f"No record of the split '{split}' of '{on.folder}' has a label.",
            f"Name a set of public records with labels: {parameter('calibrate_on')}.",
        )
    scores, right = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return Temperature(
        temperature=fitted_temperature(scores, right, several),
        name=on.name,
        split=split,
        n=n,
        warnings=warnings,
    )


def fitted_temperature(scores: np.ndarray, right: np.ndarray, several: bool) -> float:
    """The temperature with the least mean negative log-likelihood. right: n × m as the scores, whether the class is a
    label of the record. several: whether a record may have several.
    """
    from scipy.optimize import minimize_scalar

    def loss(logarithm: float) -> float:
        scaled = scores * np.exp(-logarithm)
        if several:
            return float(np.logaddexp(0.0, np.where(right, -scaled, scaled)).mean())
        top = scaled.max(axis=1, keepdims=True)
        whole = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        # With one label a record has one class that is right.
        return float((whole - (scaled * right).sum(axis=1)).mean())

    # It is convex in the inverse of the temperature, so it has one minimum on this axis, too.
    found = minimize_scalar(loss, bounds=(LEAST_LOG, MOST_LOG), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(found.x))


def _check(head: Head, on: FeatureSet) -> tuple[str, ...]:
    """Refuse private records, and features that do not fit. Returns what to beware of."""
    check_public(on, "calibrate_on", card=head.card)
    wrong = misfit(head, on)
    if wrong is not None:
        raise conflict(
            f"{quoted(on.folder)} does not fit the head. {wrong}",
            f"Extract public pictures with the backbone of the head and its classes: {parameter('calibrate_on')}.",
        )
    return made_otherwise(head, on, "the temperature")
