"""What a query sees of a record: its features and labels as arrays, and what a linear classifier computes of them.

Everything here is computed for each record by itself.
"""

from types import ModuleType
from typing import Literal

from dpfc_cli.privacy.chain import Array, Chain, norms, run

Loss = Literal["sigmoid", "softmax"]
NO_LABEL = -1
"""Stands for "no label". A record with no other label is the null record, which adds nothing to any sum."""


def prepare(x: Array, labels: Array, m: int, xp: ModuleType) -> tuple[Array, Array, Array]:
    """Turn raw records (features, B × d, and labels, B × k, `NO_LABEL` for "none") into what the queries take.

    A record is null in each of three cases: it has no label; it has a label outside −1..m−1; one of its features is NaN
    or infinite. (Padding and records outside a sample are given no label, so they are null too.) The features of a null
    record are replaced by zeros before they meet anything else. Labels are a set: a class that occurs twice counts
    once.

    Returns the features (B × d, float32), the label rows (B × m, float64 zeros and ones) and the mask of records that
    are not null (B × 1, bool).
    """
    x = x.astype(xp.float32)
    known = xp.all((labels >= NO_LABEL) & (labels < m), axis=-1) & xp.any(labels >= 0, axis=-1)
    valid = (known & xp.all(xp.isfinite(x), axis=-1))[:, None]
    return xp.where(valid, x, xp.float32(0)), label_rows(xp.where(valid, labels, NO_LABEL), m, xp), valid


def label_rows(labels: Array, m: int, xp: ModuleType) -> Array:
    """Labels (B × k) as rows of m zeros and ones; float64. `NO_LABEL` sets nothing."""
    return xp.any(labels[:, :, None] == xp.arange(m), axis=1).astype(xp.float64)


def of_subgroups(y: Array, count: int, xp: ModuleType) -> tuple[Array, Array]:
    """Label rows of m classes in each of some subgroups, B × (count·m): a 1 for the subgroup of each record, B × count,
    and its label rows there, B × m. A record with labels in several subgroups is in the first of them alone.
    """
    rows = y.reshape(len(y), count, -1)
    first = xp.argmax(xp.any(rows > 0, axis=-1), axis=-1)[:, None] == xp.arange(count)
    return first.astype(xp.float64), xp.sum(xp.where(first[:, :, None], rows, 0.0), axis=1)


def inputs(chain: Chain, constant: float, x: Array, xp: ModuleType, radius: float | None = None) -> Array:
    """The input of the linear head for each record, B × d, float32 and finite: chain(x), followed by a constant feature
    for the bias (0 for none). B × d or B × (d + 1), float64. radius: the length that every row is scaled to; None
    leaves the rows as they are.
    """
    z = run(chain, x, xp)
    if constant:
        z = xp.concatenate([z, xp.full_like(z[:, :1], constant)], axis=-1)
    if radius is not None:
        length = norms(z, xp)
        z = z * (radius / xp.where(length > 0, length, 1.0))
    return z


def standing(scores: Array, several: bool, xp: ModuleType) -> Array:
    """Where each class stands with a record: r/(1 + r), with r the fourth root of its odds p/(1 − p). B × m, in [0, 1].

    It has the order of the probabilities p, and 1/2 for 1/2. It spreads out those that are near 0 and 1.

    scores: B × m, float64. several: whether a record may have several labels. Each class then has the logistic function
    of its score as p; otherwise p is the softmax.
    """
    # So large that differences do not overflow.
    s = xp.clip(xp.nan_to_num(scores, nan=-1e300), -1e300, 1e300)
    if several:
        own, rest = xp.exp(xp.minimum(s, 0.0)), xp.exp(-xp.maximum(s, 0.0))
    else:
        own = xp.exp(s - xp.max(s, axis=-1, keepdims=True))
        best = xp.arange(s.shape[-1]) == xp.argmax(s, axis=-1)[:, None]
        # Where a difference would lose all digits the others are added up.
        others = xp.sum(xp.where(best, 0.0, own), axis=-1, keepdims=True)
        rest = xp.where(best, others, xp.maximum(others + 1.0 - own, 1.0))
    own, rest = xp.sqrt(xp.sqrt(own)), xp.sqrt(xp.sqrt(rest))
    return own / (own + rest)


def probabilities(logits: Array, loss: Loss, xp: ModuleType) -> Array:
    """Class probabilities of logits, B × m, float32. They are finite and in [0, 1] for all logits, NaN and infinities
    included. loss: "sigmoid": each class by itself. "softmax": the probabilities of a record sum to 1.
    """
    logits = xp.clip(xp.nan_to_num(logits, nan=0.0), -1e6, 1e6)
    if loss == "softmax":
        odds = xp.exp(xp.maximum(logits - xp.max(logits, axis=-1, keepdims=True), -80.0))
        return odds / xp.sum(odds, axis=-1, keepdims=True)
    return 1 / (1 + xp.exp(xp.clip(-logits, -60.0, 60.0)))
