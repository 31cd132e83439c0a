"""Progress where there is no terminal: a line now and then for each stage."""

import time

import pytest

from dpfc_cli.cli import display


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which only the test moves on."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_says_the_rate_and_the_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with display.stages("Extracting", "images") as advance:
        for second in range(1, 26):
            clock[0] = float(second)
            advance("Extracting", 100 * second, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "Extracting: 1,000 of 5,000 (100 images/s, 40 s left)",
        "Extracting: 2,000 of 5,000 (100 images/s, 30 s left)",
    ]


def test_the_rate_is_that_of_the_last_half_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """The first gradient of a training takes longer than the others, and answers that were kept come at once."""
    with display.stages("Training", "records") as advance:
        for second in range(1, 101):
            clock[0] = float(second)
            advance("Training", second if second <= 50 else 50 + 10 * (second - 50), 1050)
    shown = capsys.readouterr().err.splitlines()
    assert shown[4] == "Training: 50 of 1,050 (1 records/s, 1,000 s left)"
    assert shown[8] == "Training: 450 of 1,050 (10 records/s, 60 s left)"


def test_what_an_earlier_run_has_done_is_in_no_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with display.stages("Loading", "pictures") as advance:
        advance("Predicting", 5_000, 10_000)
        clock[0] = 10.0
        advance("Predicting", 6_000, 10_000)
    assert capsys.readouterr().err.splitlines() == ["Predicting: 6,000 of 10,000 (100 pictures/s, 40 s left)"]
