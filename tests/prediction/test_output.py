"""Rows in files: whole or not there, safe to open, and going on where they were stopped."""

import csv
import fcntl
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpfc_cli import predict
from dpfc_cli.prediction import output
from dpfc_cli.prediction.output import Row, line
from dpfc_cli.prediction.predict import PREDICTING, Predictions
from tests.prediction.conftest import COUNT, Scene, features_of
from tests.support import refuses


def row(name: str, best: str = "flu", error: str | None = None) -> Row:
    return Row(name=name, classes=() if error else (best,), probabilities=() if error else (0.25,), error=error)


class Slowly:
    """Predictions that are made three at a time, and stopped before block number `stop_at`."""

    def __init__(self, found: Predictions, stop_at: int | None = None) -> None:
        self.found, self.stop_at, self.made = found, stop_at, 0
        self.top = found.top

    def blocks(self, start: int = 0) -> Generator[list[Row], None, None]:
        rows = [each for block in self.found.blocks(start) for each in block]
        for at in range(0, len(rows), 3):
            if self.made == self.stop_at:
                raise KeyboardInterrupt
            self.made += 1
            yield rows[at : at + 3]

    def save(self, path: Path, identity: str = "same") -> output.Saved:
        return output.save(self.blocks, self.top, path, None, lambda: [identity])


