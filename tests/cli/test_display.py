"""Tables as wide as a terminal, and progress where there is none: a line now and then for each stage."""

import io
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

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


NASTY = ["[bold]", "a]b", "[/bold]", "[", "\\[red]", "end\\", ":smile:", "[link=x]y[/link]", "{task.description}", "%s"]
"""Names that rich's markup, its emoji codes or a format could take for something else."""


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_shown_as_it_is_and_never_taken_for_markup(
    shown: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for width in (20, 80):
        for lines in (
            shown(width, display.table, name, (name, "n"), [(name, "1"), (name, "2")]),
            shown(width, display.table, name, ("class", name), [("a", name), ("b", name)], 2),
            shown(width, display.facts, name, [(name, name), ("b", name)]),
        ):
            assert sum(line.count(name) for line in lines) >= 3
    text = io.StringIO()
    monkeypatch.setattr(display, "err", Console(force_terminal=True, color_system=None, file=text, width=200))
    display.say(name)
    display.warn(name)
    display.fail(name, name)
    with display.meter(name, "records") as advance:
        advance(1, 2)
        advance(1, 2, "another")
        advance(1, 2, name)
    assert text.getvalue().count(name) >= 5


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\x07b"])
def test_a_name_gives_the_terminal_no_commands(
    shown: Callable[..., list[str]], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    display.table("Classes", ("class", "n"), [(name, "1")])
    display.warn(name.replace("\n", "\x1b"))
    written = capsys.readouterr()
    escaped = name.encode("unicode_escape").decode()
    assert escaped in written.out
    assert escaped.replace("\\n", "\\x1b") in written.err
    assert name not in written.out + written.err
    assert escaped in "".join(shown(80, display.table, "Classes", ("class", "n"), [(name, "1")]))


COLUMNS = ("when (UTC)", "adjacency", "head", "epsilon")
ROWS = [
    ("2026-11-21 09:58", "zero-out", "digits-scattering-dp-whitened-eps1", "12.0000"),
    ("2026-11-21 10:07", "zero-out", "digits-dp-ls-eps0.1", "0.1000"),
]
WIDTHS = pytest.mark.parametrize("width", [30, 40, 60, 61, 80, 120])


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The lines that `print_it(*arguments)` gives a terminal of so many columns."""

    def on_terminal(width: int, print_it: Callable[..., None], *arguments: object) -> list[str]:
        text = io.StringIO()
        console = Console(width=width, force_terminal=True, color_system=None, highlight=False, file=text)
        monkeypatch.setattr(display, "out", console)
        print_it(*arguments)
        return text.getvalue().splitlines()

    return on_terminal


@WIDTHS
def test_no_name_date_or_figure_of_a_table_is_broken(shown: Callable[..., list[str]], width: int) -> None:
    lines = shown(width, display.table, "Charged", COLUMNS, ROWS, 3)
    text = "\n".join(lines)
    assert "…" not in text
    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        for cell in row[:1] + row[2:]:
            assert cell in text or len(cell) > width
    together = any(all(cell in line for cell in (ROWS[0][0], *ROWS[0][2:])) for line in lines)
    assert together == (width >= 16 + 2 + 34 + 2 + 7)
    assert together or f"epsilon: {ROWS[0][3]}" in lines


def test_what_every_row_says_is_said_once_above_on_a_terminal_only(
    shown: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(*row[:3], "1.0000") for row in ROWS]
    title, alike, header, *_ = shown(80, display.table, "Charged", COLUMNS, rows, 3)
    assert (title, alike) == ("Charged", "adjacency: zero-out")
    assert header.split() == ["when", "(UTC)", "head", "epsilon"]
    assert "zero-out" in shown(80, display.table, "Charged", COLUMNS, rows[:1], 3)[-1]
    piped = Console(file=io.StringIO())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "out", piped)
        display.table("Charged", COLUMNS, rows, 3)
    assert capsys.readouterr().out.count("zero-out") == 2


def test_a_long_name_in_the_first_column_breaks_between_words(shown: Callable[..., list[str]]) -> None:
    rows = [("African hunting dog, hyena dog, Cape hunting dog", "50", "50.00%"), ("[/bold]", "5", "1.00%")]
    lines = shown(40, display.table, "Top-1 per class", ("class", "records", "top-1"), rows)
    names = [line[:23].strip() for line in lines[3:]]
    assert names == ["African hunting dog,", "hyena dog, Cape hunting", "dog", "[/bold]"]
    assert lines[3].endswith("50  50.00%")


@WIDTHS
def test_no_fact_is_cut_short(shown: Callable[..., list[str]], width: int) -> None:
    value = "epsilon = 1; ledger /home/somebody/a/rather/long/path/to/features/blobs.ledger.sqlite"
    lines = shown(width, display.facts, "Head", [("mean average precision", "1"), ("spent so far", value)])
    text = "".join(line.removeprefix("spent so far").strip(": ") for line in lines)
    assert value.replace(" ", "") in text.replace(" ", "")
    assert all(len(line) <= width for line in lines)
