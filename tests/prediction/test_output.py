"""Rows in files: whole or not there, and safe to open."""

import csv
import json
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpfc_cli import predict
from dpfc_cli.prediction import output
from dpfc_cli.prediction.output import Row, line
from dpfc_cli.prediction.predict import Predictions
from tests.prediction.conftest import COUNT, Scene, features_of
from tests.support import refuses


def row(name: str, best: str = "flu", error: str | None = None) -> Row:
    return Row(name=name, classes=() if error else (best,), probabilities=() if error else (0.25,), error=error)


@pytest.fixture
def found(digits: Scene) -> Predictions:
    x = features_of(digits.features).astype(np.float32)
    x[4, 0] = np.nan
    return predict(digits.head, x, top=2)


@pytest.mark.parametrize("form", output.FORMATS)
def test_a_run_that_is_stopped_leaves_nothing_and_a_whole_file_is_for_its_owner_alone(
    found: Predictions, tmp_path: Path, form: str
) -> None:
    def stopped() -> Generator[list[Row], None, None]:
        yield from found.blocks()
        raise KeyboardInterrupt

    path = tmp_path / f"found.{form}"
    with pytest.raises(KeyboardInterrupt):
        output.save(stopped(), found.top, path, None)
    assert not list(tmp_path.iterdir())
    assert (found.save(path).rows, path.stat().st_mode & 0o777) == (COUNT, 0o600)


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

    def one() -> Generator[list[Row], None, None]:
        yield [row(name)]

    output.save(one(), 1, tmp_path / "one.parquet", None)
    assert pq.read_table(tmp_path / "one.parquet").to_pylist()[0]["name"] == 'a,"b";c\\n\\x1b[2J\\x7f\\u202e\\udcff|d'


@pytest.mark.parametrize("form", output.FORMATS)
def test_a_file_that_is_there_is_never_overwritten(found: Predictions, tmp_path: Path, form: str) -> None:
    path = tmp_path / f"found.{form}"
    path.write_text("mine")
    with refuses("exists", parameter="out"):
        found.save(path)
    assert path.read_text() == "mine"

    def meanwhile() -> Generator[list[Row], None, None]:
        yield from found.blocks()
        path.write_text("theirs")

    path.unlink()
    with refuses("exists", parameter="out"):
        output.save(meanwhile(), found.top, path, None)
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