@pytest.fixture
def found(digits: Scene) -> Predictions:
    x = features_of(digits.features).astype(np.float32)
    x[4, 0] = np.nan
    return predict(digits.head, x, top=2)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_that_was_stopped_again_and_again_ends_with_the_same_bytes(
    found: Predictions, tmp_path: Path, form: str
) -> None:
    whole = tmp_path / f"whole.{form}"
    found.save(whole)
    path, resumed = tmp_path / f"found.{form}", []
    for _ in range(COUNT):
        try:
            saved = Slowly(found, stop_at=2).save(path)
            break
        except KeyboardInterrupt as stopped:
            said = stopped.__notes__
        assert not path.exists()
        assert "The same command resumes" in said[0]
        [partial] = tmp_path.glob(f"found.{form}.*.partial")
        # A kill may leave half a line.
        lines = partial.read_bytes()
        partial.write_bytes(lines + lines[-20:-1])
        partial.chmod(0o644)
        resumed.append(lines.count(b"\n"))
    assert resumed == [6 * i + (form == "csv") for i in range(1, COUNT // 6)]
    assert path.read_bytes() == whole.read_bytes()
    assert (saved.rows, saved.errors, saved.resumed) == (COUNT, 1, COUNT - 6)
    assert not list(tmp_path.glob("*.partial"))
    assert path.stat().st_mode & 0o777 == 0o600


def test_rows_of_others_are_not_gone_on_with(found: Predictions, tmp_path: Path) -> None:
    path = tmp_path / "found.csv"
    with pytest.raises(KeyboardInterrupt):
        Slowly(found, stop_at=2).save(path)
    [partial] = tmp_path.glob("*.partial")
    with partial.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with refuses("busy"):
            Slowly(found).save(path)
    (tmp_path / "other").hardlink_to(partial)
    before = partial.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        Slowly(found, stop_at=3).save(path)
    assert (tmp_path / "other").read_bytes() == before != partial.read_bytes()
    # Another prediction begins a file of its own.
    assert Slowly(found).save(path, "another").resumed == 0


def begun(folder: Path, *given: Any, **others: Any) -> int:
    """How many files were begun in a folder, with that of a prediction that is stopped before its first row."""

    def stop(stage: str, *_: object) -> None:
        if stage == PREDICTING:
            raise KeyboardInterrupt

    found = predict(*given, **others, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        found.save(folder / "found.csv")
    return len(list(folder.glob("*.partial")))


def test_what_a_file_was_made_of_is_head_source_and_options(digits: Scene, tmp_path: Path) -> None:
    x, head = features_of(digits.features), digits.head
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "other.npy", x[:, ::-1])
    lists = [tmp_path / "all.txt", tmp_path / "more.txt"]
    paths = sorted(map(str, digits.photos.rglob("*.png")))
    for i, each in enumerate(lists):
        each.write_text("\n".join(paths[: 5 + i]))
    for i, source in enumerate((tmp_path / "x.npy", tmp_path / "other.npy", digits.features, x, *lists, digits.photos)):
        assert begun(tmp_path, head, source) == i + 1
    assert begun(tmp_path, head, tmp_path / "x.npy", top=2) == i + 2
    assert begun(tmp_path, replace(head, weight=head.weight + 1), tmp_path / "x.npy") == i + 3
    assert begun(tmp_path, head, tmp_path / "x.npy") == i + 3, "that of the first one"


def test_a_picture_that_was_exchanged_makes_another_source(digits: Scene, tmp_path: Path) -> None:
    listed = tmp_path / "list.txt"
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    listed.write_text("\n".join(map(str, pictures)))
    pictures[0].write_bytes((digits.photos / "low" / "000.png").read_bytes())
    assert begun(tmp_path, digits.head, listed) == begun(tmp_path, digits.head, listed) == 1
    pictures[1].write_bytes(b"it was missing")
    assert begun(tmp_path, digits.head, listed) == 2


def test_all_formats_have_the_same_rows(found: Predictions, tmp_path: Path) -> None:
    for form in output.FORMATS:
        saved = found.save(tmp_path / f"found.{form}")
        assert (saved.rows, saved.errors) == (COUNT, 1)
    with (tmp_path / "found.csv").open(newline="") as file:
        as_csv = list(csv.DictReader(file))
    as_json = [json.loads(text) for text in (tmp_path / "found.jsonl").read_text().splitlines()]
    as_parquet = pq.read_table(tmp_path / "found.parquet").to_pylist()
    columns = ["name", "class", "probability", "class_2", "probability_2", "error"]
    for one, two, three in zip(as_csv, as_json, as_parquet, strict=True):
        assert list(one) == list(two) == list(three) == columns
        assert one == {name: "" if value is None else str(value) for name, value in two.items()}
        assert two == three
    assert as_json[4]["class"] is None
    assert [each.error is None for each in found] == [each["error"] is None for each in as_json]


def test_no_cell_is_a_formula() -> None:
    for text in ("=cmd|'/c calc'!A1", "+1", "-1", "@SUM(A1)", "＝1", " =1", "\t=1", "\r=1"):
        for given in (row(text), row("a", text), row("a", error=text)):
            [cells] = csv.reader([line(given, "csv", 1)])
            assert not any(cell.lstrip().startswith(("=", "+", "-", "@", "＝")) for cell in cells)
            assert any(text.strip() in cell for cell in cells)
            # JSON has the names as they are.
            assert text in json.loads(line(given, "jsonl", 1)).values()


def test_no_name_breaks_a_line_or_a_cell_or_commands_a_terminal(tmp_path: Path) -> None:
    name = 'a,"b";c\n\x1b[2J\x7f\u202e\udcff|d'
    text = line(row(name), "csv", 1)
    assert text == '"a,""b"";c\\n\\x1b[2J\\x7f\\u202e\\udcff|d",flu,0.25,\n'
    plain = line(row(name), "jsonl", 1)
    assert plain.isascii()
    assert plain[:-1].isprintable()
    assert json.loads(plain)["name"] == name

    def one(start: int) -> Generator[list[Row], None, None]:
        yield [row(name)]

    output.save(one, 1, tmp_path / "one.parquet", None, list)
    assert pq.read_table(tmp_path / "one.parquet").to_pylist()[0]["name"] == 'a,"b";c\\n\\x1b[2J\\x7f\\u202e\\udcff|d'


@pytest.mark.parametrize("form", output.FORMATS)
def test_a_file_that_is_there_is_never_overwritten(found: Predictions, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"found.{form}"
    path.write_text("mine")
    with refuses("exists", parameter="out"):
        found.save(path)
    assert path.read_text() == "mine"

    class Meanwhile(Slowly):
        def blocks(self, start: int = 0) -> Generator[list[Row], None, None]:
            yield from super().blocks(start)
            path.write_text("theirs")

    path.unlink()
    with refuses("exists", parameter="out"):
        Meanwhile(found).save(path)
    assert path.read_text() == "theirs"


def test_files_that_cannot_be_made_are_refused(found: Predictions, tmp_path: Path) -> None:
    (tmp_path / "photo.csv").write_text("")
    for name, form, code, named in (
        ("x.txt", None, "bad-value", "out"),
        ("x", None, "bad-value", "out"),
        ("x.csv", "xml", "unknown-name", None),
        ("a\nb.csv", None, "bad-value", "out"),
        ("photo.csv/x.csv", None, "missing", "out"),
    ):
        with refuses(code, parameter=named):
            found.save(tmp_path / name, form)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.csv"]
