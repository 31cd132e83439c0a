"""A document on a terminal and without one: names are shown as they are, tables are as wide as the screen."""

import io

import pytest
from rich.console import Console

from dpfc_cli.cli import display
from dpfc_cli.errors import UserError
from dpfc_cli.show import terminal
from dpfc_cli.show.document import Block, Document, Points, Rows, Section, Table, Words, page
from tests import instead


def shown(width: int | None, title: str, *blocks: Block) -> list[str]:
    """The lines that a terminal of so many columns shows; None: a file."""
    file, warnings = io.StringIO(), list[str]()
    looks = {"color_system": None, "highlight": False, "file": file}
    console = Console(width=width, force_terminal=True, **looks) if width else Console(file=file)  # type: ignore[arg-type]
    terminal.write(page(title, *blocks), console, warnings.append)
    return [*file.getvalue().splitlines(), *warnings]


NASTY = ["[bold]", "a]b", "[/bold]", "[", "\\[red]", "end\\", ":smile:", "[link=x]y[/link]", "{task.description}", "%s"]
"""Names that rich's markup, its emoji codes or a format could take for something else."""


@pytest.mark.parametrize("name", NASTY)
def test_a_name_is_shown_as_it_is_and_never_taken_for_markup(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for width in (40, 80):
        for lines in (
            shown(width, name, Table((name, "n"), [(name, "1"), (name, "2")])),
            shown(width, name, Table(("class", name), [("a", name), ("b", name)], 2)),
            shown(width, name, Rows([(name, name), ("b", name)])),
            shown(width, name, Words(name), Points([name])),
        ):
            assert sum(line.count(name) for line in lines) >= 3
    text = io.StringIO()
    instead.terminal(monkeypatch, 200, file=text)
    display.say(name)
    display.warn(name)
    display.fail(UserError(name, name))
    assert text.getvalue().count(name) >= 4


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\u202eb", "a\x07b"])
def test_a_name_gives_the_terminal_no_commands(capsys: pytest.CaptureFixture[str], name: str) -> None:
    display.warn(name.replace("\n", "\x1b"))
    written, escaped = capsys.readouterr().err, name.encode("unicode_escape").decode()
    assert escaped.replace("\\n", "\\x1b") in written
    assert name not in written
    for width in (None, 80):
        for block in (Table(("class", "n"), [(name, "1")]), Rows([(name, name)]), Words(name), Points([name])):
            text = "\n".join(shown(width, name, block))
            assert escaped in text
            assert name not in text


COLUMNS = ("when (UTC)", "adjacency", "head", "epsilon")
ROWS = [
    ("2026-11-21 09:58", "zero-out", "digits-scattering-dp-whitened-eps1", "12.0000"),
    ("2026-11-21 10:07", "zero-out", "digits-dp-ls-eps0.1", "0.1000"),
]
WIDTHS = pytest.mark.parametrize("width", [30, 40, 60, 61, 80, 120])


@WIDTHS
def test_a_table_fits_and_no_date_or_figure_of_it_is_broken(width: int) -> None:
    lines = shown(width, "Charged", Table(COLUMNS, ROWS, 3))
    text = "\n".join(lines)
    assert "…" not in text
    assert all(len(line) <= width for line in lines)
    for row in ROWS:
        assert all(part in text for cell in (row[0], row[3]) for part in cell.split())
    # What is not in the first column gives way, to 16 columns.
    together = any("2026-11-21" in line and "12.0000" in line for line in lines)
    assert together == (width >= 10 + 2 + 16 + 2 + 7)
    assert (ROWS[0][2] in text) == (width >= 61)


def test_what_every_row_says_is_said_once_above_on_a_terminal_only() -> None:
    rows = [(*row[:3], "1.0000") for row in ROWS]
    title, alike, header, *_ = shown(80, "Charged", Table(COLUMNS, rows, 3))
    assert (title, alike) == ("Charged", "adjacency: zero-out")
    assert header.split() == ["when", "(UTC)", "head", "epsilon"]
    assert "zero-out" in shown(80, "Charged", Table(COLUMNS, rows[:1], 3))[-1]
    assert "".join(shown(None, "Charged", Table(COLUMNS, rows, 3))).count("zero-out") == 2


def test_a_long_name_in_the_first_column_breaks_between_words() -> None:
    rows = [("African hunting dog, hyena dog, Cape hunting dog", "50", "50.00%"), ("[/bold]", "5", "1.00%")]
    lines = shown(40, "Top-1 per class", Table(("class", "records", "top-1"), rows))
    names = [line[:23].strip() for line in lines[3:]]
    assert names == ["African hunting dog,", "hyena dog, Cape hunting", "dog", "[/bold]"]
    assert lines[3].endswith("50  50.00%")


def test_what_is_copied_stays_whole_however_narrow_the_terminal_is() -> None:
    name = "clinic-persons-scattering-mean"
    row = (name, "ward of the north " * 3, "9", "1")
    for width in (66, 30, 20):
        text = "\n".join(shown(width, "", Table(("set", "population", "train", "epsilon"), [row], 2)))
        assert name in text
        assert ("epsilon: 1" in text) == (width < 66)
    assert "f" * 64 in shown(40, "", Rows([("SHA-256 of the file", "f" * 64)]))


@WIDTHS
def test_no_fact_is_cut_short(width: int) -> None:
    value = "epsilon = 1; ledger /home/somebody/a/rather/long/path/to/features/blobs.ledger.sqlite"
    lines = shown(width, "Head", Rows([("mean average precision", "1"), ("spent so far", value)]))
    text = "".join(line.removeprefix("spent so far").strip(": ") for line in lines)
    assert value.replace(" ", "") in text.replace(" ", "")
    assert all(len(line) <= width for line in lines)


def test_a_digest_is_not_broken_where_a_line_has_room_for_it() -> None:
    facts = Rows([("SHA-256 of the file", "f" * 64), ("claimed", "nothing")])
    assert "f" * 64 in shown(80, "", facts)
    assert "f" * 64 in shown(120, "", facts)[0]


def test_a_short_document_leaves_out_what_is_marked_and_says_how_many_rows_there_are() -> None:
    table = Table(("class", "how", "n"), [(str(i), "x", str(i)) for i in range(9)], 2, "Classes", few=2, more=("how",))
    facts, more = Rows([("a", "1")]), Rows([("b", "2")], full=True)
    whole = Document(
        title="All", sections=[Section("First", [facts, more, table]), Section("Second", [facts], full=True)]
    )
    assert whole.facts == {"a": "1", "b": "2"}
    [section] = whole.short.sections
    assert section.blocks == [facts, Table(["class", "n"], [["0", "0"], ["1", "1"]], 1, "Classes (2 of 9)")]
    assert whole.short.short == whole.short
