"""Tables beside pictures."""

from pathlib import Path

import pytest

from dpfc_cli.annotations.classes import USUAL_NAMES
from dpfc_cli.annotations.metadata import Needed, columns_in, metadata_of, read, refuse_lines
from tests.support import refuses


def written(folder: Path, text: str, name: str = "metadata.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_all_columns_of_a_table_can_be_reached(tmp_path: Path) -> None:
    """Labels and groups of records may stand in any of them."""
    path = written(tmp_path, '\ufefffile_name,label,patient\na/1.png,flu,"Ü, 7"\n2.png,,9\n')
    found = read(path)
    assert found.files == (tmp_path / "a/1.png", tmp_path / "2.png")
    assert found.columns == {"label": ["flu", None], "patient": ["Ü, 7", "9"]}


def test_lines_of_json_keep_integers_and_may_lack_a_key(tmp_path: Path) -> None:
    text = '{"file_name": "1.png", "label": 3}\n\n{"file_name": "2.png", "box": [1], "patient": "x"}\n'
    found = read(written(tmp_path, text, "metadata.jsonl"))
    assert found.columns == {"label": [3, None], "box": [None, [1]], "patient": [None, "x"]}


def test_a_table_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    for name, text, code in (
        ("metadata.csv", "", "damaged"),
        ("metadata.csv", "name,label\n1.png,2\n", "missing"),
        ("metadata.csv", "file_name,label,label\n1.png,2,3\n", "damaged"),
        ("metadata.csv", "file_name,label\n1.png,2,3\n", "damaged"),
        ("metadata.csv", "file_name,label,Label\n1.png,2,3\n", "damaged"),
        ("metadata.csv", "file_name,label,note\n1.png,2\n", "damaged"),
        ("metadata.csv", "# of May\nfile_name,label\n1.png,2\n", "damaged"),
        ("metadata.csv", "file_name;note, or so\n1.png;a,b\n", "damaged"),
        ("metadata.csv", "file_name,label\n,2\n", "bad-record"),
        ("metadata.csv", "file_name,label\n../1.png,2\n", "bad-record"),
        ("metadata.csv", "file_name,label\n/etc/passwd,2\n", "bad-record"),
        ("metadata.csv", "file_name,label\na/../1.png,2\n1.png,3\n", "bad-record"),
        ("metadata.csv", 'file_name,label\n"1.png,2\n', "damaged"),
        ("metadata.jsonl", "[]\n", "damaged"),
        ("metadata.jsonl", '{"file_name": "1.png", "label": 1, "label": 2}\n', "damaged"),
        ("metadata.jsonl", '{"file_name": "1.png", "label": NaN}\n', "damaged"),
        ("metadata.jsonl", '{"file_name": 7}\n', "bad-record"),
        ("metadata.jsonl", "{\n", "damaged"),
        ("metadata.jsonl", "[" * 100_000, "damaged"),
    ):
        # What is wrong with one line says something about a record.
        line = code == "bad-record" or name.endswith("l") or "note\n" in text
        with refuses(code, "do not publish" if line else None, path=str(tmp_path / name)):
            refuse_lines(tmp_path / name, read(written(tmp_path, text, name)).wrong)


def test_two_usual_names_of_labels_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    table = read(written(tmp_path, "file_name,Target,y,class\n1.png,2,3,4\n"))
    with refuses("conflict", parameter="label_column"):
        columns_in(tmp_path, list(table.columns), Needed(None, USUAL_NAMES, "labels", "label_column"))
    assert columns_in(tmp_path, list(table.columns), Needed("y", USUAL_NAMES, "labels", "label_column")) == ["y"]


def test_two_tables_are_refused_and_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert metadata_of(tmp_path) is None
    csv = written(tmp_path, "file_name\n")
    assert metadata_of(tmp_path) == csv
    written(tmp_path, "", "metadata.jsonl")
    with pytest.raises(ValueError, match="both"):
        metadata_of(tmp_path)
    csv.write_bytes(b"file_name\n\x81.png\n")
    with refuses("damaged"):
        read(csv)


def test_tables_of_spreadsheets_are_read_as_they_were_saved(tmp_path: Path) -> None:
    """In the code and with the paths of Windows, with empty columns and lines behind the others, or with semicolons."""
    for name, separator, encoding in (("path", ";", "cp1252"), ("image", "\t", "utf-8"), ("file", "|", "utf-8-sig")):
        rows = ((name, "label", "", ""), ("ä\\ü.png", "Größe", "", ""), ("", " ", "", ""), ())
        text = "\n".join(separator.join(row) for row in rows)
        (tmp_path / "metadata.csv").write_text(text, encoding=encoding)
        found = read(tmp_path / "metadata.csv")
        assert (found.files, found.columns) == ((tmp_path / "ä/ü.png",), {"label": ["Größe"]})
    for encoding in ("utf-16", "utf-16-le"):
        (tmp_path / "metadata.csv").write_text(text, encoding=encoding)
        with refuses("damaged"):
            read(tmp_path / "metadata.csv")
