"""Progress where there is no terminal: a line now and then, with a rate and the time left, for each stage."""

import pytest

from dpfc_cli.cli import display


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which only the test moves on."""
    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_says_the_rate_and_the_time_left(clock, capsys):
    with display.meter("Extracting", "images") as advance:
        for second in range(1, 26):
            clock[0] = float(second)
            advance(100 * second, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "Extracting: 1,000 of 5,000 (100 images/s, 40 s left)",
        "Extracting: 2,000 of 5,000 (100 images/s, 30 s left)",
    ]


def test_every_stage_has_a_rate_of_its_own(clock, capsys):
    with display.stages("Opening", "B") as advance:
        clock[0] = 100.0
        advance("one.tar", 0, None)
        advance("two.tar", 0, 400_000_000)
        clock[0] = 110.0
        advance("two.tar", 200_000_000, 400_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "one.tar: 0.0 MB (0.0 MB/s)",
        "two.tar: 200.0 of 400.0 MB (20.0 MB/s, 10 s left)",
    ]
