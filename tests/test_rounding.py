"""How figures are rounded where people read them."""

from dpfc_cli import rounding
from dpfc_cli.heads.metrics import wilson


def test_an_accuracy_has_as_many_digits_as_its_test_set_carries() -> None:
    for hits, n, said, between in (
        (137, 150, "91 %", "85–95 %"),
        (903, 1_000, "90 %", "88–92 %"),
        (9_312, 10_000, "93.1 %", "92.6–93.6 %"),
        (935_000, 1_000_000, "93.50 %", "93.45–93.55 %"),
        (249, 250, "99 %", "97–100 %"),
        (150, 150, "100 %", "97–100 %"),
        (0, 150, "0 %", "0–3 %"),
        (1, 1, "100 %", "20–100 %"),
    ):
        assert rounding.accuracy(hits / n, wilson(hits, n), n) == (said, between)


def test_the_last_digit_is_worth_a_record_and_a_tenth_of_half_the_interval_at_least() -> None:
    sizes = (7, 150, 999, 20_000, 3_000_000)
    for n, hits in ((size, hits) for size in sizes for hits in {0, 1, size // 3, size // 2, size - 1, size}):
        low, high = wilson(hits, n)
        shown, ends = (each.removesuffix(" %") for each in rounding.accuracy(hits / n, (low, high), n))
        step = 10.0 ** -len(shown.partition(".")[2])
        assert step == 1 or step >= 100 * max(1 / n, (high - low) / 20) * (1 - 1e-6)
        assert abs(float(shown) - 100 * hits / n) <= step
        shown_low, shown_high = map(float, ends.split("–"))
        assert shown_low <= 100 * low + 1e-6
        assert shown_high >= 100 * high - 1e-6
        assert (shown in ("0", "100")) == (hits in (0, n)) or step < 1


def test_differences_are_in_points_with_their_ends_rounded_outwards() -> None:
    assert rounding.points(15 / 397, (0.00312, 0.0723), 397) == ("+3.8", "+0.3 to +7.3")
    assert rounding.points(-0.01, (-0.0311, 0.0109), 1000) == ("−1.0", "−3.2 to +1.1")
    assert rounding.points(0.0, (-0.0204, 0.0204), 185) == ("0.0", "−2.1 to +2.1")
    assert rounding.points(0.0123, (0.00897, 0.01563), 10_000) == ("+1.23", "+0.89 to +1.57")


def test_what_is_promised_is_rounded_to_the_side_that_promises_less() -> None:
    assert [rounding.at_most(each) for each in (0.50001, 0.5, 0.99999)] == ["50.1 %", "50.0 %", "100.0 %"]
    assert [rounding.at_least(each, 1) for each in (1.99, 2.0, 1234.56)] == ["1.9", "2.0", "1,234.5"]
    assert [rounding.rounded_up(each, 4) for each in (1.00001, 1.0, 0.1 + 0.2)] == ["1.001", "1", "0.3"]
    assert [rounding.rounded_down(each) for each in (10.0, 3.14159, 0.99999)] == ["10", "3.141", "0.9999"]
    assert rounding.rounded_down(12345.6) == "1.234e+04"
    assert [rounding.delta(each) for each in (1e-5, 1 / 300_000)] == ["1e-05", "3.34e-06"]


def test_what_was_spent_and_what_is_left_are_said_on_the_safe_side() -> None:
    assert rounding.cost(0.123411, 1 / 300_000) == "epsilon = 0.12342 at delta = 3.34e-06"
    assert rounding.left(0.12349, 1e-5) == "epsilon = 0.1234 at delta = 1e-05"
    assert rounding.left(None, 1e-5) == "nothing"
