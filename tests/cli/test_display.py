"""Progress where there is no terminal: a line now and then for each stage."""

import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpfc_cli.cli import display
from dpfc_cli.privacy import curator, forms, sums
from dpfc_cli.privacy.chain import Clip
from dpfc_cli.privacy.curator import Unprotected
from dpfc_cli.privacy.directions import InMemory
from dpfc_cli.privacy.facts import Facts
from dpfc_cli.privacy.noise import SeededBits
from dpfc_cli.privacy.oracle import MAKING, TAKING, Mechanism
from dpfc_cli.privacy.queries import ClassGrams, Gram
from tests.support import plan_of, stream_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which only the test moves on."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_says_the_rate_and_the_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with display.meter("Extracting", "images") as advance:
        for second in range(1, 26):
            clock[0] = float(second)
            advance(100 * second, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "Extracting: 1,000 of 5,000 (100 images/s, 40 s left)",
        "Extracting: 2,000 of 5,000 (100 images/s, 30 s left)",
    ]


def test_every_stage_has_a_rate_of_its_own(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_stage_may_count_in_a_unit_of_its_own(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with display.stages("weights", lambda stage: "B" if stage == "weights" else "images") as advance:
        for stage in ("weights", "Extracting"):
            advance(stage, 0, 2_000_000)
            clock[0] += 10.0
            advance(stage, 1_000_000, 2_000_000)
    assert capsys.readouterr().err.splitlines() == [
        "weights: 1.0 of 2.0 MB (0.1 MB/s, 10 s left)",
        "Extracting: 1,000,000 of 2,000,000 (100,000 images/s, 10 s left)",
    ]


def test_the_rate_is_that_of_the_last_half_minute(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    """The first gradient of a training takes longer than the others, and answers that were kept come at once."""
    with display.meter("Training", "records") as advance:
        for second in range(1, 101):
            clock[0] = float(second)
            advance(second if second <= 50 else 50 + 10 * (second - 50), 1050)
    shown = capsys.readouterr().err.splitlines()
    assert shown[4] == "Training: 50 of 1,050 (1 records/s, 1,000 s left)"
    assert shown[8] == "Training: 450 of 1,050 (10 records/s, 60 s left)"


SECONDS = {"record": 0.04, "sum": 0.3, "noise": 1.5, "solved": 4.0}
"""What the work of a made-up training takes. Nothing of it is in proportion to the records that were read."""


@pytest.mark.parametrize("shelf", [None, InMemory()], ids=["nothing is kept", "vectors are kept"])
def test_the_time_left_of_a_training_in_pieces_is_true_from_a_third_of_each_stage_on(
    shelf: InMemory | None, clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "LINE_EVERY", 0.0)
    monkeypatch.setattr(forms, "PIECE_BYTES", 8 * 2 * 4**2)
    monkeypatch.setattr("dpfc_cli.privacy.passes.block_rows", lambda facts: 64)
    n, m, whole = 500, 40, ClassGrams((Clip(1.0),))
    facts = Facts(n=n, m=m, d=4)
    x, y = np.ones((n, 4), np.float32), (np.arange(n) % m).astype(np.int32)

    def took(what: str, count: int = 1) -> None:
        clock[0] += count * SECONDS[what]

    def stream(rows: int) -> Iterator[tuple[Any, ...]]:
        for block in stream_of(x, y)(rows):
            took("record", len(block[1]))
            yield block

    draw, add = curator.draw_noise, sums._class_grams
    monkeypatch.setattr(curator, "draw_noise", lambda *given: (took("noise"), draw(*given))[1])
    monkeypatch.setattr(sums, "_class_grams", lambda *given: (took("sum"), add(*given))[1])
    mechanism = Mechanism(facts=facts, plan=plan_of(facts, (Gram((Clip(1.0),)), 0.5), (whole, 0.5)), mu=1.0)
    truth: list[tuple[str, float]] = []
    with display.stages("Training", "records") as advance:

        def told(stage: str, done: int, total: int) -> None:
            truth.append((stage, clock[0]))
            advance(stage, done, total)

        oracle = curator.Curator(mechanism, Unprotected(stream), SeededBits(0), told, shelf)
        oracle.release(Gram((Clip(1.0),)))
        for _ in oracle.pieces(whole):
            took("solved")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(truth)
    for stage in ("gram", "class_grams", MAKING, TAKING):
        mine = [i for i, (each, _) in enumerate(truth) if each == stage]
        for i in mine[len(mine) // 3 : -1]:
            left = truth[mine[-1]][1] - truth[i][1]
            found = re.search(r"([\d,]+) s left", lines[i])
            assert found is not None
            assert left / 1.5 - 1 <= float(found[1].replace(",", "")) <= left * 1.5 + 1


def test_what_an_earlier_run_has_done_is_in_no_rate(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with display.stages("Loading", "pictures") as advance:
        advance("Predicting", 5_000, 10_000)
        clock[0] = 10.0
        advance("Predicting", 6_000, 10_000)
    assert capsys.readouterr().err.splitlines() == ["Predicting: 6,000 of 10,000 (100 pictures/s, 40 s left)"]


def test_quiet_leaves_out_remarks_and_progress_and_keeps_warnings_and_errors(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display, "quiet", True)
    with display.meter("Extracting", "images") as advance:
        clock[0] = 100.0
        advance(1, 2)
    display.say("a remark")
    display.warn("a warning")
    display.fail("an error", "a remedy")
    assert capsys.readouterr().err.splitlines() == ["Warning: a warning", "Error: an error", "a remedy"]
