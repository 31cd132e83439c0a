"""How figures are rounded where people read them: on a terminal, in a table, in a report and in a statement.

What says how much privacy was spent is rounded up. Accuracies have no more digits than their records carry.
"""

import math

FINEST = 2
"""The most decimals of a percentage."""


def epsilon(value: float) -> str:
    """ε: rounded up to five digits, ∞ where e^ε is beyond float64, and a bound where it is no more than the least that
    the accounting answers. The 1e-9 of it by which the accounting errs on the private side does not count.
    """
    if value >= 700:
        return "∞"
    return "≤ 0.0001" if value <= 1e-4 else rounded_up(value * (1 - 1.1e-9), 5)


def sigma(value: float) -> str:
    """The noise multiplier that an ε takes: rounded up to six digits, so that it is enough."""
    return rounded_up(value * (1 - 1.1e-9), 6)


def delta(value: float) -> str:
    return rounded_up(value, 3)


def rounded_up(value: float, digits: int) -> str:
    """An ε or a δ as text, of so many digits. It is rounded up, except for a difference that float64 cannot
    represent.
    """
    exponent = digits - 1 - math.floor(math.log10(value))
    return f"{math.ceil(value * (1 - 1e-12) * 10.0**exponent) / 10.0**exponent:.{digits}g}"


def rounded_down(value: float, digits: int = 4) -> str:
    """The noise of a release, or the ε that is left, as text of so many digits: not more than there is, except for a
    difference that float64 cannot represent.
    """
    exponent = digits - 1 - math.floor(math.log10(value))
    return f"{math.floor(value * (1 + 1e-12) * 10.0**exponent) / 10.0**exponent:.{digits}g}"


def cost(spent: float, delta_spent: float) -> str:
    """What was spent, in a sentence: 'epsilon = 0.5 at delta = 1e-05'."""
    return f"epsilon = {epsilon(spent)} at delta = {delta(delta_spent)}"


def left(largest: float | None, at: float) -> str:
    """What a cap leaves at a δ, in a sentence: 'epsilon = 0.2071 at delta = 1e-05', or 'nothing'."""
    return f"epsilon = {rounded_down(largest)} at delta = {rounded_down(at, 3)}" if largest else "nothing"


def at_least(value: float, decimals: int) -> str:
    """A figure that must not look larger than it is: rounded down."""
    return f"{math.floor(value * 10**decimals) / 10**decimals:,.{decimals}f}"


def at_most(fraction: float, decimals: int = 1) -> str:
    """A bound in percent: rounded up."""
    scale = 10**decimals
    return f"{min(math.ceil(100 * scale * fraction) / scale, 100):.{decimals}f} %"


def percentage(fraction: float, n: int, interval: tuple[float, float] | None = None, more: int = 0) -> str:
    """A fraction of n records in percent, with no more digits than the records carry: '91 %', '93.1 %'.

    This is the one rule for the figures of an evaluation. The last digit shown is worth

    - one record or more, for a fraction of n records is known to 1/n;
    - a tenth of half the 95 % interval or more, for a finer digit would change from one test set to the next;
    - 0.01 % or more, and 1 % or less.

    So 150 records give no decimals, and 10,000 give one. Only a fraction of 0 or 1 is shown as 0 % or 100 %.

    more: digits beside these, where fractions of the same records are compared.
    """
    decimals = _decimals(n, interval) + more
    step = 10.0**-decimals
    shown = round(100 * fraction, decimals)
    if 0 < fraction < 1:
        shown = min(max(shown, step), 100 - step)
    return f"{shown:.{decimals}f} %"


def interval(found: tuple[float, float], n: int) -> str:
    """A 95 % interval with the decimals of `percentage`, its ends rounded outwards: '86–95 %'."""
    decimals = _decimals(n, found)
    low, high = _outwards(found, decimals)
    return f"{low:.{decimals}f}–{high:.{decimals}f} %"


def points(gain: float, found: tuple[float, float], n: int) -> tuple[str, str]:
    """A difference of two fractions of n records in points of a percent, and its interval, the ends rounded outwards.

    It has a digit more than `percentage` gives, so that it is seen on which side of 0 an end is.
    """
    decimals = _decimals(n, found) + 1
    said, low, high = (_signed(each, decimals) for each in (100 * gain, *_outwards(found, decimals)))
    return said, f"{low} to {high}"


def accuracy(fraction: float | None, ends: tuple[float, float] | None, n: int) -> tuple[str, str]:
    """A fraction of n records and its 95 % interval, for a table; a dash for what is not known."""
    n = max(n, 1)
    if ends is None:
        return "–", "–"
    return "–" if fraction is None else percentage(fraction, n, ends), interval(ends, n)


def area(value: float | None, ends: tuple[float, float], n: int) -> tuple[str, str]:
    """An AUROC of n records and its 95 % interval, as fractions of 1: '0.93' and '0.90–0.96'. See `percentage`."""
    n = max(n, 1)
    low, high = interval(ends, n)[:-2].split("–")
    decimals = len(low.partition(".")[2]) + 2
    said = "–" if value is None else f"{float(percentage(value, n, ends)[:-2]) / 100:.{decimals}f}"
    return said, f"{float(low) / 100:.{decimals}f}–{float(high) / 100:.{decimals}f}"


def area_with_interval(value: float | None, ends: tuple[float, float], n: int) -> str:
    """`area` in a sentence."""
    shown, between = area(value, ends, n)
    return f"{shown} (95 % interval {between})"


def with_interval(fraction: float | None, ends: tuple[float, float] | None, n: int) -> str:
    """`accuracy` in a sentence: '91 % (95 % interval 86–95 %)'."""
    shown, between = accuracy(fraction, ends, n)
    return f"{shown} (95 % interval {between})"


def _outwards(found: tuple[float, float], decimals: int) -> tuple[float, float]:
    """The ends of an interval in percent. What a float64 cannot tell from a round number is that number."""
    scale = 10**decimals
    return math.floor(100 * found[0] * scale + 1e-9) / scale, math.ceil(100 * found[1] * scale - 1e-9) / scale


def _signed(value: float, decimals: int) -> str:
    shown = f"{abs(value):.{decimals}f}"
    return shown if not float(shown) else f"{'−' if value < 0 else '+'}{shown}"


def _decimals(n: int, interval: tuple[float, float] | None) -> int:
    low, high = interval or (0, 0)
    coarsest = 100 * max(1 / n, (high - low) / 2 / 10)
    return max(d for d in range(FINEST + 1) if d == 0 or 10.0**-d >= coarsest * (1 - 1e-9))
